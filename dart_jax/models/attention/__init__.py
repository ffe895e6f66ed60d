"""Attention: keys and values of new rows and of a cached prefix, one softmax over all of them."""

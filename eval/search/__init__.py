"""`python -m eval.search`: the ways of searching trees beside each other, and n-gram tables of
several sizes."""

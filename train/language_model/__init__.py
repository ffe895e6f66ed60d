"""Training the demo's own language models: tokenizer, token windows, loss.

May import `dart_jax`. `train/demo.py` is the program.
"""

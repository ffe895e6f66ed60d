"""Training the demo's language models: tokenizer, token windows, loss.

May import `dart_jax`. Start with `loss.py`; `train/demo.py` is the program.
"""

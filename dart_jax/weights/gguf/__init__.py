"""GGUF files as targets: their contents in the Hugging Face layout.

`directory.py` makes such a directory, in the user's cache, of small files and an index of the
tensors; these are read, and dequantised, from the GGUF file itself. May import `dart_jax.models`,
`dart_jax.text` and `dart_jax.weights.formats`; `file.py`, `config.py`,
`tokenizer.py` and `tensors.py` do without JAX. Start with `directory.py`.
"""

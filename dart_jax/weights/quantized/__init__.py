"""Quantised checkpoints: their tensors as the ordinary float tensors that they stand for.

May import `dart_jax.weights.tensor_files` and `dart_jax.weights.safetensors_file`. Start with
`methods.py`.
"""

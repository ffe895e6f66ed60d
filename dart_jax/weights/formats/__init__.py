"""Formats of weights: the names of tensors, and tensors that are read from files part by part.

May import `dart_jax.models`. Start with `safetensors_file.py`.
"""

# The file of DART's pair scores, and the prefix of their names among other tensors.
PAIR_SCORES = "pair_scores"

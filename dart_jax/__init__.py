"""DART speculative decoding (arXiv 2601.19278) in JAX.

A one-layer drafter predicts several positions in one forward pass, a C++ n-gram tree search prunes
them to a small draft tree, and the target verifies the whole tree at once.
"""

__version__ = "0.1.0"

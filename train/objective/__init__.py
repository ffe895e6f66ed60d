"""The training objective: what a drafter predicts behind every prefix, and its loss.

May import `dart_jax` and `train.data`. Start with `loss.py`; `literal.py` is the same objective as
the paper writes it down, which tests compare with.
"""

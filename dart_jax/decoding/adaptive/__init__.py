"""Trees sized by what they gain and cost, step by step, down to plain decoding where drafts do not
pay.

May import the rest of `dart_jax.decoding`, except for `loop.py` and `decoder.py`; `acceptance.py`
and `policy.py`, which `state.py` imports, import nothing of it. Start with `policy.py`, which
decides; `step.py` carries it out.
"""

"""Trees whose sizes follow what they gain and cost, down to plain decoding where drafts do not pay.

A text is decoded in bursts: some steps of one size, 0 for plain decoding, after which the host
decides on the next. `policy.py` decides, by what `acceptance.py` and `costs.py` have learned from
earlier bursts; `switch.py` carries it out, for both loops; `memory.py` keeps what was learned.

May import the rest of `dart_jax.decoding`, except for `loop` and `decoder.py`.
"""

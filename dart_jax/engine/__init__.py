"""The engine: requests that are decoded together, in bursts of steps.

Every generation is a request. `runner.py` reads prompts and takes bursts, in turn; `scheduler.py`
decides who runs and who waits, `pages.py` who holds which pages; `tree_size.py` how large draft
trees are; `batch.py` calls the programs, which are in `programs.py`. `decoder.py` decodes a batch
of token prompts; `dart_jax.serving` has a thread that serves the requests of others.

May import `dart_jax.decoding`. Start with `request.py`, then `runner.py`.
"""

"""The engine: decodes requests together, in bursts of steps.

Every generation is a request. `runner.py` reads prompts and takes bursts, in turn; `scheduler.py`
decides which of them run, `pages.py` which pages each holds, `tree_size.py` how large draft trees
are, by `step_costs.py`; `batch.py` calls the programs, which are in `programs.py`. `decoder.py`
decodes a batch of token prompts; `dart_jax.serving` has a thread that serves the requests of
others.

May import `dart_jax.decoding`, `dart_jax.grammar` and what they import. Start with `request.py`,
then `runner.py`.
"""

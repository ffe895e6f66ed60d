"""The engine: decodes requests together, in bursts of steps.

Every generation is a request. `engine.py` reads prompts and takes bursts, in turn; `scheduler.py`
decides which of them run, `pages.py` which pages each holds, `tree_size.py` how large draft trees
are, by `step_costs.py`; `model_runner.py` calls the programs, which are in `programs.py`.
`DartModel.generate` adds its prompts and steps until all are done; `thread.py` does so for the
clients of a server.

May import `dart_jax.decoding`, `dart_jax.grammar` and what they import. Start with `request.py`,
then `engine.py`.
"""

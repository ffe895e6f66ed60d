"""Programs that train drafters and count n-gram models for `dart_jax`.

The modules at the top level are the programs, which `python -m dart_jax` lists, and two that the
demo and SmolLM2 need. The packages:

    data/            from files to rows of tokens
    objective/       a drafter's predictions and its loss
    teacher/         the target of a run, and its outputs
    run/             the training loop: steps, devices, checkpoints, progress and metrics
    evaluation/      how well a drafter predicts and decodes
    counting/        from a corpus to an n-gram file

May import `dart_jax`, never `eval`. Start with `drafter.py`.
"""

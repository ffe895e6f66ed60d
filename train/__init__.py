"""Programs that train drafters and count n-gram models for `dart_jax`.

At the top stand the programs alone; `python -m dart_jax` lists them. Their parts:

    data/            from files to rows of tokens
    objective/       what a drafter predicts, and its loss
    run/             the training loop: steps, devices, checkpoints, what a person sees
    evaluation/      how good a drafter is
    experiments/     the paper's experiments
    language_model/  training the demo's target
    counting/        from a corpus to an n-gram file

May import `dart_jax`, never `eval`.
"""

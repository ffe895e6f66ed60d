"""Programs that measure what `dart_jax` does.

Small programs are single files, each with its options, its measurement and its table; larger ones
are packages, which `docs/architecture.md` lists.

May import `dart_jax`, never `train`. Start with `speedup/program.py`.
"""

"""`python -m eval.peers`: this project's decoding next to other engines', on the same weights.

    program.py       command line
    config.py        options
    registry.py      the engines: their files, packages and precisions
    engine.py        what an engine is given and returns
    layout.py        a target's files as other programs read them
    worker.py        an engine in a process of its own
    measurement.py   starts the engines, chooses their threads, and times them in turn
    report.py        table and JSON
    engines/         the engines, a file each

No engine's package is needed: those that are not installed are left out, in one line each. May
import `dart_jax`, `eval.benchmarks` and `eval.methods`. Start with `program.py`.
"""

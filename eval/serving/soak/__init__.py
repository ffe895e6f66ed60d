"""`python -m eval.serving --soak SECONDS`: a server under requests of every kind.

    pool.py      the requests, and what no server should accept
    visits.py    clients that read, wait, hang up, or send what is malformed
    checks.py    what must hold afterwards
    program.py   a soak from its start to its report

May import `dart_jax` and what `eval.serving` imports. Start with `program.py`.
"""

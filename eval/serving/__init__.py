"""`python -m eval.serving`: compares a server drafted and plain, or soaks it.

    program.py       command line
    config.py        options
    requests.py      the requests
    mixed.py         those of --soak
    grammars.py      those of --hostile
    client.py        a client that measures, over HTTP
    servers.py       servers that are started here
    comparison.py    the servers in turn, round by round, and their table
    soak.py          --soak
    hostile.py       --hostile
    delays.py        --delays

Loads, arrivals and percentiles are left to GuideLLM and vLLM: docs/serving.md. May import
`dart_jax`, `eval.benchmarks`, and `report` of `eval.latency`. Start with `program.py`.
"""

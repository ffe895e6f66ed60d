"""`python -m eval.serving`: what clients of a server get, drafted and not.

    program.py       command line
    config.py        options
    workload.py      what is asked
    client/          a client that measures, and its loads
    server.py        servers, started or running
    comparison.py    the servers in turn, round by round
    fixed.py         the same requests in fixed batches, without a server
    summary.py       percentiles, throughput, goodput
    report.py        tables and JSON
    figure.py        latency against throughput
    first_token.py   --ttft-check
    soak/            --soak

Servers are asked over HTTP only: any that speaks OpenAI's API can be measured. May import
`dart_jax`, `eval.benchmarks`, and `report` of `eval.latency`. Start with `program.py`.
"""

"""A client of OpenAI-compatible servers that measures: HTTP, server-sent events, and loads.

    connection.py   HTTP/1.1 over asyncio
    events.py       server-sent events
    metrics.py      a server's counters
    completion.py   a request, and its answer with the time of every chunk
    load.py         closed and open loop

Knows no model. May import `dart_jax.errors`.
"""

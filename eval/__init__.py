"""Programs that measure what `dart_jax` does.

    speedup/     tokens per second of plain decoding and of the drafting methods
    lossless/    whether drafting leaves the output unchanged
    latency/     time of every stage of a step, next to the hardware's limit
    peers/       other engines on the same weights
    serving/     what clients of a server get
    benchmarks/  questions and prompts
    methods/     the decoding methods, and how they are timed
    compile/     what a GPU or TPU would run
    campaign.py  all of these on a new device, within a time

The other files are small programs, each with its options, its measurement and its table.

May import `dart_jax`, never `train`. Start with `speedup/program.py`.
"""

"""Programs that measure what `dart_jax` does.

    speedup/     plain decoding against the drafting methods
    lossless/    whether drafting leaves the output as it was
    latency/     every stage of a step, beside what the hardware could do
    benchmarks/  questions and prompts
    methods/     the decoding methods that are compared, and how they are timed
    compare.py   two reports of eval.speedup
    loading.py   time and memory of reading a checkpoint
    startup.py   time from a new process to its first text

May import `dart_jax`, never `train`.
"""

"""Programs that measure what `dart_jax` does.

    speedup/     tokens per second of plain decoding and of the drafting methods
    lossless/    whether drafting leaves the output unchanged
    latency/     time of every stage of a step, next to the hardware's limit
    peers/       other engines on the same weights
    serving/     what clients of a server get
    benchmarks/  questions and prompts
    methods/     the decoding methods, and how they are timed
    compare.py   comparison of two reports of eval.speedup
    loading.py   time and memory of loading a checkpoint
    startup.py   time from starting a process to its first text

May import `dart_jax`, never `train`. Start with `speedup/program.py`.
"""

from dart_jax.interruption import end_imports_quietly

end_imports_quietly()

"""`python -m eval.latency`: see `eval.latency.program`."""

from eval.latency.program import main

if __name__ == "__main__":
    main()

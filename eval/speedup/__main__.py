"""`python -m eval.speedup`: see `eval.speedup.program`."""

from eval.speedup.program import main

if __name__ == "__main__":
    main()

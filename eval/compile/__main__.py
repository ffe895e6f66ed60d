"""`python -m eval.compile`: see `eval.compile.program`."""

from eval.compile.program import main

if __name__ == "__main__":
    main()

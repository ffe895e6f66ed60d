"""`python -m eval.serving`: see `eval.serving.program`."""

from eval.serving.program import main

if __name__ == "__main__":
    main()

"""`python -m eval.lossless`: see `eval.lossless.program`."""

from eval.lossless.program import main

if __name__ == "__main__":
    main()

"""`python -m eval.search`: see `eval.search.program`."""

from eval.search.program import main

if __name__ == "__main__":
    main()

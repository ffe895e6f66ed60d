"""`python -m eval.peers`: see `eval.peers.program`."""

from eval.peers.program import main

if __name__ == "__main__":
    main()

"""`python -m eval.campaign`: see `eval.campaign.program`."""

from eval.campaign.program import main

if __name__ == "__main__":
    main()

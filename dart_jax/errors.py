"""The one exception a user of the programs is meant to see."""


class UserError(Exception):
    """Bad input, told in one line that says what to do.

    Programs print it without a traceback and exit with status 2.
    """

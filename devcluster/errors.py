"""What every module of this package raises for a condition that a person can do something about.

The command line prints the message as one line and exits with 1; anything else that escapes is a
bug and shows a traceback.
"""


class DevclusterError(Exception):
    """Message = what, where, the remedy."""

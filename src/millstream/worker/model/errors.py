"""The errors that end the loop of a subscriber."""

from millstream.errors import MillstreamError


class LeaseLost(MillstreamError):  # noqa: N818 - a state of the server
    """Another worker owns the partition now.

    What to do: nothing, since the new owner continues.
    """


class FatalError(MillstreamError):
    """The subscriber cannot continue: the key has another type, or the user has no permission or a wrong password.

    What to do: correct the cause that the message names, and start the worker again.
    """

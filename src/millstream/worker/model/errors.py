"""The errors that end the loop of a subscriber."""

from millstream.errors import MillstreamError


class LeaseLost(MillstreamError):  # noqa: N818 - a state of the server
    """The partition is another's by now.

    What to do: nothing; its new owner goes on.
    """


class FatalError(MillstreamError):
    """The subscriber cannot go on: wrong kind of key, no permission, wrong password.

    What to do: correct what the text names and start the worker again.
    """

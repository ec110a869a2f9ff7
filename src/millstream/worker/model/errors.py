"""The errors that end the loop of a subscriber."""

import re

from millstream.errors import MillstreamError

# Error of a server whose disk lost entries, with the first and last id
_DAMAGED = re.compile(r"MSDAMAGED entries (\d{1,20}-\d{1,20}) to (\d{1,20}-\d{1,20}) ")


class LeaseLost(MillstreamError):  # noqa: N818 - a state of the server
    """Another worker owns the partition now.

    What to do: nothing, since the new owner continues.
    """


class FatalError(MillstreamError):
    """The subscriber cannot continue: the key has another type, or the user has no permission or a wrong password.

    What to do: correct the cause that the message names, and start the worker again.
    """


def refused_read(stream: str, group: str, error: Exception) -> FatalError:
    """Return the error for a read that the server refuses. For damaged entries it names the way past them."""
    text = f"{stream}: {error}"
    if found := _DAMAGED.match(str(error)):
        first, last = found.groups()
        text += (
            ". A restart does not help. Read `Damage of a pack` in docs/operations.md: put the entries back from a "
            f"backup, or skip them all. First acknowledge (XACK) those that XPENDING {stream} {group} {first} {last} "
            f"1000 lists. Then, only if last-delivered-id in XINFO GROUPS {stream} is smaller than {last}, run XGROUP "
            f"SETID {stream} {group} {last}; otherwise it would deliver later entries again. Then start the worker"
        )
    return FatalError(text)

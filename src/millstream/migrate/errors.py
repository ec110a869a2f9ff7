"""Errors of a migration, by their meaning for the other streams."""

from typing import ClassVar

from millstream.errors import MillstreamError


class MigrationError(MillstreamError):
    """Root of these; alone it means that the whole migration cannot go on.

    What to do: correct the named cause and run the command again: it continues where it ended.
    """


class LinkError(MigrationError):
    """One end cannot be reached, went away, or does not let us in.

    What to do: start the server that it names and check your login there, then run the command again.
    """

    exit_code: ClassVar[int] = 3


class NoEntryError(LinkError):
    """One end refused the user or the password.

    What to do: correct user and password in the URL of the end that the text names.
    """

    exit_code: ClassVar[int] = 5


class RefusedError(MigrationError):
    """A server refused a command; the text is the server's, with what to do where that is known.

    What to do: allow what the server refused, or leave the stream out, then run the command again.
    """

    exit_code: ClassVar[int] = 5

    def __init__(self, message: str, *, code: str) -> None:
        super().__init__(message)
        self.code = code


class ChangedError(MigrationError):
    """The source stream has changed since it was read: another client writes to it.

    What to do: stop the writers of the source, or follow it as in docs/moving.md, then run the command again.
    """


class UnequalError(MigrationError):
    """The copy is not like the source, though the source did not change.

    What to do: keep the source, remove the copy and run the command again.
    """

    def __init__(self, differences: list[str], count: int) -> None:
        super().__init__(f"{count} differences between source and copy")
        self.differences = differences
        self.count = count

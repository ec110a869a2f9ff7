"""Errors of a migration, sorted by their consequence for the other streams."""

from typing import ClassVar

from millstream.errors import MillstreamError


class MigrationError(MillstreamError):
    """Base class of the errors of a migration. If it is raised itself, the whole migration cannot continue.

    What to do: correct the named cause and run the command again. It continues where it ended.
    """


class LinkError(MigrationError):
    """The source or the target cannot be reached, closed the connection, or refuses the login.

    What to do: start the server that the message names and check your login there. Then run the command again.
    """

    exit_code: ClassVar[int] = 3


class NoEntryError(LinkError):
    """The source or the target refused the user or the password.

    What to do: correct the user and password in the URL that the message names.
    """

    exit_code: ClassVar[int] = 5


class RefusedError(MigrationError):
    """A server refused a command; the message is the server's, with a known remedy added.

    What to do: allow the refused command, or leave the stream out. Then run the command again.
    """

    exit_code: ClassVar[int] = 5

    def __init__(self, message: str, *, code: str) -> None:
        super().__init__(message)
        self.code = code


class ChangedError(MigrationError):
    """The source stream has changed since it was read: another client writes to it.

    What to do: stop the writers of the source, or follow it as in docs/moving.md. Then run the command again.
    """


class UnequalError(MigrationError):
    """The copy differs from the source, although the source did not change.

    What to do: keep the source, remove the copy and run the command again.
    """

    def __init__(self, differences: list[str], count: int) -> None:
        super().__init__(f"{count} differences between source and copy")
        self.differences = differences
        self.count = count

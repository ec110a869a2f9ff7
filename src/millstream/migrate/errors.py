"""What goes wrong in a migration, by what it means for the other streams."""

from millstream.errors import MillstreamError


class MigrationError(MillstreamError):
    """Root of these; alone it means that the whole migration cannot go on."""


class LinkError(MigrationError):
    """One end cannot be reached, went away, or does not let us in."""


class RefusedError(MigrationError):
    """A server refused a command; the text is the server's, with what to do where that is known."""

    def __init__(self, message: str, *, code: str) -> None:
        super().__init__(message)
        self.code = code


class ChangedError(MigrationError):
    """The source stream is not what it was a moment ago: somebody writes to it."""


class UnequalError(MigrationError):
    """The copy is not like the source, though the source did not change."""

    def __init__(self, differences: list[str], count: int) -> None:
        super().__init__(f"{count} differences between source and copy")
        self.differences = differences
        self.count = count

"""Size limit for the changes of one command, transaction or script, which become one record of the log."""

from millstream.commands.table.spec import Command
from millstream.errors import CommandError
from millstream.protocol import limits

# Largest overhead of a string in a record, in bytes
WORD_OVERHEAD = 16
_TOO_LARGE = (
    f"ERR the changes of one transaction, script or command take at most {limits.CHANGE_MAX >> 20} MiB in the log, and "
    "with this command they would take more: nothing of it was done; make such changes in smaller parts"
)


class Weight:
    """Size of the changes since the last record, in bytes."""

    __slots__ = ("bytes",)

    def __init__(self) -> None:
        self.bytes = 0  # Estimated size of the next record, never too small; set to 0 after each record

    def add_words(self, row: Command, argv: list[bytes]) -> None:
        """Add a command's arguments before it runs in a transaction or script; it adds its other changes itself."""
        if "write" in row.flags:
            self.add(sum(map(len, argv)) + WORD_OVERHEAD * len(argv))

    def takes(self, size: int) -> bool:
        """Add this many bytes if they fit the limit; report whether they fit."""
        fits = self.bytes + size <= limits.CHANGE_MAX
        self.bytes += size * fits
        return fits

    def add(self, size: int) -> None:
        """Add this many bytes before a change; raise if they exceed the limit."""
        if self.bytes + size > limits.CHANGE_MAX:
            raise CommandError(_TOO_LARGE)
        self.bytes += size

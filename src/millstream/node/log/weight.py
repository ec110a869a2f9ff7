"""The size in the log of the changes of one command, transaction or script: all of them are one record."""

from millstream.commands.table.spec import Command
from millstream.errors import CommandError
from millstream.protocol import limits

# Bytes that a word takes in a record beside itself, at most
WORD_OVERHEAD = 16
_TOO_LARGE = (
    f"ERR the changes of one transaction, script or command take at most {limits.CHANGE_MAX >> 20} MiB in the log, and "
    "with this command they would take more: nothing of it was done; make such changes in smaller parts"
)


class Weight:
    """The weight of the changes since the last record."""

    __slots__ = ("bytes",)

    def __init__(self) -> None:
        self.bytes = 0  # As much as the next one takes, or a little more; set to 0 with each record

    def add_words(self, row: Command, argv: list[bytes]) -> None:
        """Weigh a command of a transaction or script before it runs: it logs its words, or weighs what else it logs."""
        if "write" in row.flags:
            self.add(sum(map(len, argv)) + WORD_OVERHEAD * len(argv))

    def takes(self, size: int) -> bool:
        """Weigh so many bytes if they are not too many; whether they were weighed."""
        fits = self.bytes + size <= limits.CHANGE_MAX
        self.bytes += size * fits
        return fits

    def add(self, size: int) -> None:
        """So many bytes are about to be changed."""
        if self.bytes + size > limits.CHANGE_MAX:
            raise CommandError(_TOO_LARGE)
        self.bytes += size

"""The refusals of a node that takes no writes, so that no reply reports a change that a power cut could undo.

Writes are refused as Redis refuses them when its AOF cannot be written (``MISCONF``, PING included), or when it has too
few replicas (``NOREPLICAS``). Changes may be *held*: made in memory, but not taken by the disk or by enough replicas.
No reply may show them. So reads of the keys they touched are refused, and so are commands that read all keys. Every
other command is replied to at once, without waiting. Keys count by name, whatever their database.

Source: https://redis.io/docs/latest/operate/oss_and_stack/management/persistence/ (errors writing the AOF)
"""

from collections.abc import Iterable
from typing import Any

from millstream.commands.context.session import Session
from millstream.commands.table.keyspecs import has_keys, keys_of
from millstream.commands.table.spec import Command
from millstream.commands.table.table import resolve
from millstream.engine.cold_ops import SILENT
from millstream.errors import CommandError
from millstream.node.log import codec

_REDIS = "MISCONF Errors writing to the AOF file: "  # clients made for Redis look for this text
_WRITES = "Writes are refused and reads continue; when there is space again, writes are accepted without a restart"
# Redis's text, which clients look for, and a sentence that names the setting, which is not min-replicas-to-write
_UNCONFIRMED = (
    "NOREPLICAS Not enough good replicas to write. Fewer replicas confirm writes than sync-replicas requires: see INFO "
    "replication"
)
_HELD = (
    "This command reads keys with changes that wait for space on the disk. They can be read once these changes are "
    "written; other keys can be read now"
)


def shows_times(row: Command) -> bool:
    """True if a command's reply shows when consumers last tried to read; these times do not make other replies wait."""
    return row.name.startswith("xinfo") or row.name == "dump"


class Outage:
    """The reason why writes are refused, and the keys that may not be read."""

    __slots__ = ("_everything", "_seen", "_touched", "held", "is_early", "other", "why")

    def __init__(self, why: str, held: Iterable[bytes | None] = (), *, is_early: bool = False) -> None:
        self.why = why  # Reason for the refusal of writes
        self.is_early = is_early  # The disk still takes writes: clients' ones are refused before one can fail
        self.held = 0  # Number of records that wait
        self.other: Outage | None = None  # Second reason at the same time
        self._everything = False  # a whole database has changed
        self._touched: set[bytes] = set()
        self._seen: set[bytes] = set()  # only the time of a consumer has changed, which few commands show
        for payload in held:
            self.held += 1
            if payload is None:
                self._everything = True
                continue
            for step in codec.unpack(payload)[1]:
                self._note(step)

    def _note(self, step: list[Any]) -> None:
        if step[0] in {"hist", "off", "role"} or step[0] in SILENT:  # without a key, or a change that no reply shows
            return
        if step[0] in {"flush", "swap"}:
            self._everything = True
            return
        names = self._seen if step[0] == "cseen" else self._touched
        names.add(step[2])
        if step[0] in {"move", "copy"}:
            names.add(step[4])

    @property
    def is_holding(self) -> bool:
        """True if changes are held, by the disk or for replicas."""
        return self.held > 0 or (self.other is not None and self.other.is_holding)

    @property
    def _of_writes(self) -> str:
        return f"{_REDIS}{self.why}. {_WRITES}"

    @property
    def _of_reads(self) -> str:
        return f"{_REDIS}{self.why}. {_HELD}"

    @property
    def _of_ping(self) -> str | None:
        """The error to reply to PING, as in Redis, so that monitors notice."""
        return self._of_writes

    def refusal(self, row: Command, argv: list[bytes]) -> str | None:
        """Return the error line for a command of a script or transaction, None if it may run."""
        if "write" in row.flags:
            return self._of_writes
        if self.held and self._tells(row, argv):
            return self._of_reads
        return None if self.other is None else self.other.refusal(row, argv)

    def refusal_of(self, session: Session, row: Command, argv: list[bytes]) -> str | None:
        """Return the error line for a client's command, None if it may run."""
        if row.name == "ping":
            return self._of_ping
        if row.name != "exec":
            return self.refusal(row, argv)
        if any(self._is_touched(key) for _, key in session.watched):  # its result may depend on a held change
            return self._of_reads
        lines = (self.refusal(resolve(words), words) for words in session.queue or ())
        if line := next(filter(None, lines), None):
            return line
        return None if self.other is None else self.other.refusal_of(session, row, argv)

    def _tells(self, row: Command, argv: list[bytes]) -> bool:
        """True if the reply of a reading command may show held changes."""
        if row.group == "scripting":  # checks happen for the script's own commands
            return False
        if not has_keys(row) or row.name == "sort_ro":  # KEYS, SCAN, DBSIZE and RANDOMKEY read all keys, BY any key
            return "readonly" in row.flags or row.name.startswith("debug")
        try:
            keys = keys_of(row, argv)
        except CommandError:
            return True
        if (shows_times(row) or row.name == "memory|usage") and not self._seen.isdisjoint(keys):
            return True
        return any(map(self._is_touched, keys))

    def _is_touched(self, key: bytes) -> bool:
        return self._everything or key in self._touched


class Shortage(Outage):
    """The outage while fewer replicas than ``sync-replicas`` hold the writes."""

    __slots__ = ()

    def __init__(self, held: Iterable[bytes | None] = ()) -> None:
        super().__init__("too few replicas", held)

    @property
    def _of_writes(self) -> str:
        return _UNCONFIRMED

    @property
    def _of_reads(self) -> str:
        return (
            "NOREPLICAS This command reads keys with changes that fewer replicas hold than sync-replicas requires. "
            "They can be read once enough replicas hold these changes; other keys can be read now"
        )

    @property
    def _of_ping(self) -> str | None:
        """None, since for monitors this server works; only its replicas are missing."""
        return None

"""SLOWLOG's list: the slow commands, latest first, shortened as in Redis, and without secrets.

``slowlog-max-len`` limits its memory, with :data:`WORDS` arguments of a command and :data:`BYTES` bytes of an argument.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from millstream.commands.context.config import Config
from millstream.commands.context.session import Session
from millstream.commands.table.args import keyword
from millstream.commands.table.hints import MORE_FLAGS
from millstream.commands.table.table import find

WORDS = 32
"""Largest number of recorded arguments; the last one of a longer command gives the number left out."""
BYTES = 128
"""Largest number of recorded bytes of an argument, followed by the number left out."""

_REDACTED = b"(redacted)"
# Parameters with secrets, including Redis's: clients that expect a Redis may send them
_SECRET = frozenset({b"requirepass", b"masterauth", b"masteruser", b"tls-key-file-pass", b"tls-client-key-file-pass"})


@dataclass(frozen=True, slots=True)
class SlowEntry:
    """One slow command."""

    number: int  # Number, unique while the server runs
    ended: int  # Wall seconds at its end
    microseconds: int  # Duration, without the time of waiting
    words: list[bytes]  # Arguments, shortened and without secrets
    addr: bytes  # Address of the client, as in CLIENT LIST
    name: bytes  # Name of the client


class SlowLog:
    """The recorded slow commands, and their number."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._numbers = 0
        self.entries: deque[SlowEntry] = deque()  # Slow commands, latest first

    def note(self, caller: Session | None, argv: list[bytes], nanoseconds: int, wall: int) -> None:
        """Record a command that took at least ``slowlog-log-slower-than``."""
        row = find(argv)
        name = "" if row is None else row.name
        if self._config.slowlog_max == 0 or "skip_slowlog" in MORE_FLAGS.get(name, ()):
            return
        words = _cut(argv, frozenset(_secrets(name, argv)))
        ended = (wall + nanoseconds // 1_000_000) // 1000
        # A script's command has no address, as in Redis 8
        client = (b"", b"") if caller is None else (caller.addr.encode("utf-8", "surrogateescape"), caller.name)
        self.entries.appendleft(SlowEntry(self._numbers, ended, nanoseconds // 1000, words, *client))
        self._numbers += 1
        while len(self.entries) > self._config.slowlog_max:
            self.entries.pop()


def _secrets(name: str, argv: list[bytes]) -> Iterable[int]:
    """Positions of secret arguments, also of a command that was refused before it parsed them."""
    match name:
        case "auth":
            return range(1, len(argv))
        case "acl|setuser" | "acl|deluser" | "acl|getuser":
            return range(2, len(argv))
        case "hello":
            return [place for at, word in enumerate(argv) if keyword(word) == b"AUTH" for place in (at + 1, at + 2)]
        case "config|set":
            return [at + 1 for at in range(2, len(argv), 2) if argv[at].lower() in _SECRET]
    return ()


def _cut(argv: list[bytes], secrets: frozenset[int]) -> list[bytes]:
    """Return the arguments in the recorded form."""
    kept = argv if len(argv) <= WORDS else argv[: WORDS - 1]
    words = [_REDACTED if at in secrets else _cut_word(word) for at, word in enumerate(kept)]
    return words if kept is argv else [*words, b"... (%d more arguments)" % (len(argv) - len(kept))]


def _cut_word(word: bytes) -> bytes:
    return word if len(word) <= BYTES else b"%b... (%d more bytes)" % (word[:BYTES], len(word) - BYTES)

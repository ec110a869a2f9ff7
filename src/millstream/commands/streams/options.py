"""The options of XREAD and XREADGROUP."""

from dataclasses import dataclass, field

from millstream.commands.table.args import SYNTAX, integer, keyword, milliseconds, read_integer
from millstream.engine.streams.entries import EntryStore
from millstream.errors import CommandError


@dataclass(slots=True)
class ReadOptions:
    """The options of XREAD and XREADGROUP."""

    count: int = -1  # Largest number of entries per stream; -1 for all
    max_count: int | None = None  # Largest number of entries in total; None for no bound
    max_size: int | None = None  # Size of the reply, in bytes, after which no entries are added; None for no bound
    block: int | None = None  # Milliseconds to wait, 0 for ever; None not to wait
    claim: int | None = None  # Smallest idle time of pending entries to claim, in milliseconds; None not to claim
    noack: bool = False  # Deliver without creating pending records
    group: bytes | None = None  # Consumer group, for XREADGROUP
    consumer: bytes = b""  # Consumer, for XREADGROUP
    streams_at: int = 0  # Index of the first key in the arguments
    keys: list[bytes] = field(default_factory=list)  # Keys of the streams
    words: list[bytes] = field(default_factory=list)  # Id for each stream: an id, ``$``, ``+`` or ``>``

    def most(self, entries: EntryStore) -> int:
        """Forecast of the number of cold entries that one stream adds at most; -1 for all."""
        size = None if self.max_size is None else 1 + self.max_size * entries.cold_live // max(entries.cold_bytes, 1)
        return min((most for most in (self.count, self.max_count, size) if most is not None and most > 0), default=-1)


def parse_read(argv: list[bytes], name: str, now: int) -> ReadOptions:
    """Parse a whole command line of XREAD or XREADGROUP.

    Every argument before STREAMS must be an option; a missing GROUP is reported after all parsing. MAXCOUNT, a limit
    for all streams together, may not be smaller than COUNT, the limit for each.
    """
    options = ReadOptions()
    grouped = name == "xreadgroup"
    at = 1
    while at < len(argv):
        word = keyword(argv[at])
        more = len(argv) - at - 1
        if word == b"STREAMS" and more >= 1:
            _take_streams(options, argv, at + 1, name)
            break
        at += _take_read_option(options, argv, at, grouped=grouped, now=now)
    if not options.keys:
        raise SYNTAX
    if grouped and options.group is None:
        raise CommandError("ERR Missing GROUP option for XREADGROUP")
    if options.max_count is not None and options.count > 0 and options.max_count < options.count:
        raise CommandError("ERR MAXCOUNT must be greater than or equal to COUNT")
    return options


def _take_streams(options: ReadOptions, argv: list[bytes], at: int, name: str) -> None:
    """Parse the arguments after STREAMS: keys, then as many ids.

    An id of one sign is stored as that sign, without bytes after a NUL, which C would ignore.
    """
    rest = argv[at:]
    if len(rest) % 2:
        what = "an ID or '>'" if name == "xreadgroup" else "an ID, '+', or '$'"
        raise CommandError(f"ERR Unbalanced '{name}' list of streams: for each stream key {what} must be specified.")
    half = len(rest) // 2
    options.streams_at = at
    options.keys = rest[:half]
    options.words = [word[:1] if word[1:2] == b"\0" and word[:1] in b"$+>" else word for word in rest[half:]]


def _only_group(word: bytes, *, grouped: bool) -> None:
    """Refuse XREADGROUP's options in XREAD, with a clearer text than a syntax error."""
    if not grouped:
        name = word.decode()
        raise CommandError(f"ERR The {name} option is only supported by XREADGROUP. You called XREAD instead.")


def _take_read_option(options: ReadOptions, argv: list[bytes], at: int, *, grouped: bool, now: int) -> int:
    """Parse one option; return its number of arguments. COUNT 0 and below mean "all" here, unlike in XRANGE."""
    word = keyword(argv[at])
    more = len(argv) - at - 1
    if word == b"NOACK":
        _only_group(word, grouped=grouped)
        options.noack = True
        return 1
    if word == b"GROUP" and more >= 2:
        _only_group(word, grouped=grouped)
        options.group, options.consumer = argv[at + 1], argv[at + 2]
        return 3
    if not more:
        raise SYNTAX
    value = argv[at + 1]
    if word == b"BLOCK":
        options.block = milliseconds(value, now)
    elif word == b"COUNT":
        options.count = integer(value)
        if options.count <= 0:
            options.count = -1
    elif word == b"MAXCOUNT":
        options.max_count = _positive(value, "MAXCOUNT")
    elif word == b"MAXSIZE":
        options.max_size = _positive(value, "MAXSIZE")
    elif word == b"CLAIM":
        _only_group(word, grouped=grouped)
        options.claim = integer(value, "ERR min-idle-time is not an integer or out of range")
        if options.claim < 0:
            raise CommandError("ERR min-idle-time must be a positive integer")
    else:
        raise SYNTAX
    return 2


def _positive(word: bytes, name: str) -> int:
    """The value of MAXCOUNT or MAXSIZE; every bad value has the same error text."""
    value = read_integer(word)
    if value is None or value <= 0:
        raise CommandError(f"ERR {name} must be a positive integer")
    return value

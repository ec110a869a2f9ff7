"""Commands about the server: TIME CONFIG MEMORY USAGE.

Source: https://redis.io/docs/latest/commands/?group=server
"""

from millstream.commands.context.context import Context
from millstream.commands.table.args import SYNTAX, integer, keyword
from millstream.commands.table.table import SERVER
from millstream.engine.keyspace import EXPIRY_SIZE, KEY_SIZE
from millstream.engine.streams.stream import Stream
from millstream.errors import CommandError
from millstream.glob import Effort, Pattern
from millstream.replies import OK, Map, Reply


def _text(word: bytes) -> str:
    """Decode bytes of any encoding to text that can be encoded to the same bytes."""
    return word.decode("utf-8", "surrogateescape")


@SERVER.command("time", 1, "loading stale fast")
def time_(ctx: Context, argv: list[bytes]) -> Reply:  # noqa: ARG001 - a handler's signature
    """Seconds since 1970 and microseconds of the second, at the command's start; the resolution is one millisecond.

    Entries' ids come from the same clock: a script that calls TIME gets the time of its XADD.
    """
    seconds, ms = divmod(ctx.now.wall, 1000)
    return [b"%d" % seconds, b"%d" % (ms * 1000)]


SERVER.container("config")


@SERVER.command("config|get", -3, "admin noscript loading stale")
def config_get(ctx: Context, argv: list[bytes]) -> Reply:
    """Names with their values, each once, even if several patterns match. Names ignore case."""
    effort = Effort()
    patterns = [Pattern(word, effort, nocase=True) for word in argv[2:]]
    found = {name.encode(): value for name, value in ctx.host.config.texts().items()}
    return Map([(n, _encoded(value)) for n, value in found.items() if any(p.fits(n, effort) for p in patterns)])


def _encoded(value: str) -> bytes:
    """Encode text from :func:`_text` to the same bytes."""
    return value.encode("utf-8", "surrogateescape")


@SERVER.command("config|set", -4, "admin noscript loading stale")
def config_set(ctx: Context, argv: list[bytes]) -> Reply:
    """Set parameters until the server ends; their values at the start come from the command line.

    ``requirepass`` is the default user's password, so that user changes with it.
    """
    if len(argv) % 2:
        raise SYNTAX
    words = [_text(word) for word in argv[2:]]
    ctx.host.config.set(list(zip(words[::2], words[1::2], strict=True)))
    if "requirepass" in map(str.lower, words[::2]):
        ctx.host.accounts.set_default_password(ctx.host.config.require_pass)
    return OK


@SERVER.command("config|rewrite", 2, "admin noscript loading stale")
def config_rewrite(ctx: Context, argv: list[bytes]) -> Reply:  # noqa: ARG001 - a handler's signature
    """Redis's error for a server without a configuration file."""
    raise CommandError("ERR The server is running without a config file")


SERVER.help("config")


SERVER.container("memory")


@SERVER.command("memory|usage", -3, "readonly", keys=(2, 2, 1))
def memory_usage(ctx: Context, argv: list[bytes]) -> Reply:
    """The bytes that ``used_memory`` counts for a key. SAMPLES has no effect.

    The native core counts the memory that it allocated. Python does not report the size of an object with its
    contents, so the core in Python uses typical sizes that were measured once.
    """
    if len(argv) not in {3, 5} or (len(argv) == 5 and (keyword(argv[3]) != b"SAMPLES" or integer(argv[4]) < 0)):
        raise SYNTAX
    value = ctx.lookup(argv[2])
    if value is None:
        return None
    size = KEY_SIZE + EXPIRY_SIZE * (argv[2] in ctx.db.expires) + ctx.db.size_of(argv[2])
    if isinstance(value, Stream):
        size += value.entries.footprint + sum(group.footprint for group in value.groups.values())
    return size


SERVER.help("memory")

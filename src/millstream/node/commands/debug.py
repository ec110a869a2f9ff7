"""DEBUG, with the subcommands that test suites of Redis Streams use; refused unless the server was started to allow it.

Its subcommands are not rows of the table: in Redis, COMMAND and ACL do not list them, so they are dispatched here.
None of them may lose data: RELOAD and LOADAOF build the state again next to the old one, and keep the old one if they
differ.

Source: the subcommands as Redis's DEBUG HELP describes them, and ``enable-debug-command`` in redis.conf.
"""

import time

from millstream.commands.context.context import Context
from millstream.commands.context.session import Session
from millstream.commands.table.args import bad_subcommand, read_double, shown
from millstream.commands.table.table import SERVER
from millstream.errors import CommandError, StorageError
from millstream.logs import logger
from millstream.node.host import NodeHost
from millstream.replies import OK, Reply, Simple
from millstream.texts import plural

log = logger("millstream.debug")

_NOT_ALLOWED = (
    'ERR DEBUG command not allowed. If the enable-debug-command option is set to "local", you can run it from a '
    "local connection, otherwise you need to set this option in the configuration file, and then restart the server."
)
# Seconds; a longer sleep is a mistake in a test
_LONGEST_SLEEP = 3600
_NO_LOG = "ERR there is no log to load: the server was started without a data directory"


def _is_local(session: Session) -> bool:
    """True if the client is on this machine, or in this process."""
    return session.is_unix or not session.addr or session.addr.startswith(("127.", "[::1]", "::1"))


def _log(ctx: Context, words: list[bytes]) -> Reply:  # noqa: ARG001 - one signature for all
    """Write a line to the server's log: test suites mark the start of each test."""
    log.warning("DEBUG LOG: %s", shown(words[0]))
    return OK


def _reload(ctx: Context, words: list[bytes]) -> Reply:  # noqa: ARG001 - one signature for all
    """DEBUG RELOAD: dump and load all values, so that test suites find values that a dump does not restore."""
    return _rebuilt(ctx, from_log=False)


def _load_log(ctx: Context, words: list[bytes]) -> Reply:  # noqa: ARG001 - one signature for all
    """DEBUG LOADAOF: replay the log as at a restart, so that test suites find changes that the log lacks."""
    return _rebuilt(ctx, from_log=True)


def _rebuilt(ctx: Context, *, from_log: bool) -> Reply:
    """Build the keyspace again, from the log or from dumps of its values, and compare."""
    try:
        differing = NodeHost.of(ctx).rebuild(from_log=from_log)
    except StorageError as error:
        raise CommandError(f"ERR {error}") from None
    if differing is None:
        raise CommandError(_NO_LOG)
    if differing:
        names = ", ".join(shown(name, 60) for name in differing[:5])
        raise CommandError(
            f"ERR nothing was changed: {plural(len(differing), 'key')} would not be the same, among them {names}"
        )
    return OK


def _sleep(ctx: Context, words: list[bytes]) -> Reply:  # noqa: ARG001 - one signature for all
    """Stop the whole server, with the commands of all clients, for a number of seconds."""
    seconds = read_double(words[0])
    if seconds is None or not 0 <= seconds <= _LONGEST_SLEEP:
        raise CommandError("ERR value is not a valid float")
    time.sleep(seconds)  # this command is meant to block the whole server
    return OK


def _set_active_expire(ctx: Context, words: list[bytes]) -> Reply:
    """Switch the background deletion of expired keys on or off; commands treat expired keys as missing anyway."""
    if words[0] not in {b"0", b"1"}:
        raise CommandError("ERR argument must be 0 or 1")
    ctx.host.config.expires_unasked = words[0] == b"1"
    return OK


_HELP = (
    "DEBUG <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "LOADAOF",
    "    Rebuild all data from the log, if the result is the same.",
    "LOG <message>",
    "    Write a message to the server's log.",
    "RELOAD",
    "    Rebuild all data from dumps of it, if the result is the same.",
    "SET-ACTIVE-EXPIRE <0|1>",
    "    Turn the background deletion of expired keys on or off.",
    "SLEEP <seconds>",
    "    Stop the whole server for this time.",
    "HELP",
    "    Print this help.",
)


def _help(ctx: Context, words: list[bytes]) -> Reply:  # noqa: ARG001 - one signature for all
    """The subcommands and what they do, in Redis's form."""
    return [Simple(line.encode()) for line in _HELP]


# Number of arguments and function for each subcommand
_SUBCOMMANDS = {
    b"HELP": (0, _help),
    b"LOADAOF": (0, _load_log),
    b"LOG": (1, _log),
    b"RELOAD": (0, _reload),
    b"SET-ACTIVE-EXPIRE": (1, _set_active_expire),
    b"SLEEP": (1, _sleep),
}


@SERVER.command("debug", -2, "admin noscript loading stale")
def debug(ctx: Context, argv: list[bytes]) -> Reply:
    """Run a subcommand. The permission is checked before the number of arguments, so a stranger learns nothing."""
    allowed = ctx.host.config.values["enable-debug-command"]
    if allowed != "yes" and not (allowed == "local" and _is_local(ctx.session)):
        raise CommandError(_NOT_ALLOWED)
    words, run = _SUBCOMMANDS.get(argv[1].upper(), (-1, _help))
    if words != len(argv) - 2:
        raise bad_subcommand("DEBUG", argv[1])
    return run(ctx, argv[2:])

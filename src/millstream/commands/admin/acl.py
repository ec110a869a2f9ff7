"""ACL: users and their rights.

A change here holds for connected clients from their next command on, queued and waiting ones included. A change that
deletes a user, or the right to a channel that a client listens to, closes that client: messages arrive without a
command that could be checked.

The rules themselves are in :mod:`millstream.commands.users.permissions`; here are arguments, replies and errors.

Source: https://redis.io/docs/latest/operate/oss_and_stack/management/security/acl/ and the pages of the subcommands.
"""

import secrets
from pathlib import Path

from millstream.commands.admin import aclfile
from millstream.commands.context.context import Context
from millstream.commands.context.session import Session
from millstream.commands.table.args import bad_subcommand, integer, keyword, shown
from millstream.commands.table.table import SERVER, every, find
from millstream.commands.users.accounts import DEFAULT, AclFileError, Refusal
from millstream.commands.users.categories import CATEGORIES, categories
from millstream.commands.users.permissions import RuleError, Selector, UnmatchedError, User, has_spaces
from millstream.errors import CommandError
from millstream.logs import logger
from millstream.replies import OK, Map, Reply, Set

log = logger("millstream.acl")

_MAX_BITS = 4096
_SHOWN_AT_ONCE = 10
_NO_FILE = (
    "ERR This Redis instance is not configured to use an ACL file. You may want to specify users via the ACL SETUSER "
    "command and then issue a CONFIG REWRITE (assuming you have a Redis configuration file set) in order to store "
    "users in the Redis configuration."
)

SERVER.container("acl")


def _evict(ctx: Context, session: Session) -> None:
    """Close a session whose user is deleted; none of its commands run any more, not even queued ones.

    The remaining commands of its own transaction run as the default user, as in Redis, with that user's rights.
    """
    if session is ctx.session:
        session.user = DEFAULT
        session.closing = True
    else:
        session.user = None
        ctx.host.kill(session)


def _enforce(ctx: Context, before: dict[bytes, User]) -> None:
    """Close the sessions of deleted users, and those that listen to a channel that is no longer allowed.

    All others are checked again at their next command. A pattern must equal a rule, a channel must match one. Only
    listeners of a changed user are checked: others may have subscribed as another user. The link to a primary has no
    user here.
    """
    accounts = ctx.host.accounts
    looked_at = set()
    for user in accounts.all():
        old = before.get(user.name)
        if old is not None and old is not user and user.may_lose_listeners(old):
            looked_at.add(user.name)
    for session in list(ctx.host.sessions):
        if session.user is None or session.is_primary:
            continue
        now = accounts.get(session.user)
        if now is None or (now.name in looked_at and not _may_listen_on(now, session)):
            _evict(ctx, session)


def _may_listen_on(user: User, session: Session) -> bool:
    return all(user.allows_channel(name, by_pattern=False) for name in session.channels) and all(
        user.allows_channel(name, by_pattern=True) for name in session.patterns
    )


@SERVER.command("acl|setuser", -3, "admin noscript loading stale")
def acl_setuser(ctx: Context, argv: list[bytes]) -> Reply:
    """Apply all rules or none.

    An error names the refused rule, without a password in it, since errors get into logs.
    """
    if has_spaces(argv[2]):
        raise CommandError("ERR Usernames can't contain spaces or null characters")
    before = ctx.host.accounts.by_name
    try:
        ctx.host.accounts.set(argv[2], argv[3:])
    except UnmatchedError as error:
        raise CommandError(f"ERR {error.args[0]} '{shown(error.args[1])}'.") from None
    except RuleError as error:
        raise CommandError(f"ERR Error in ACL SETUSER modifier '{shown(error.args[1])}': {error.args[0]}") from None
    _enforce(ctx, before)
    return OK


@SERVER.command("acl|deluser", -3, "admin noscript loading stale")
def acl_deluser(ctx: Context, argv: list[bytes]) -> Reply:
    """The number of deleted users. Naming the default user, which cannot be deleted, refuses the whole command."""
    if DEFAULT in argv[2:]:
        raise CommandError("ERR The 'default' user cannot be removed")
    before = ctx.host.accounts.by_name
    deleted = sum(ctx.host.accounts.delete(name) for name in argv[2:])
    _enforce(ctx, before)
    return deleted


def _describe(selector: Selector) -> list[tuple[Reply, Reply]]:
    """A selector's three kinds of rules, as ACL GETUSER shows them."""
    return [(b"commands", selector.commands_text), (b"keys", selector.keys_text), (b"channels", selector.channels_text)]


@SERVER.command("acl|getuser", 3, "admin noscript loading stale")
def acl_getuser(ctx: Context, argv: list[bytes]) -> Reply:
    """A user's rules, with passwords as SHA-256 in hexadecimal; null if there is no such user."""
    user = ctx.host.accounts.get(argv[2])
    if user is None:
        return None
    selectors: list[Reply] = [Map(_describe(selector)) for selector in user.selectors]
    return Map(
        [
            (b"flags", Set(list(user.flags))),
            (b"passwords", list(user.passwords)),
            *_describe(user.root),
            (b"selectors", selectors),
        ]
    )


@SERVER.command("acl|list", 2, "admin noscript loading stale")
def acl_list(ctx: Context, argv: list[bytes]) -> Reply:  # noqa: ARG001 - a handler's signature
    """One line for each user, by name."""
    return [bytes(user) for user in ctx.host.accounts.all()]


@SERVER.command("acl|users", 2, "admin noscript loading stale")
def acl_users(ctx: Context, argv: list[bytes]) -> Reply:  # noqa: ARG001 - a handler's signature
    """The names of the users, sorted."""
    return [user.name for user in ctx.host.accounts.all()]


@SERVER.command("acl|whoami", 2, "noscript loading stale")
def acl_whoami(ctx: Context, argv: list[bytes]) -> Reply:  # noqa: ARG001 - a handler's signature
    """The name of the session's user."""
    return ctx.session.user


@SERVER.command("acl|cat", -2, "noscript loading stale")
def acl_cat(ctx: Context, argv: list[bytes]) -> Reply:  # noqa: ARG001 - a handler's signature
    """The categories, or the full names of one category's commands, with subcommands.

    A container by itself is only in ``slow``.
    """
    if len(argv) == 2:
        return [name.encode() for name in CATEGORIES]
    if len(argv) > 3:
        raise bad_subcommand("ACL", argv[1])
    wanted = argv[2].decode("latin-1").lower()
    if wanted not in CATEGORIES:
        raise CommandError(f"ERR Unknown category '{shown(argv[2], 128)}'")
    return [row.name.encode() for row in every() if f"@{wanted}" in categories(row)]


@SERVER.command("acl|genpass", -2, "noscript loading stale")
def acl_genpass(ctx: Context, argv: list[bytes]) -> Reply:  # noqa: ARG001 - a handler's signature
    """Random bits in hexadecimal, 256 by default; a number of bits is rounded up to whole digits."""
    if len(argv) > 3:
        raise bad_subcommand("ACL", argv[1])
    bits = integer(argv[2]) if len(argv) == 3 else 256
    if not 0 < bits <= _MAX_BITS:
        raise CommandError(
            "ERR ACL GENPASS argument must be the number of bits for the output password, a positive number up to "
            f"{_MAX_BITS}"
        )
    digits = (bits + 3) // 4
    return secrets.token_hex((digits + 1) // 2)[:digits].encode()


@SERVER.command("acl|log", -2, "admin noscript loading stale")
def acl_log(ctx: Context, argv: list[bytes]) -> Reply:
    """The refusals, latest first, ten by default; none for a negative number."""
    if len(argv) > 3:
        raise bad_subcommand("ACL", argv[1])
    entries = ctx.host.accounts.log
    if len(argv) == 3 and keyword(argv[2]) == b"RESET":
        entries.clear()
        return OK
    count = max(integer(argv[2]), 0) if len(argv) == 3 else _SHOWN_AT_ONCE
    return [_entry(entry, ctx.now.wall) for entry in list(entries)[:count]]


def _entry(entry: Refusal, wall: int) -> Reply:
    """One refusal; its age counts from its last occurrence, in seconds with a fraction."""
    return Map(
        [
            (b"count", entry.count),
            (b"reason", entry.reason.encode()),
            (b"context", entry.context.encode()),
            (b"object", entry.thing),
            (b"username", entry.user),
            (b"age-seconds", max(wall - entry.updated, 0) / 1000),
            (b"client-info", entry.client),
            (b"entry-id", entry.number),
            (b"timestamp-created", entry.created),
            (b"timestamp-last-updated", entry.updated),
        ]
    )


@SERVER.command("acl|dryrun", -4, "admin noscript loading stale")
def acl_dryrun(ctx: Context, argv: list[bytes]) -> Reply:
    """OK, or the refusal as text, which is the result and not an error of this command.

    The text names the key or channel, unlike the refusal of a real command.
    """
    user: User | None = ctx.host.accounts.get(argv[2])
    if user is None:
        raise CommandError(f"ERR User '{shown(argv[2])}' not found")
    words = argv[3:]
    row = find(words)
    if row is None:
        raise CommandError(f"ERR Command '{shown(words[0])}' not found")
    # The permission check needs a command with a valid number of arguments
    row.check_arity(len(words))
    denial = user.refusal(row, words)
    return (
        OK if denial is None else user.denial_text(denial, row, words, verbose=True).encode("utf-8", "surrogateescape")
    )


def _file(ctx: Context) -> Path:
    """Return the path of the ACL file; raise if there is none."""
    path = ctx.host.config.acl_file
    if not path:
        raise CommandError(_NO_FILE)
    return Path(path)


@SERVER.command("acl|load", 2, "admin noscript loading stale")
def acl_load(ctx: Context, argv: list[bytes]) -> Reply:  # noqa: ARG001 - a handler's signature
    """Load all of the file or nothing. Users that are not in it are deleted, except the default user."""
    before = ctx.host.accounts.by_name
    try:
        aclfile.load(ctx.host.accounts, _file(ctx))
    except AclFileError as error:
        raise CommandError(f"ERR {error}") from None
    _enforce(ctx, before)
    return OK


@SERVER.command("acl|save", 2, "admin noscript loading stale")
def acl_save(ctx: Context, argv: list[bytes]) -> Reply:  # noqa: ARG001 - a handler's signature
    """OK once the file is on the disk.

    The reason of a failure is only in the server's log, as in Redis: a client need not know the server's paths.
    """
    path = _file(ctx)
    try:
        aclfile.save(ctx.host.accounts, path)
    except OSError as error:
        log.warning("the ACL file %s cannot be written: %s", path, error.strerror or error)
        raise CommandError(
            "ERR There was an error trying to save the ACLs. Please check the server logs for more information"
        ) from None
    return OK


SERVER.help("acl")

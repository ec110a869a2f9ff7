"""EVAL EVALSHA EVAL_RO EVALSHA_RO SCRIPT, and the parts of FUNCTION that report that there are no functions.

This module reads the arguments; :mod:`millstream.node.scripting.scripts` runs the script. A number separates keys from
arguments; only keys are checked against ACL and routed by clusters. So a script that computes names of keys works here,
and does not in a cluster.

Source: https://redis.io/docs/latest/develop/programmability/
"""

from millstream.commands.context.context import Context
from millstream.commands.table.args import SYNTAX, integer, keyword
from millstream.commands.table.table import SCRIPTING
from millstream.errors import CommandError
from millstream.node.host import NodeHost
from millstream.replies import OK, Reply


def _split(argv: list[bytes]) -> tuple[list[bytes], list[bytes]]:
    """Keys and arguments."""
    count = integer(argv[2])
    if count > len(argv) - 3:
        raise CommandError("ERR Number of keys can't be greater than number of args")
    if count < 0:
        raise CommandError("ERR Number of keys can't be negative")
    return argv[3 : 3 + count], argv[3 + count :]


def _eval(ctx: Context, argv: list[bytes], *, read_only: bool) -> Reply:
    """EVAL and EVAL_RO: the number of keys is checked before the script."""
    keys, args = _split(argv)
    return NodeHost.of(ctx).scripts.run_source(ctx, argv[1], keys, args, read_only=read_only)


def _evalsha(ctx: Context, argv: list[bytes], *, read_only: bool) -> Reply:
    """EVALSHA and EVALSHA_RO: NOSCRIPT for a script that is not stored; clients then send its text."""
    keys, args = _split(argv)
    return NodeHost.of(ctx).scripts.run_sha(ctx, argv[1], keys, args, read_only=read_only)


@SCRIPTING.command("eval", -3, "noscript stale movablekeys")
def eval_(ctx: Context, argv: list[bytes]) -> Reply:
    """The script's result."""
    return _eval(ctx, argv, read_only=False)


@SCRIPTING.command("eval_ro", -3, "noscript stale readonly movablekeys")
def eval_ro(ctx: Context, argv: list[bytes]) -> Reply:
    """The script's result."""
    return _eval(ctx, argv, read_only=True)


@SCRIPTING.command("evalsha", -3, "noscript stale movablekeys")
def evalsha(ctx: Context, argv: list[bytes]) -> Reply:
    """The script's result; NOSCRIPT if the server does not have it."""
    return _evalsha(ctx, argv, read_only=False)


@SCRIPTING.command("evalsha_ro", -3, "noscript stale readonly movablekeys")
def evalsha_ro(ctx: Context, argv: list[bytes]) -> Reply:
    """The script's result."""
    return _evalsha(ctx, argv, read_only=True)


SCRIPTING.container("script")


@SCRIPTING.command("script|load", 3, "noscript stale")
def script_load(ctx: Context, argv: list[bytes]) -> Reply:
    """The script's SHA-1. Scripts are not in the log: after a restart a client loads them again, as with Redis."""
    return NodeHost.of(ctx).scripts.load(argv[2])


@SCRIPTING.command("script|exists", -3, "noscript")
def script_exists(ctx: Context, argv: list[bytes]) -> Reply:
    """1 or 0 for each SHA-1."""
    return [int(NodeHost.of(ctx).scripts.exists(sha)) for sha in argv[2:]]


@SCRIPTING.command("script|flush", -2, "noscript")
def script_flush(ctx: Context, argv: list[bytes]) -> Reply:
    """Always OK. ASYNC and SYNC do the same here; other arguments are refused with Redis's error."""
    if len(argv) > 3 or (len(argv) == 3 and keyword(argv[2]) not in {b"ASYNC", b"SYNC"}):
        raise CommandError("ERR SCRIPT FLUSH only support SYNC|ASYNC option")
    NodeHost.of(ctx).scripts.flush()
    return OK


@SCRIPTING.command("script|kill", 2, "noscript")
def script_kill(ctx: Context, argv: list[bytes]) -> Reply:  # noqa: ARG001 - a handler's signature
    """An error: while a script runs no command is read, and its time limit ends it.

    The error is Redis's for "no script runs", which is always true when this command runs.
    """
    raise CommandError("NOTBUSY No scripts in execution right now.")


SCRIPTING.help("script")


SCRIPTING.container("function")


@SCRIPTING.command("function|flush", -2, "write noscript")
def function_flush(ctx: Context, argv: list[bytes]) -> Reply:  # noqa: ARG001 - a handler's signature
    """Always OK: Redis's own test suite flushes functions before each block of tests."""
    if len(argv) > 3 or (len(argv) == 3 and keyword(argv[2]) not in {b"ASYNC", b"SYNC"}):
        raise CommandError("ERR FUNCTION FLUSH only supports SYNC|ASYNC option")
    return OK


@SCRIPTING.command("function|list", -2, "noscript")
def function_list(ctx: Context, argv: list[bytes]) -> Reply:  # noqa: ARG001 - a handler's signature
    """Always empty; its arguments are checked all the same, in any order."""
    words = [keyword(word) for word in argv[2:]]
    if words not in ([], [b"WITHCODE"]) and not (len(words) in {2, 3} and b"LIBRARYNAME" in words):
        raise SYNTAX
    return []


SCRIPTING.help("function")

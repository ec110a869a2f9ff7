"""Bytes from a client, run as a connection runs them: plain commands together, the others one by one."""

from collections.abc import Iterator

import pytest

from millstream import core
from millstream.clock import Now
from millstream.commands.context.session import Session
from millstream.node.node import Node
from millstream.protocol.reader import CommandReader

# That CI has the native core is seen to by tests/engine/twins.py, which fails there without it
needs_runner = pytest.mark.skipif(core.native is None, reason="only the native core runs plain commands")

# The bounds of a run, as src/millstream/_core/run.c has them: its commands, and bytes of one reply
RUN_MAX = 512
REPLY_MAX = 4 << 20


def answered(node: Node, session: Session, reader: CommandReader, now: Now) -> Iterator[tuple[bytes, int]]:
    """Run a reader's commands until its end or until the session is blocked.

    Args:
        node: Node that runs them.
        session: Session that sent the bytes.
        reader: Reader fed with the bytes.
        now: Both clocks, for all commands.

    Yields:
        The replies of each run of plain commands and of each other command, and the barrier they wait for.
    """
    while not session.blocked:
        run = node.batches.take(session, reader, now.wall)
        barrier = node.journal.position
        if run.woken is not None:
            node.serve(session.db, run.woken, now)
        if run.commands:
            yield run.replies, barrier
            if session.held is None:
                continue
        argv = session.held or reader.next()
        if argv is None:
            return
        session.held = None
        outcome = node.execute(session, argv, now)
        if outcome is not None:
            yield b"".join(outcome.buffers), outcome.barrier

"""Commands that ask a part of the node: its log, its facts, its scripts, its replicas and its primary.

They read words and answer values as those in ``commands/`` do, and see the node as ``NodeHost.of(ctx)``.
"""

import importlib

from millstream import commands

FAMILIES = ("persistence", "debug", "scripting", "wait", "server", "replication")


def load_all() -> None:
    """Import every family of commands, which fills the command table."""
    commands.load_all()
    for family in FAMILIES:
        importlib.import_module(f"{__name__}.{family}")

"""Commands about parts of the node: its log, its facts, its scripts, its replicas and its primary.

They take arguments and return replies like the commands in ``commands/``, and access the node by ``NodeHost.of(ctx)``.
"""

import importlib

from millstream import commands

FAMILIES = ("persistence", "debug", "scripting", "wait", "server", "replication", "vacuum")


def load_all() -> None:
    """Import every family of commands, which fills the command table."""
    commands.load_all()
    for family in FAMILIES:
        importlib.import_module(f"{__name__}.{family}")

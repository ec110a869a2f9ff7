"""TIER VACUUM: the part of TIER that needs the node. The other part is in :mod:`millstream.commands.admin.tier`."""

from millstream.commands.context.context import Context
from millstream.commands.table.table import SERVER
from millstream.errors import CommandError
from millstream.node.host import NodeHost
from millstream.replies import Reply, Simple

_NO_TIER = "ERR the tier is off. Set the parameter tier to 'yes' on a server with a data directory"


@SERVER.command("tier|vacuum", 2, "admin noscript no_multi")
def tier_vacuum(ctx: Context, argv: list[bytes]) -> Reply:  # noqa: ARG001 - a handler's signature
    """A line that the vacuum has begun. The section ``tier`` of INFO shows its progress and its end.

    It writes all extents with deleted entries anew, and then begins a rewriting of the log, which removes packs.
    """
    begin = NodeHost.of(ctx).vacuum
    if begin is None or not ctx.host.config.tier:
        raise CommandError(_NO_TIER)
    if not begin():
        raise CommandError("ERR Background vacuum already in progress")
    return Simple(b"Background vacuum started")

"""Acks on the wire: XACK, or with ``on_ack="delete"`` an ack that removes what no group needs any more.

XACKDEL ... ACKED where the server has it; elsewhere the fence's script does the same in one step: it acks, and deletes
those entries that every group has read and none has pending.
"""

from millstream.client.emulate import Move
from millstream.client.line import Reply
from millstream.worker.settlement.consumer import Membership


def move(member: Membership) -> Move:
    """The command that acks entries."""
    if not member.delete_acked:
        return Move("XACK", member.group)
    if member.capabilities.xackdel:
        return Move("XACKDEL", member.group, "ACKED", "IDS")
    return Move("ACK+DELETE", member.group)


def acked(reply: Reply) -> int:
    """How many of them the server acked, from its reply to :func:`move`."""
    return sum(one > 0 for one in reply) if isinstance(reply, list) else int(reply)

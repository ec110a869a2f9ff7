"""Acks on the wire: XACK, or with ``on_ack="delete"`` an ack that removes what no group needs any more.

XACKDEL ... ACKED where the server has it; elsewhere a script does the same in one step: it acks, and deletes those
entries that every group has read and none has pending.
"""

from collections.abc import Sequence

from redis.exceptions import ResponseError

from millstream.client.line import Command, Reply
from millstream.worker.membership import Membership

#: KEYS[1] stream, ARGV[1] group, then ids. Returns what XACKDEL does: -1 not pending, 1 deleted, 2 still needed.
SCRIPT = """
local groups = redis.pcall('XINFO', 'GROUPS', KEYS[1])
if groups.err then groups = {} end
local function behind(last, id)
  local a, b = string.match(last, '(%d+)-(%d+)')
  local c, d = string.match(id, '(%d+)-(%d+)')
  if #a ~= #c then return #a < #c end
  if a ~= c then return a < c end
  if #b ~= #d then return #b < #d end
  return b < d
end
local replies = {}
for i = 2, #ARGV do
  local id = ARGV[i]
  local reply = -1
  if redis.call('XACK', KEYS[1], ARGV[1], id) == 1 then
    reply = 1
    for _, row in ipairs(groups) do
      local info = {}
      for j = 1, #row, 2 do info[row[j]] = row[j + 1] end
      if behind(info['last-delivered-id'], id) or #redis.call('XPENDING', KEYS[1], info['name'], id, id, 1) > 0 then
        reply = 2
        break
      end
    end
    if reply == 1 then redis.call('XDEL', KEYS[1], id) end
  end
  replies[#replies + 1] = reply
end
return replies
"""

#: Tells whether scripts may be run; changes nothing.
PROBE: Command = ("EVAL", "return 1", 0)


def command(member: Membership, ids: Sequence[bytes]) -> Command:
    """The command that acks these entries."""
    if not member.delete_acked:
        return ("XACK", member.stream, member.group, *ids)
    if member.capabilities.xackdel:
        return ("XACKDEL", member.stream, member.group, "ACKED", "IDS", len(ids), *ids)
    return ("EVAL", SCRIPT, 1, member.stream, member.group, *ids)


def acked(reply: Reply) -> int:
    """How many of them the server acked, from its reply to :func:`command`."""
    return sum(one > 0 for one in reply) if isinstance(reply, list) else int(reply)


def refused(member: Membership, reply: Reply) -> str | None:
    """Why ``on_ack="delete"`` cannot work on this server, from its reply to :data:`PROBE`; None when it can."""
    if not member.delete_acked or member.capabilities.xackdel or not isinstance(reply, ResponseError):
        return None
    return f'on_ack="delete" needs XACKDEL or the right to run scripts: {reply}'

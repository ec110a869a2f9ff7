"""The fence's script: the server looks whose entries they are, and acts on those that are still ours, in one step.

Owner and delivery count together are the proof: a claim by anybody, by the same consumer name included, changes the
count. It runs on any server with EVAL since Redis 6.2: what it needs are ``redis.pcall`` and the commands themselves.
The script that writes dead letters is :data:`millstream.client.dead_letter.transaction.SCRIPT`.
"""

from hashlib import sha1

#: In place of a delivery count: the owner is enough.
ANY = 0

#: A row of the record that is to be forgotten; an empty one is left as it is.
FORGET = "-"

# KEYS: the stream. ARGV: group, owner, deliveries, lowest and highest id or the milliseconds of them, key of the record
# or '', seconds it is kept; how many words stand before the ids, and these without the key, likewise behind the ids;
# how many ids, the ids; with a record a row for each. A word 'IDS' at the end of the first words is followed by the
# number of ids. The words 'ACK+DELETE' and a group mean what XACKDEL ... ACKED does.
# Returns: place, owner and deliveries (-1: not pending) of each entry that is not the owner's; the command's reply;
# what went wrong with the record.
MOVE = """
local group, owner, count, lowest, highest = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]
local record, seconds, at = ARGV[6], ARGV[7], 7
local function words()
  local size, found = tonumber(ARGV[at + 1]), {}
  for i = 1, size do found[i] = ARGV[at + 1 + i] end
  at = at + 1 + size
  return found
end
local head, tail, ids = words(), words(), words()

local function behind(last, id)
  local a, b = string.match(last, '(%d+)-(%d+)')
  local c, d = string.match(id, '(%d+)-(%d+)')
  if #a ~= #c then return #a < #c end
  if a ~= c then return a < c end
  if #b ~= #d then return #b < #d end
  return b < d
end

local function ack_and_delete(mine)
  local groups, replies = redis.pcall('XINFO', 'GROUPS', KEYS[1]), {}
  if groups.err then return groups end
  for at, id in ipairs(mine) do
    local acked = redis.pcall('XACK', KEYS[1], group, id)
    if type(acked) == 'table' then return acked end
    replies[at] = 1
    for _, row in ipairs(groups) do
      local info = {}
      for i = 1, #row, 2 do info[row[i]] = row[i + 1] end
      if behind(info['last-delivered-id'], id) or #redis.call('XPENDING', KEYS[1], info['name'], id, id, 1) > 0 then
        replies[at] = 2
        break
      end
    end
    if replies[at] == 1 then redis.pcall('XDEL', KEYS[1], id) end
  end
  return replies
end

local found = {}
if #ids > 4 then
  local rows = redis.pcall('XPENDING', KEYS[1], group, lowest, highest, #ids + 32, owner)
  if rows.err then return rows end
  for _, row in ipairs(rows) do found[row[1]] = row[4] end
end
local mine, rows, refused = {}, {}, {}
for place, id in ipairs(ids) do
  local held = found[id]
  if held and count == 0 then held = count end
  if held ~= count then
    local looked = redis.pcall('XPENDING', KEYS[1], group, id, id, 1)
    if looked.err then return looked end
    local row = looked[1] or {id, '', 0, -1}
    if row[2] == owner and (row[4] == count or count == 0) then
      held = count
    else
      refused[#refused + 1] = {place, row[2], row[4]}
    end
  end
  if held == count then
    mine[#mine + 1] = id
    if record ~= '' then rows[#mine] = ARGV[at + place] end
  end
end
if #mine == 0 then return {refused} end

local reply = false
if head[1] == 'ACK+DELETE' then
  reply = ack_and_delete(mine)
elseif head[1] then
  local call = {head[1], KEYS[1]}
  for i = 2, #head do call[#call + 1] = head[i] end
  if head[#head] == 'IDS' then call[#call + 1] = #mine end
  for _, id in ipairs(mine) do call[#call + 1] = id end
  for _, word in ipairs(tail) do call[#call + 1] = word end
  reply = redis.pcall(unpack(call))
end
if type(reply) == 'table' and reply.err then return reply end

local trouble = false
if record ~= '' then
  local kept, gone = {'HSET', record}, {'HDEL', record}
  for i, row in ipairs(rows) do
    if row == '-' then
      gone[#gone + 1] = mine[i]
    elseif row ~= '' then
      kept[#kept + 1] = mine[i]
      kept[#kept + 1] = row
    end
  end
  for _, call in ipairs({kept, #kept > 2 and {'EXPIRE', record, seconds} or {}, gone}) do
    if #call > 2 then
      local noted = redis.pcall(unpack(call))
      if type(noted) == 'table' and noted.err then trouble = noted.err end
    end
  end
end
return {refused, reply, trouble}
"""

MOVE_SHA = sha1(MOVE.encode(), usedforsecurity=False).hexdigest()

-- Runs one command on those of the given entries that the owner still has, and records their failures, in one step.
--
-- KEYS: the stream. ARGV: group, owner, deliveries, lowest and highest id or their milliseconds, key of the failure log
-- or '', seconds to keep it, key of the due times or '', milliseconds until the entries are due (0 removes their due
-- times). Then three lists, each after its length: words of the command before the ids, without the key; words after
-- the ids; the ids. With a failure log, one row for each id follows. A word 'IDS' at the end of the first list is
-- followed by the number of ids. The words 'ACK+DELETE' and a group stand for XACKDEL ... ACKED.
--
-- Last, for one entry whose publisher waits for its result: key of the result, field, record, milliseconds to keep it.
--
-- Returns: position, owner and deliveries (-1: not pending) of each entry that the owner does not have; the command's
-- reply; the error of the failure log, of the due times and of the result.

local group, owner, count, lowest, highest = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]
local record, seconds, due, delay, at = ARGV[6], ARGV[7], ARGV[8], tonumber(ARGV[9]), 9
local function words()
  local from = at + 2
  at = at + 1 + ARGV[at + 1]
  return {unpack(ARGV, from, at)}
end
local head, tail, ids = words(), words(), words()

-- Returns true if the first id is lower. Lua's numbers do not hold 64 bits, so digits are compared.
local function behind(last, id)
  local a, b = string.match(last, '(%d+)-(%d+)')
  local c, d = string.match(id, '(%d+)-(%d+)')
  if #a ~= #c then return #a < #c end
  if a ~= c then return a < c end
  if #b ~= #d then return #b < #d end
  return b < d
end

-- XACKDEL ... ACKED for servers without it: deletes entries that every group has read and none has pending
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

-- Without this, Redis 6.2 refuses a write after TIME
if delay > 0 and redis.replicate_commands then redis.replicate_commands() end

-- One XPENDING of the owner's rows in the range of the ids; ids that it does not return are looked up one by one
local found = {}
if #ids > 4 then
  local rows = redis.pcall('XPENDING', KEYS[1], group, lowest, highest, #ids + 32, owner)
  if rows.err then return rows end
  for i = 1, #rows do
    local row = rows[i]
    found[row[1]] = row[4]
  end
end
local mine, rows, refused, kept = {}, {}, {}, 0
for place = 1, #ids do
  local id = ids[place]
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
    kept = kept + 1
    mine[kept] = id
    if record ~= '' then rows[kept] = ARGV[at + place] end
  end
end
if kept == 0 then return {refused} end

local reply = false
if head[1] == 'ACK+DELETE' then
  reply = ack_and_delete(mine)
elseif head[1] then
  local call = {head[1], KEYS[1]}
  for i = 2, #head do call[#call + 1] = head[i] end
  if head[#head] == 'IDS' then call[#call + 1] = kept end
  local before = #call
  for i = 1, kept do call[before + i] = mine[i] end
  for _, word in ipairs(tail) do call[#call + 1] = word end
  reply = redis.pcall(unpack(call))
end
if type(reply) == 'table' and reply.err then return reply end

-- The command has run, so an error of the failure log is only reported
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

-- Without its due time, a delay is lost when the last worker ends, so this error is reported too
local late = false
if due ~= '' then
  local call, keep = {'ZREM', due}, seconds * 1000 + delay
  local time = delay > 0 and redis.call('TIME')
  if time then call[1] = 'ZADD' end
  for i = 1, kept do
    if time then call[#call + 1] = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000) + delay) end
    call[#call + 1] = mine[i]
  end
  local noted = redis.pcall(unpack(call))
  if type(noted) == 'table' and noted.err then
    late = noted.err
  elseif time and redis.call('PTTL', due) < keep then
    redis.call('PEXPIRE', due, string.format('%.0f', keep))
  end
end

-- After the command, so that the result belongs to the run whose outcome was accepted
local unkept, last = false, at + (record ~= '' and #ids or 0)
if ARGV[last + 1] then
  local noted = redis.pcall('HSET', ARGV[last + 1], ARGV[last + 2], ARGV[last + 3])
  if type(noted) == 'number' then noted = redis.pcall('PEXPIRE', ARGV[last + 1], ARGV[last + 4]) end
  if type(noted) == 'table' and noted.err then unkept = noted.err end
end
return {refused, reply, trouble, late, unkept}

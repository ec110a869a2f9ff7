-- Schedules of one stream: entries that wait for their time.
-- KEYS: the stream, ids by due time, contents by id, and a mark (add), the mover's name (move) or the times that recurring
-- schedules were placed at (place).
-- ARGV[1] is the operation. Each change of a schedule is one step, so nobody sees half of one.

if redis.replicate_commands then redis.replicate_commands() end -- Redis 6.2 needs it after TIME

local stream, due, content = KEYS[1], KEYS[2], KEYS[3]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function whole(number) return string.format('%.0f', number) end

-- add: id, mark's milliseconds (0 for none), due time ('' for now + delay), delay, replace, expires after ('' never),
-- packed words. Returns the due time, and 1 if the schedule is new or replaced another.
local function add()
  local id, lives, replace = ARGV[2], tonumber(ARGV[3]), ARGV[6] == '1'
  if lives > 0 then
    local seen = redis.call('GET', KEYS[4])
    if seen then return {seen, 0} end
  end
  local known = redis.call('ZSCORE', due, id)
  if known and not replace then return {known, 0} end
  local at = ARGV[4] ~= '' and tonumber(ARGV[4]) or now + tonumber(ARGV[5])
  local expires = ARGV[7] ~= '' and whole(at + tonumber(ARGV[7])) or '-'
  redis.call('HSET', content, id, expires .. ':' .. ARGV[8])
  redis.call('ZADD', due, whole(at), id)
  if lives > 0 then redis.call('SET', KEYS[4], whole(at), 'PX', lives) end
  return {whole(at), 1}
end

-- place: name, time of the firing ('' only asks), due time, expires after ('' never), '!' if the first word is a group
-- that must have handled all before it, packed words. A time is placed once, whoever places it.
-- Returns the last time placed ('' for none), 1 if it was placed now, now, and whether the schedule is paused.
local function place()
  local name = ARGV[2]
  local placed = redis.call('HGET', KEYS[4], name)
  local paused = redis.call('HEXISTS', KEYS[4], 'paused:' .. name)
  if ARGV[3] == '' or paused == 1 or (placed and tonumber(placed) >= tonumber(ARGV[3])) then
    return {placed or '', 0, whole(now), paused}
  end
  local id = name .. '@' .. ARGV[3]
  local expires = ARGV[5] ~= '' and whole(tonumber(ARGV[4]) + tonumber(ARGV[5])) or '-'
  redis.call('HSET', KEYS[4], name, ARGV[3])
  redis.call('HSET', content, id, expires .. ARGV[6] .. ':' .. ARGV[7])
  redis.call('ZADD', due, ARGV[4], id)
  return {ARGV[3], 1, whole(now), 0}
end

-- True while a group has entries of the stream to handle.
local function busy(group)
  if redis.call('EXISTS', stream) == 0 then return false end
  for _, row in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
    local facts = {}
    for at = 1, #row, 2 do facts[row[at]] = row[at + 1] end
    if facts.name == group then
      return facts.pending > 0 or #redis.call('XRANGE', stream, '(' .. facts['last-delivered-id'], '+', 'COUNT', 1) > 0
    end
  end
  return false
end

-- The expiry, whether the first word is a group, and the words of a content; nil where it is not one of ours.
local function unpacked(text)
  local from, to, expires, group = string.find(text, '^([%d-]+)(!?):')
  if not from then return nil end
  local words, at = {}, to + 1
  while at <= #text do
    local _, colon, size = string.find(text, '^(%d+):', at)
    if not colon or colon + tonumber(size) > #text then return nil end
    words[#words + 1] = string.sub(text, colon + 1, colon + tonumber(size))
    at = colon + tonumber(size) + 1
  end
  return expires, words, group == '!' and table.remove(words, 1)
end

-- move: the mover's name, its milliseconds, most schedules, most bytes.
-- Returns moved, dropped, the next due time ('' if nothing waits), now, the milliseconds until another mover's turn ends,
-- those skipped since an earlier one is not handled, and id and error of each that the server refused.
local function move()
  local holder = redis.call('GET', KEYS[4])
  if holder and holder ~= ARGV[2] then
    return {0, 0, '', whole(now), redis.call('PTTL', KEYS[4]), 0}
  end
  redis.call('SET', KEYS[4], ARGV[2], 'PX', ARGV[3])
  local moved, dropped, skipped, bytes, refused = 0, 0, 0, 0, {}
  local ids = redis.call('ZRANGEBYSCORE', due, '-inf', whole(now), 'LIMIT', 0, ARGV[4])
  for _, id in ipairs(ids) do
    local text = redis.call('HGET', content, id)
    local expires, words, group
    if text then
      bytes = bytes + #text
      if bytes > tonumber(ARGV[5]) and moved > 0 then break end
      expires, words, group = unpacked(text)
    end
    if text and not words then
      refused[#refused + 1] = id
      refused[#refused + 1] = 'its content is damaged'
      redis.call('ZADD', due, whole(now + 60000), id)
    elseif not text or (expires ~= '-' and now > tonumber(expires)) or (group and busy(group)) then
      if text and group and (expires == '-' or now <= tonumber(expires)) then
        skipped = skipped + 1
      else
        dropped = dropped + 1
      end
      redis.call('ZREM', due, id)
      redis.call('HDEL', content, id)
    else
      local reply = redis.pcall('XADD', stream, unpack(words))
      if type(reply) == 'table' and reply.err then
        refused[#refused + 1] = id
        refused[#refused + 1] = reply.err
        -- A fault of this entry or of its stream is put aside, so that it does not stop the rest. Any other error is one
        -- of the server, which the rest would meet as well.
        if not string.find(reply.err, '^WRONGTYPE') and not string.find(reply.err, '^ERR') then break end
        redis.call('ZADD', due, whole(now + 60000), id)
      else
        redis.call('ZREM', due, id)
        redis.call('HDEL', content, id)
        moved = moved + 1
      end
    end
  end
  local first = redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')
  local reply = {moved, dropped, first[2] or '', whole(now), 0, skipped}
  for _, word in ipairs(refused) do reply[#reply + 1] = word end
  return reply
end

-- cancel: ids. Returns those that waited.
local function cancel()
  local gone = {}
  for at = 2, #ARGV do
    if redis.call('ZREM', due, ARGV[at]) == 1 then
      redis.call('HDEL', content, ARGV[at])
      gone[#gone + 1] = ARGV[at]
    end
  end
  return gone
end

-- time: due time ('' for now + delay), delay, ids. Returns those that waited; their expiry moves along.
local function retime()
  local changed = {}
  local at = ARGV[2] ~= '' and tonumber(ARGV[2]) or now + tonumber(ARGV[3])
  for index = 4, #ARGV do
    local id = ARGV[index]
    local before = redis.call('ZSCORE', due, id)
    if before then
      local text = redis.call('HGET', content, id)
      local _, _, expires = string.find(text or '', '^(%d+)!?:')
      if expires then
        redis.call('HSET', content, id, whole(tonumber(expires) + at - before) .. string.match(text, '^%d+(!?:.*)$'))
      end
      redis.call('ZADD', due, whole(at), id)
      changed[#changed + 1] = id
    end
  end
  return changed
end

local operations = {add = add, move = move, cancel = cancel, time = retime, place = place}
return operations[ARGV[1]]()

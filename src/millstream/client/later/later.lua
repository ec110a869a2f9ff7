-- Schedules of one stream: entries that wait for their time.
-- KEYS: the stream, ids by due time, contents by id, and a mark (add), the mover's name (move) or the times that recurring
-- schedules were placed at (place).
-- ARGV[1] is the operation. Each change of a schedule is one step, so nobody sees half of one.

if redis.replicate_commands then redis.replicate_commands() end -- without this, Redis 6.2 refuses a write after TIME

local stream, due, content = KEYS[1], KEYS[2], KEYS[3]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function whole(number) return string.format('%.0f', number) end

-- add: id, mark's milliseconds (0 for none), due time ('' for now + delay), delay, replace, expires after ('' never),
-- packed words. Returns the due time, 1 if the schedule is new or replaced another, and 1 if no other waits.
local function add()
  local id, lives, replace = ARGV[2], tonumber(ARGV[3]), ARGV[6] == '1'
  if lives > 0 then
    local seen = redis.call('GET', KEYS[4])
    if seen then return {seen, 0, 0} end
  end
  local known = redis.call('ZSCORE', due, id)
  if known and not replace then return {known, 0, 0} end
  local at = ARGV[4] ~= '' and tonumber(ARGV[4]) or now + tonumber(ARGV[5])
  local score, expires = whole(at), ARGV[7] ~= '' and whole(at + tonumber(ARGV[7])) or '-'
  redis.call('HSET', content, id, expires .. ':' .. ARGV[8])
  redis.call('ZADD', due, score, id)
  if lives > 0 then redis.call('SET', KEYS[4], score, 'PX', lives) end
  return {score, 1, redis.call('ZCARD', due) == 1 and 1 or 0}
end
if ARGV[1] == 'add' then return add() end -- the busiest operation does not create the functions of the others

-- The last time that a schedule was placed at; nil for none, or where another program wrote something else.
local function placed_at(name)
  local found = redis.call('HGET', KEYS[4], name)
  return found and string.find(found, '^%d+$') and #found < 16 and found or nil
end

-- The time since which a declaration decides, and its fingerprint; nil for none.
local function decides(name)
  return string.match(redis.call('HGET', KEYS[4], 'table:' .. name) or '', '^(%d+):(.+)$')
end

-- define: name, when the declaration started ('' for one that decides in any case), its fingerprint, 1 if the one in
-- force has lapsed.
-- Of different declarations, the one that started last decides: workers of an earlier one place nothing more, and its
-- firing that is not due yet is removed. Returns 1 if this declaration decides.
local function define()
  local name, mine = ARGV[2], tonumber(ARGV[3]) or now
  local since, known = decides(name)
  if known == ARGV[4] then
    mine = math.max(mine, tonumber(since))
  elseif known and ARGV[3] ~= '' and ARGV[5] ~= '1' and tonumber(since) >= mine then
    return 0
  end
  redis.call('HSET', KEYS[4], 'table:' .. name, whole(mine) .. ':' .. ARGV[4])
  local placed = placed_at(name)
  if known and known ~= ARGV[4] and placed and tonumber(placed) > now then
    redis.call('ZREM', due, name .. '@' .. placed)
    redis.call('HDEL', content, name .. '@' .. placed)
    redis.call('HSET', KEYS[4], name, whole(now))
  end
  return 1
end

-- place: name, time of the firing ('' only asks), due time, expires after ('' never), '!' if the first word is a group
-- that must have handled all before it, packed words, the declaration's fingerprint. A time is placed once, whoever
-- places it. Returns the last time placed ('' for none), 1 if it was placed now, now, 1 if the schedule is paused, and
-- 1 if another declaration decides, or none.
local function place()
  local name = ARGV[2]
  local placed = placed_at(name)
  local paused = redis.call('HEXISTS', KEYS[4], 'paused:' .. name)
  local _, known = decides(name)
  local overruled = known ~= ARGV[8] and 1 or 0
  if ARGV[3] == '' or paused + overruled > 0 or (placed and tonumber(placed) >= tonumber(ARGV[3])) then
    return {placed or '', 0, whole(now), paused, overruled}
  end
  local id = name .. '@' .. ARGV[3]
  local expires = ARGV[5] ~= '' and whole(tonumber(ARGV[4]) + tonumber(ARGV[5])) or '-'
  redis.call('HSET', content, id, expires .. ARGV[6] .. ':' .. ARGV[7])
  redis.call('ZADD', due, ARGV[4], id)
  redis.call('HSET', KEYS[4], name, ARGV[3]) -- last: a key of a wrong type ends the step before it
  return {ARGV[3], 1, whole(now), 0, 0}
end

-- True while a group has entries of the stream to handle.
local function busy(group)
  if redis.call('EXISTS', stream) == 0 then return false end
  for _, row in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
    local facts = {}
    for at = 1, #row, 2 do facts[row[at]] = row[at + 1] end
    if facts.name == group then
      local last = facts['last-delivered-id']
      if last == '18446744073709551615-18446744073709551615' then return facts.pending > 0 end
      return facts.pending > 0 or #redis.call('XRANGE', stream, '(' .. last, '+', 'COUNT', 1) > 0
    end
  end
  return false
end

-- The expiry, whether the first word is a group, and the words of a content; nil where it is not one of ours.
local function unpacked(text)
  local _, to, expires, group = string.find(text, '^(%d+)(!?):')
  if not to then _, to, expires, group = string.find(text, '^(%-)(!?):') end
  if not to then return nil end
  local words, at = {}, to + 1
  while at <= #text and string.sub(text, at, at) ~= '=' do
    local _, colon, size = string.find(text, '^(%d+):', at)
    if not colon or colon + tonumber(size) > #text then return nil end
    words[#words + 1] = string.sub(text, colon + 1, colon + tonumber(size))
    if #words > 7600 then return nil end -- more than Lua passes on
    at = colon + tonumber(size) + 1
  end
  local first = group == '!' and table.remove(words, 1)
  if #words < 3 then return nil end
  return expires, words, first
end

-- move: the mover's name, its milliseconds, most schedules, most bytes.
-- Returns moved, dropped, the next due time ('' if nothing waits), now, the milliseconds until another mover's turn ends,
-- those skipped since an earlier one is not handled, 1 if the server takes no entry for now, and id and error of each
-- that it refused.
local function move()
  local holder = redis.call('GET', KEYS[4])
  if holder and holder ~= ARGV[2] then
    return {0, 0, '', whole(now), redis.call('PTTL', KEYS[4]), 0, 0}
  end
  -- Not at each check: an idle stream would write to the log and the replicas at each one
  if not holder or redis.call('PTTL', KEYS[4]) < ARGV[3] / 2 then redis.call('SET', KEYS[4], ARGV[2], 'PX', ARGV[3]) end
  local moved, dropped, skipped, bytes, refused, stopped = 0, 0, 0, 0, {}, 0
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
        -- Redis 7.0 and later versions write missing rights as an ERR
        local denied = string.find(reply.err, 'ACL failure', 1, true)
          or string.find(reply.err, 'user executing the script', 1, true)
        if denied or not (string.find(reply.err, '^WRONGTYPE') or string.find(reply.err, '^ERR')) then
          stopped = 1
          redis.call('DEL', KEYS[4]) -- another mover may have the rights that this one does not have
          break
        end
        redis.call('ZADD', due, whole(now + 60000), id)
      else
        redis.call('ZREM', due, id)
        redis.call('HDEL', content, id)
        moved = moved + 1
      end
    end
  end
  local first = redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')
  local reply = {moved, dropped, first[2] or '', whole(now), 0, skipped, stopped}
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

local operations = {move = move, cancel = cancel, time = retime, place = place, define = define}
return operations[ARGV[1]]()

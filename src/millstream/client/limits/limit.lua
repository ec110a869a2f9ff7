-- Takes permits of one limit, returns some, and keeps the slots of running entries.
--
-- KEYS: the rate's key, the slots' key. ARGV: microseconds for each permit (0: no rate), maximum of permits at once,
-- permits wanted, permits returned, the time in microseconds until which these count; maximum of slots (0: no limit),
-- milliseconds that a slot lasts, 'take', 'look', 'renew' or 'drop', and the names of slots.
--
-- Returns permits granted, milliseconds until the wanted ones are available (-1: unknown, since no slot is free), the
-- time in microseconds until which the granted ones count, slots in use.

-- Without this, Redis 6.2 refuses a write after TIME
if redis.replicate_commands then redis.replicate_commands() end
local each, burst, wanted = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local back, counts = tonumber(ARGV[4]), tonumber(ARGV[5])
local most, lease, act = tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[8]
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local ms = math.floor(now / 1000)
local granted, wait, used = wanted, 0, 0

-- Any client may write these keys: a key of another type is replaced
local function slots(...)
  local reply = redis.pcall(...)
  if type(reply) == 'table' and reply.err then
    if not string.find(reply.err, 'WRONGTYPE', 1, true) then return reply end
    redis.call('DEL', KEYS[2])
    reply = redis.call(...)
  end
  return reply
end

if act == 'drop' then
  for i = 9, #ARGV do slots('ZREM', KEYS[2], ARGV[i]) end
elseif most > 0 then
  local gone = slots('ZREMRANGEBYSCORE', KEYS[2], '-inf', string.format('%.0f', ms))
  if type(gone) == 'table' then return gone end
  used = redis.call('ZCARD', KEYS[2])
  if act ~= 'renew' and most - used < granted then
    granted = math.max(most - used, 0)
    if granted == 0 then wait = -1 end
  end
end

if each > 0 then
  local kept = redis.pcall('GET', KEYS[1])
  if type(kept) == 'table' and kept.err and not string.find(kept.err, 'WRONGTYPE', 1, true) then return kept end
  local filled = type(kept) == 'string' and tonumber(kept) or 0
  -- NaN does not equal itself; a large value is the debt of a slower rate
  if filled ~= filled then filled = 0 end
  local before = filled
  filled = math.min(filled, now + burst * each)
  if back > 0 and now < counts then filled = filled - back * each end
  local base = math.max(filled, now)
  local owed = (base - now) / each
  local room = math.floor(burst - owed + 0.000001)
  if wanted > 0 and wait == 0 and room < 1 then
    wait = math.max(math.ceil((owed + math.min(wanted, burst) - burst) * each / 1000), 1)
  end
  granted = math.max(math.min(granted, room), 0)
  if granted > 0 then filled = base + granted * each end
  if filled > now then
    if filled ~= before then
      redis.call('SET', KEYS[1], string.format('%.2f', filled), 'PX', math.ceil((filled - now) / 1000) + 1)
    end
  elseif back > 0 then
    redis.call('DEL', KEYS[1])
  end
  counts = filled
end

local named = 0
if act == 'renew' then named = #ARGV - 8 elseif act == 'take' and most > 0 then named = granted end
if named > 0 then
  for i = 9, 8 + named do slots('ZADD', KEYS[2], string.format('%.0f', ms + lease), ARGV[i]) end
  redis.call('PEXPIRE', KEYS[2], lease + 1000)
end
return {granted, wait, string.format('%.0f', counts), used}

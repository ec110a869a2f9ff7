-- Leases of partitions, and the members that share them. The first argument names the step.
--
-- take: KEYS: the owner, the time until which it has one, the fence counter. ARGV: 'take', consumer, milliseconds.
--   Returns the new fence number, or the text of the present owner.
-- renew, give: KEYS: the owner, the time. ARGV: the step, its text, milliseconds.
--   Returns 1; 0 if there is another owner, or none.
-- meet: KEYS: the members, the descriptor. ARGV: 'meet', name, its partitions, milliseconds.
--   Returns the descriptor, then alternating names and partitions of the members that reported within this time.
-- probe: returns 1.
if redis.replicate_commands then redis.replicate_commands() end
local step = ARGV[1]
if step == 'probe' then return 1 end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local function owned(milliseconds)
  redis.call('SET', KEYS[2], string.format('%.0f', now + milliseconds))
end
if step == 'take' then
  local owner = redis.call('GET', KEYS[1])
  if owner then return owner end
  local fence = redis.call('INCR', KEYS[3])
  redis.call('SET', KEYS[1], ARGV[2] .. ':' .. string.format('%.0f', fence), 'PX', ARGV[3])
  owned(ARGV[3])
  return fence
end
if step ~= 'meet' then
  if redis.call('GET', KEYS[1]) ~= ARGV[2] then return 0 end
  owned(ARGV[3])
  if step == 'renew' then return redis.call('PEXPIRE', KEYS[1], ARGV[3]) end
  return redis.call('DEL', KEYS[1])
end
local lasts = tonumber(ARGV[4])
redis.call('HSET', KEYS[1], ARGV[2], string.format('%.0f', now) .. ':' .. ARGV[3])
local rows, met = redis.call('HGETALL', KEYS[1]), {redis.call('GET', KEYS[2])}
for at = 1, #rows, 2 do
  local met_at, parts = string.match(rows[at + 1], '^(%d+):([%d,]*)$')
  if met_at and math.abs(now - tonumber(met_at)) <= lasts then
    met[#met + 1] = rows[at]
    met[#met + 1] = parts
  else
    redis.call('HDEL', KEYS[1], rows[at])
  end
end
redis.call('PEXPIRE', KEYS[1], string.format('%.0f', lasts * 10))
return met

-- Cancels an entry in one group, unless it has ended there.
--
-- KEYS: the stream, its results' hash, the cancelled entries. ARGV: group, id, milliseconds to keep the cancellation.
-- Returns 1 if it was cancelled, 0 if it has ended or no longer exists.

if redis.replicate_commands then redis.replicate_commands() end  -- Redis 6.2 refuses a write after TIME otherwise
local group, id = ARGV[1], ARGV[2]
if redis.call('HEXISTS', KEYS[2], group) == 1 then return 0 end
local open = #redis.call('XRANGE', KEYS[1], id, id) > 0
if redis.call('EXISTS', KEYS[1]) == 1 then
  for _, row in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
    local found = {}
    for at = 1, #row, 2 do found[row[at]] = row[at + 1] end
    if found.name == group then
      open = open and #redis.call('XRANGE', KEYS[1], '(' .. found['last-delivered-id'], id, 'COUNT', 1) > 0
      open = open or #redis.call('XPENDING', KEYS[1], group, id, id, 1) > 0
    end
  end
end
if not open then return 0 end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', string.format('%.0f', now - ARGV[3]))
redis.call('ZADD', KEYS[3], string.format('%.0f', now), id)
redis.call('PEXPIRE', KEYS[3], ARGV[3])
return 1

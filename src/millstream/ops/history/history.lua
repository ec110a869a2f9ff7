-- The lease of the history's writer, and its entries, in one step. No other process adds anything.
--
-- The lease has the time of its end as text. A key that expires would have the server look at it ten times a second.
-- An end that no writer can have set, as after the server's clock was set back, is ignored.
--
-- KEYS: the lease, then streams. ARGV: name of the writer, milliseconds of the lease (0 gives it back), then for each
-- stream: the milliseconds for which entries are kept, the name of the table's field, the table. Returns 1; 0 if another
-- has the lease.
if redis.replicate_commands then redis.replicate_commands() end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local owner, ends = string.match(redis.call('GET', KEYS[1]) or '', '^(.*) (%d+)$')
if owner and owner ~= ARGV[1] and tonumber(ends) > now and tonumber(ends) < now + 60000 then return 0 end
if ARGV[2] == '0' then return redis.call('DEL', KEYS[1]) end
redis.call('SET', KEYS[1], ARGV[1] .. ' ' .. string.format('%.0f', now + tonumber(ARGV[2])))
for at = 2, #KEYS do
  local word = 3 * at - 3
  local oldest = string.format('%.0f', math.max(now - tonumber(ARGV[word]), 0))
  -- After the clock was set back, an entry would get the time of the newest one, in the future
  local ahead = redis.call('XRANGE', KEYS[at], string.format('%.0f', now + 60000), '+', 'COUNT', 1)
  -- Further ahead than entries are kept: no entry would outlive the wait, so begin a new stream
  local first = #ahead > 0 and tonumber(string.match(ahead[1][1], '^%d+'))
  if first and first > now + tonumber(ARGV[word]) then
    redis.call('DEL', KEYS[at])
    ahead = {}
  end
  if #ahead == 0 then
    redis.call('XADD', KEYS[at], 'MINID', '~', oldest, '*', 'v', '1', ARGV[word + 1], ARGV[word + 2])
  end
end
return 1

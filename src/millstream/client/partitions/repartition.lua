-- Steps of a change of the number of partitions. The first argument names the step.
--
-- swap: KEYS: the descriptor. ARGV: 'swap', the descriptor before ('' for none) and after ('' removes it).
--   Returns 1; 0 if the descriptor has changed.
-- seal: KEYS: a stream. ARGV: 'seal', the highest id. Each later XADD to it fails. A missing stream is created.
-- try: KEYS: an unused key. ARGV: 'try', the highest id. Checks that a seal is possible, and removes the key.
if ARGV[1] == 'swap' then
  if (redis.call('GET', KEYS[1]) or '') ~= ARGV[2] then return 0 end
  if ARGV[3] == '' then redis.call('DEL', KEYS[1]) else redis.call('SET', KEYS[1], ARGV[3]) end
  return 1
end
if redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call('XGROUP', 'CREATE', KEYS[1], 'millstream', '0', 'MKSTREAM')
  redis.call('XGROUP', 'DESTROY', KEYS[1], 'millstream')
end
local done = redis.pcall('XSETID', KEYS[1], ARGV[2])
if ARGV[1] == 'try' then redis.call('DEL', KEYS[1]) end
return done

-- Declares a stream partitioned, and seals the key of its name: each later XADD to that key fails, for every client.
--
-- KEYS: the descriptor, the stream. ARGV: the descriptor, the highest id.
--
-- Returns the present descriptor; nil if the key of the name is in use.
local known = redis.call('GET', KEYS[1])
if known then return known end
local kind = redis.call('TYPE', KEYS[2]).ok
if kind == 'none' then
  redis.call('XGROUP', 'CREATE', KEYS[2], 'millstream', '0', 'MKSTREAM')
  redis.call('XGROUP', 'DESTROY', KEYS[2], 'millstream')
elseif kind ~= 'stream' or redis.call('XLEN', KEYS[2]) > 0 or #redis.call('XINFO', 'GROUPS', KEYS[2]) > 0 then
  return false
end
redis.call('XSETID', KEYS[2], ARGV[2])
redis.call('SET', KEYS[1], ARGV[1])
return ARGV[1]

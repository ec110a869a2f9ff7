if KEYS[2] and redis.call('GET', KEYS[2]) ~= ARGV[1] then return -1 end
local before = redis.call('GET', KEYS[1])
if before == 'done' then return 0 end
local skip, number, at = tonumber(before) or 0, 0, 3
redis.call('SET', KEYS[1], 'done', 'EX', ARGV[2])
while at <= #ARGV do
  local words = tonumber(ARGV[at])
  number = number + 1
  if number > skip then
    local reply = redis.pcall(unpack(ARGV, at + 1, at + words))
    if type(reply) == 'table' and reply.err then
      if number > 1 then redis.call('SET', KEYS[1], number - 1, 'EX', ARGV[2]) else redis.call('DEL', KEYS[1]) end
      return reply
    end
  end
  at = at + words + 1
end
return 1

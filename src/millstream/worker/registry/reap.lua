local alive, removed = {}, {}
for i = 3, #ARGV do alive[ARGV[i]] = true end
for _, row in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
  local facts = {}
  for i = 1, #row, 2 do facts[row[i]] = row[i + 1] end
  if facts.pending == 0 and facts.idle >= tonumber(ARGV[2]) and not alive[facts.name] then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], facts.name)
    removed[#removed + 1] = facts.name
  end
end
return removed

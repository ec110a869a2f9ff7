local function open(id)
  local rows = redis.pcall('XRANGE', KEYS[1], id, id)
  if rows.err or #rows == 0 then return false end
  local asked = false
  for _, row in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
    local group = {}
    for at = 1, #row, 2 do group[row[at]] = row[at + 1] end
    if ARGV[4] == '' or group.name == ARGV[4] then
      asked = true
      local all = group['last-delivered-id'] == '18446744073709551615-18446744073709551615'
      if not all and #redis.call('XRANGE', KEYS[1], '(' .. group['last-delivered-id'], id, 'COUNT', 1) > 0 then return true end
      if #redis.call('XPENDING', KEYS[1], group.name, id, id, 1) > 0 then return true end
    end
  end
  return not asked
end
local marked, unique = ARGV[1] ~= '0', ARGV[2] ~= '0'
local id = marked and redis.call('GET', KEYS[2])
if id then return id end
id = unique and redis.call('GET', KEYS[3])
if id and (ARGV[3] == '1' or open(id)) then return id end
id = redis.call('XADD', KEYS[1], unpack(ARGV, 5))
if marked then redis.call('SET', KEYS[2], id, 'PX', ARGV[1]) end
if unique then redis.call('SET', KEYS[3], id, 'PX', ARGV[2]) end
return id

-- Writes dead letters and acknowledges their entries, in one step.
--
-- KEYS: the stream, the dead-letter stream. ARGV: group, owner, key of the failure log or '', key of the due times or '',
-- XADD's words before the id, after their number; then for each letter: id, deliveries, its words after their number;
-- key, field, record and milliseconds of its result (an empty key: none).
--
-- Returns for each letter 1: written, 0: not pending, -1: another owner has it, or the error that prevented it.

local group, owner, failures, due, trim, replies = ARGV[1], ARGV[2], ARGV[3], ARGV[4], {}, {}
local at = 5 + tonumber(ARGV[5])
for i = 6, at do trim[#trim + 1] = ARGV[i] end
-- If XACK were refused after XADD, an entry that is still handled would have a letter: so XACK is tried first
local allowed = redis.pcall('XACK', KEYS[1], group, '0-0')
if type(allowed) == 'table' then return allowed end
while at < #ARGV do
  local id, count, size = ARGV[at + 1], tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
  local rows = redis.pcall('XPENDING', KEYS[1], group, id, id, 1)
  local found
  if rows.err then
    found = rows.err
  elseif not rows[1] then
    found = 0
  elseif rows[1][2] ~= owner or rows[1][4] ~= count then
    found = -1
  else
    local call = {'XADD', KEYS[2]}
    for _, word in ipairs(trim) do call[#call + 1] = word end
    call[#call + 1] = '*'
    for i = at + 4, at + 3 + size do call[#call + 1] = ARGV[i] end
    -- XADD comes before XACK: if the letter cannot be written, the entry stays pending
    local added = redis.pcall(unpack(call))
    if type(added) == 'table' then
      found = added.err
    else
      redis.call('XACK', KEYS[1], group, id)
      if failures ~= '' then redis.pcall('HDEL', failures, id) end
      if due ~= '' then redis.pcall('ZREM', due, id) end
      local result = ARGV[at + 4 + size]
      if result ~= '' then
        redis.pcall('HSET', result, ARGV[at + 5 + size], ARGV[at + 6 + size])
        redis.pcall('PEXPIRE', result, ARGV[at + 7 + size])
      end
      found = 1
    end
  end
  replies[#replies + 1] = found
  at = at + 7 + size
end
return replies

-- Figures of packs, of the disk and of retention, for redis_exporter -script tier.lua: each number of INFO's section tier
-- becomes redis_script_values{key="tier_entries"} and so on. A server without a tier has none of them.
local found = {}

local function add(name, value)
  if tonumber(value) then
    found[#found + 1] = name
    found[#found + 1] = value
  end
end

local fails = { ['disk-low'] = '1', ['disk-full'] = '1', ['error'] = '1' }
for name, value in string.gmatch(redis.call('INFO', 'tier'), '(tier_[a-z_]+):([^\r\n]*)') do
  add(name, value)
  for part, number in string.gmatch(value, '(p%d+)=(%d+)') do
    add(name .. '_' .. part, number)
  end
  if name == 'tier_last_spill_status' then
    add('tier_spilling_fails', fails[value] or '0')
  end
end
for name, value in string.gmatch(redis.call('INFO', 'stats'), '(retention_[a-z_]+):(%d+)') do
  add(name, value)
end
-- Bytes that may still be written; the server reports -1 if the system does not tell
local free = string.match(redis.call('INFO', 'persistence'), 'millstream_disk_free:(%d+)')
add('disk_free', free)
return found

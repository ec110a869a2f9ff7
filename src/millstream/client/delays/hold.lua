-- Keeps delayed entries out of reach of claims until they are due, and removes due times that are no longer needed.
--
-- KEYS: the stream. ARGV: group, key of the due times, consumer that holds delayed entries, idle time in milliseconds
-- from which entries are claimed, rank of the first due time to check, number of them, longest delay in milliseconds, key
-- of the last search, start of this search: 0 starts one unless another process searches or did so lately, -1 always.
--
-- Returns the number of due times checked, the ids of delayed entries that left their stream, the number of all due
-- times, the start of this search, and the age in milliseconds of another process's search that suffices.
--
-- The key of the last search holds its idle time, its start (0 while it runs), and the time until which it counts. A
-- reader with a lower idle time can claim entries that a search for a higher one put off, so searches are not shared.

local group, due, waiting, min_idle = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local first, many, longest = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local last, begun, every = ARGV[8], tonumber(ARGV[9]), math.floor(min_idle / 4)
local nothing = {0, {}, 0, 0, 0}
-- Without this, Redis 6.2 refuses a write after TIME
if redis.replicate_commands then redis.replicate_commands() end
local kept = redis.pcall('ZCARD', due)
if type(kept) == 'table' or kept == 0 then return nothing end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if begun == 0 then
  local text = redis.pcall('GET', last) -- an error instead of a text if the user lacks the right
  local idle, since, till = string.match(type(text) == 'string' and text or '', '^(%d+) (%d+) (%d+)$')
  if idle == ARGV[4] and tonumber(till) > now and tonumber(till) <= now + every then
    return {0, {}, kept, 0, math.max(math.min(now - tonumber(since), every), 0)}
  end
end
if begun <= 0 then begun = now end
local noted = redis.pcall('ZREMRANGEBYSCORE', due, '-inf', string.format('%.0f', now))
if type(noted) == 'table' then return nothing end -- the user has no right to write it
local found = redis.pcall('ZRANGE', due, first, first + many - 1, 'WITHSCORES')
local far, gone = {'XCLAIM', KEYS[1], group, waiting, 0}, {}
-- One query for the range of ids finds nearly all that wait; the loop asks for each of the others
local rows, low, high = {}, math.huge, 0
for at = 1, #found, 2 do
  local ms = tonumber(string.match(found[at], '^(%d+)%-%d+$') or low)
  low, high = math.min(low, ms), math.max(high, ms)
end
if #found > 2 then
  local ends = {string.format('%.0f', low), string.format('%.0f', high)}
  local held = redis.pcall('XPENDING', KEYS[1], group, ends[1], ends[2], 2 * many, waiting)
  for _, one in ipairs(held.err and {} or held) do rows[one[1]] = one end
end
for at = 1, #found, 2 do
  local id, left, row = found[at], tonumber(found[at + 1]) - now, nil
  -- Any client may write this key: members that are not ids, and times beyond the longest delay, are removed
  if left <= longest and string.find(id, '^%d+%-%d+$') then
    local reply = rows[id] and {rows[id]} or redis.pcall('XPENDING', KEYS[1], group, id, id, 1)
    if reply.err and string.find(reply.err, '^NOGROUP') then
      redis.call('DEL', due)
      return nothing
    end
    -- Without the right to XPENDING nothing is known of the entry, so its due time stays
    if reply.err and not string.find(reply.err, 'Invalid stream ID', 1, true) then return nothing end
    row = reply[1]
  end
  if not row or row[1] ~= id then
    redis.call('ZREM', due, id)
  elseif row[2] == waiting or row[2] == '' then -- else a worker handles it
    local idle = math.max(min_idle - left, 0)
    if idle == 0 then
      far[#far + 1] = id
    elseif row[2] == '' or math.abs(row[3] - idle) > 2 then
      local taken = redis.pcall('XCLAIM', KEYS[1], group, waiting, 0, id, 'IDLE', string.format('%.0f', idle), 'JUSTID')
      if not taken.err and not taken[1] then gone[#gone + 1] = id end
    end
  end
end
if #far > 5 then
  local ids = {}
  for at = 6, #far do ids[far[at]] = true end
  far[#far + 1] = 'JUSTID'
  local taken = redis.pcall(unpack(far))
  if not taken.err then
    for _, id in ipairs(taken) do ids[id] = nil end
    for id in pairs(ids) do gone[#gone + 1] = id end
  end
end
for _, id in ipairs(gone) do redis.call('ZREM', due, id) end
-- If this process dies between two pages, the others wait only half of their interval
local since, till = 0, now + math.floor(every / 2)
if #found < 2 * many then since, till = begun, begun + every end
redis.pcall('SET', last, string.format('%s %.0f %.0f', ARGV[4], since, till), 'PX', math.max(every, 1))
return {#found / 2, gone, kept, begun, 0}

-- Keeps delayed entries out of reach of every claim until they are due, and forgets the due times that nobody needs.
--
-- KEYS: the stream. ARGV: group, key of the due times, consumer that holds what waits, milliseconds of idle time from
-- which entries are claimed, rank of the first due time to look at, how many, milliseconds that no delay exceeds, key of
-- the last search, when this search began: 0 begins one unless another process searches or did so lately, -1 in any case.
--
-- Returns how many due times were looked at, the ids of delayed entries that left their stream, how many due times there
-- are, when this search began, and the age of another's search in milliseconds where that serves.
--
-- The last search: idle time that it was for, when it began (0 while it is under way), until when it counts. Entries are
-- claimable by a reader of a lower idle time that another has put off, so a search serves readers of its own alone.

local group, due, waiting, min_idle = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local first, many, longest = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local last, begun, every = ARGV[8], tonumber(ARGV[9]), math.floor(min_idle / 4)
local nothing = {0, {}, 0, 0, 0}
-- Redis 6.2 refuses a write behind TIME otherwise
if redis.replicate_commands then redis.replicate_commands() end
local kept = redis.pcall('ZCARD', due)
if type(kept) == 'table' or kept == 0 then return nothing end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if begun == 0 then
  local text = redis.pcall('GET', last) -- an error, and so no text, where the user may not
  local idle, since, till = string.match(type(text) == 'string' and text or '', '^(%d+) (%d+) (%d+)$')
  if idle == ARGV[4] and tonumber(till) > now and tonumber(till) <= now + every then
    return {0, {}, kept, 0, math.max(math.min(now - tonumber(since), every), 0)}
  end
end
if begun <= 0 then begun = now end
local noted = redis.pcall('ZREMRANGEBYSCORE', due, '-inf', string.format('%.0f', now))
if type(noted) == 'table' then return nothing end -- the user may only read it
local found = redis.pcall('ZRANGE', due, first, first + many - 1, 'WITHSCORES')
local far, gone = {'XCLAIM', KEYS[1], group, waiting, 0}, {}
for at = 1, #found, 2 do
  local id, left, row = found[at], tonumber(found[at + 1]) - now, nil
  -- the key is anybody's to write: a member that is no id, or a time that no delay reaches, is forgotten
  if left <= longest and string.find(id, '^%d+%-%d+$') then
    local rows = redis.pcall('XPENDING', KEYS[1], group, id, id, 1)
    if rows.err and string.find(rows.err, '^NOGROUP') then
      redis.call('DEL', due)
      return nothing
    end
    -- whoever may not look does not know what is pending: no due time is forgotten for that
    if rows.err and not string.find(rows.err, 'Invalid stream ID', 1, true) then return nothing end
    row = rows[1]
  end
  if not row or row[1] ~= id then
    redis.call('ZREM', due, id)
  elseif row[2] == waiting or row[2] == '' then -- else somebody works on it
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
-- A process that dies between two pages holds up the others for half of their time only
local since, till = 0, now + math.floor(every / 2)
if #found < 2 * many then since, till = begun, begun + every end
redis.pcall('SET', last, string.format('%s %.0f %.0f', ARGV[4], since, till), 'PX', math.max(every, 1))
return {#found / 2, gone, kept, begun, 0}

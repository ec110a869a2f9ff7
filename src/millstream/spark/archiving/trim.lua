#!lua
local function parts(id)
  local ms, seq = string.match(id, '^(%d+)-(%d+)$')
  return ms, seq
end
-- Lua's numbers are exact only up to 2^53, and parts of an id exceed that: digits are compared.
local function less(a, b)
  if #a ~= #b then return #a < #b end
  return a < b
end
local function before(one, other)
  local ms, seq = parts(one)
  local ms2, seq2 = parts(other)
  if ms ~= ms2 then return less(ms, ms2) end
  return less(seq, seq2)
end
local function plus(digits)
  local head, last, nines = string.match(digits, '^(%d-)(%d?)(9*)$')
  if last == '' then return '1' .. nines:gsub('9', '0') end
  return head .. (tonumber(last) + 1) .. nines:gsub('9', '0')
end
local function after(id)
  local ms, seq = parts(id)
  if seq == '18446744073709551615' then
    if ms == seq then return id end  -- no id is greater, so this entry stays
    return plus(ms) .. '-0'
  end
  return ms .. '-' .. plus(seq)
end
local function named(flat)
  local found = {}
  for at = 1, #flat, 2 do found[flat[at]] = flat[at + 1] end
  return found
end

-- Returns the first entry's id, and a hash of the first entries up to an id, a sample of the rest, and the entry with
-- that id. The hash detects another stream that begins with the same entry and has the same length.
local function oldest(bound)
  local first = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)
  if not first[1] then return '', '' end
  local words = {}
  local function take(rows)
    for _, row in ipairs(rows) do
      table.insert(words, row[1])
      for _, word in ipairs(row[2]) do table.insert(words, #word .. ':' .. word) end
    end
  end
  take(first)
  take(redis.call('XRANGE', KEYS[1], '-', bound, 'COUNT', 16))
  local low, high = tonumber((parts(first[1][1]))), tonumber((parts(bound)))
  if high < 2^62 then
    for at = 1, 8 do
      take(redis.call('XRANGE', KEYS[1], string.format('%.0f', low + (high - low) * at / 9), bound, 'COUNT', 1))
    end
  end
  take(redis.call('XRANGE', KEYS[1], bound, bound))
  return first[1][1], first[1][1] .. ' ' .. redis.sha1hex(table.concat(words, ' '))
end

local key, archived, archived_n, keep_ms, keep, cut = KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
if redis.call('EXISTS', key) == 0 then return {'gone'} end
local stream = named(redis.call('XINFO', 'STREAM', key))
local length = stream['length']
if before(stream['last-generated-id'], archived) or stream['entries-added'] < tonumber(archived_n) then
  return {'back', stream['last-generated-id'], stream['entries-added']}
end

-- The caller sends the hash of the entries that it archived; with another hash the key may hold another stream.
local first, mark = oldest(ARGV[8])
if cut == '1' and mark ~= ARGV[7] then
  first, mark = oldest(archived)
  return {'look', first, length, mark}
end

local limit, why = after(archived), {'archive'}
local function hold(id, ...)
  if before(id, limit) then limit, why = id, {...} end
end
for _, flat in ipairs(redis.call('XINFO', 'GROUPS', key)) do
  local group = named(flat)
  hold(after(group['last-delivered-id']), 'read', group['name'], group['last-delivered-id'])
  if group['pending'] > 0 then
    local oldest = redis.call('XPENDING', key, group['name'], '-', '+', 1)[1]
    if oldest then hold(oldest[1], 'pending', group['name'], oldest[1], oldest[2]) end
  end
end
if keep_ms ~= '' then
  local now = redis.call('TIME')
  local floor = math.max(0, now[1] * 1000 + math.floor(now[2] / 1000) - tonumber(keep_ms))
  hold(string.format('%.0f-0', floor), 'age')
end
local more = 0
if keep ~= '' then
  local spare = length - tonumber(keep)
  if spare <= 0 then
    hold('0-0', 'count')
  elseif cut == '1' and limit ~= '0-0' then  -- no range ends before 0-0
    local step = math.min(spare, tonumber(ARGV[6]))
    local rows = redis.call('XRANGE', key, '-', '(' .. limit, 'COUNT', step)
    if #rows == step then
      if step < spare then more = 1 else why = {'count'} end
      limit = after(rows[step][1])
    end
  end
end
local trimmed = 0
if cut == '1' then trimmed = redis.call('XTRIM', key, 'MINID', '=', limit) end
first, mark = oldest(archived)
return {'done', limit, trimmed, length - trimmed, more, why, mark}

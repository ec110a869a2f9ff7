-- The functions of Lua's own libraries whose one call could take for ever, or end the process: here each has a bound, or
-- is written in Lua, in which the clock is looked at. Loaded once; returns the functions by library. What they find, and
-- the words and places of their errors, are those of the functions they stand for.
--
-- Rules for this file: a function of C is called with `plain_pcall` and through `settled`, directly from the function
-- that a script calls, so that the place of an error is the script's.

local spend, look, ask, frozen, patterns, chance = ...

local plain_pcall, error, getinfo, plain_getmetatable = pcall, error, debug.getinfo, debug.getmetatable
local collectgarbage = collectgarbage
local next, pairs, rawget, rawset, select, setmetatable = next, pairs, rawget, rawset, select, setmetatable
local plain_tostring, tonumber, type, plain_unpack = tostring, tonumber, type, unpack
local find, format, gsub, sub = string.find, string.format, string.gsub, string.sub
local match, gmatch = string.match, string.gmatch
local floor, ceil = math.floor, math.ceil
local price_of, quick_length, slow = patterns.price, patterns.quick_length, patterns.slow

-- Steps one call of Lua's own matcher may take at most, a few tenths of a second
local STEPS = 2 ^ 25
-- Items that one call of C may move
local ITEMS = 1000
-- Patterns that stand for themselves are remembered up to this length
local LEARNED = 64
-- Items that Lua's own sort gets at most, and the bytes of each
local SORTED, SORTED_TEXT = 4000, 100
-- Values that fit on the stack of one call, Lua's LUAI_MAXCSTACK
local STACK = 8000

---------------------------------------------------------------------- errors

-- How Lua's own functions say what is wrong; a text without a place that begins so is theirs, not a callback's
local OWN = {
  'bad argument #', 'malformed pattern ', 'invalid ', 'unfinished capture', 'unbalanced pattern', 'missing ', 'too many ',
  'pattern too complex', 'wrong number of ', 'string slice too long', 'unable to dump ', 'stack overflow',
}

local function is_own(text)
  for at = 1, #OWN do
    if sub(text, 1, #OWN[at]) == OWN[at] then
      return true
    end
  end
  return false
end

local PLACES = { natives = '', patterns = '' }

local function is_ours(place)
  return PLACES[match(place, '^%l+')]
end

-- An error of a function of C as if the function of ours were it. Called by `settled`, which the function called.
local function refuse(problem)
  if type(problem) == 'string' then
    problem = gsub(problem, '^%l+:%d+: ', is_ours) -- an operator in a file of ours, in Redis one of C
  end
  if type(problem) ~= 'string' or not is_own(problem) then
    error(problem, 0)
  end
  local called = getinfo(3, 'n')
  if called.name then
    local at, rest = match(problem, "^bad argument #(%d+) to '%?'(.*)$")
    if at and called.namewhat == 'method' then
      at = at - 1
    end
    if at == 0 then
      problem = "calling '" .. called.name .. "' on bad self" .. rest
    elseif at then
      problem = 'bad argument #' .. at .. " to '" .. called.name .. "'" .. rest
    end
  end
  error(problem, 4)
end

local function settled(ok, ...)
  if not ok then
    refuse((...))
  end
  return ...
end

-- An error of a function below, as one of C says it
local function bad(at, reason)
  error('bad argument #' .. at .. " to '?' (" .. reason .. ')', 0)
end

-- What scripts share stays as it is
local function readonly()
  error({ err = 'ERR Attempt to modify a readonly table' })
end

-- An argument as Lua's functions of C read one: 32 bits, the fraction cut off; nil if it is not a number
local function as_int(value)
  value = tonumber(value)
  if not value then
    return nil
  elseif value ~= value or value >= 2 ^ 63 or value < -2 ^ 63 then
    return 0
  end
  value = (value < 0 and ceil(value) or floor(value)) % 2 ^ 32
  return value < 2 ^ 31 and value or value - 2 ^ 32
end

-- An optional argument of that kind
local function as_optional(value, default)
  if value == nil then
    return default
  end
  return as_int(value)
end

-- An argument as Lua's functions of C read text; nil if it is none
local function as_text(value)
  local kind = type(value)
  return kind == 'string' and value or kind == 'number' and plain_tostring(value) or nil
end

---------------------------------------------------------------------- strings

local strings = {}
for name, value in pairs(string) do
  strings[name] = value
end
strings.dump = nil

-- Their time grows with the length of the text alone
for _, name in pairs({ 'upper', 'lower', 'reverse' }) do
  local native = string[name]
  strings[name] = function(...)
    local text = ...
    if type(text) == 'string' then
      spend(#text)
    end
    return settled(plain_pcall(native, ...))
  end
end

local function measured(ok, text, ...)
  if ok and #text > ITEMS then
    spend(#text)
  end
  return ok, text, ...
end

-- A function of C that makes one text
local function making(native)
  return function(...)
    local ok, text = plain_pcall(native, ...)
    if not ok then
      settled(ok, text)
    elseif #text > ITEMS then
      spend(#text)
    end
    return text
  end
end

strings.format = making(format)

local repeated = string.rep

function strings.rep(...)
  local text, count = ...
  text, count = as_text(text), as_int(count)
  if text and count then
    if text == '' or count <= 0 then
      return ''
    end
    spend(#text * count) -- what is made is bounded by the memory
  end
  return settled(plain_pcall(repeated, ...))
end

-- Whether a pattern is searched for as it stands. Lua looks for signs before the first zero byte only
local function is_plain(pattern)
  local nul = find(pattern, '\0', 1, true)
  return not find(nul and sub(pattern, 1, nul - 1) or pattern, '[%^%$%*%+%?%.%(%[%%%-]')
end

-- Whether Lua's matcher might take too long; else its price is charged
local function is_costly(text, pattern, may_anchor)
  local price = price_of(#text, pattern, may_anchor)
  if price > STEPS then
    return true
  end
  spend(price)
  return false
end

local function plain_find(text, pattern, init)
  init = init < 0 and init + #text or init - 1
  local at = ask('find', text, pattern, init < 0 and 0 or init)
  if at >= 0 then
    return at + 1, at + #pattern
  end
end

local function general_find(...)
  local text, pattern, init, plain = ...
  text, pattern, init = as_text(text), as_text(pattern), as_optional(init, 1)
  if not text or not pattern or not init then
    return plain_pcall(find, ...)
  elseif plain or is_plain(pattern) then
    if #text * #pattern > STEPS then
      return plain_pcall(plain_find, text, pattern, init)
    end
    spend(#text * #pattern)
    if not plain and #pattern < LEARNED then
      price_of(#text, pattern, true) -- the next time it is quick
    end
  elseif is_costly(text, pattern, true) then
    return plain_pcall(slow.find, text, pattern, init)
  end
  return plain_pcall(find, ...)
end

-- Most calls search a short text by a sound pattern: that costs nothing worth counting, and cannot fail
local function is_quick(text, pattern)
  return type(text) == 'string' and #text <= (quick_length[pattern] or -1)
end

function strings.find(...)
  local text, pattern, init, plain = ...
  if init == nil and not plain and is_quick(text, pattern) then
    return find(text, pattern)
  elseif plain and type(init) == 'number' and type(text) == 'string' and type(pattern) == 'string' then
    if #text * #pattern <= ITEMS then
      return find(text, pattern, init, true)
    end
  end
  return settled(general_find(...))
end

local function general_match(native, slowly, may_anchor, ...)
  local text, pattern, init = ...
  text, pattern, init = as_text(text), as_text(pattern), may_anchor and as_optional(init, 1) or 1
  if text and pattern and init and is_costly(text, pattern, may_anchor) then
    return plain_pcall(slowly, text, pattern, init)
  end
  return plain_pcall(native, ...)
end

function strings.match(...)
  local text, pattern, init = ...
  if init == nil and is_quick(text, pattern) then
    return match(text, pattern)
  end
  return settled(general_match(match, slow.match, true, ...))
end

function strings.gmatch(...)
  return settled(general_match(gmatch, slow.gmatch, false, ...))
end

strings.gfind = strings.gmatch -- Lua 5.0's name, which Redis has too

local REPLACEMENTS = { string = true, number = true, ['function'] = true, table = true }

local function general_gsub(...)
  local text, pattern, with, most = ...
  text, pattern = as_text(text), as_text(pattern)
  most = text and as_optional(most, #text + 1)
  if text and pattern and most and REPLACEMENTS[type(with)] and is_costly(text, pattern, true) then
    return plain_pcall(slow.gsub, text, pattern, as_text(with) or with, most)
  end
  return plain_pcall(gsub, ...)
end

function strings.gsub(...)
  local text, pattern, with, most = ...
  if most == nil and is_quick(text, pattern) and type(with) == 'string' and #with <= ITEMS then
    if not find(with, '%', 1, true) then
      return gsub(text, pattern, with)
    end
  end
  return settled(measured(general_gsub(...)))
end

---------------------------------------------------------------------- tables

local tables = {}
for name, value in pairs(table) do
  tables[name] = value
end
local concat, insert, remove, sort = table.concat, table.insert, table.remove, table.sort

function tables.concat(...)
  local list = ...
  if type(list) == 'table' and #list > ITEMS then
    spend(#list)
  end
  return settled(measured(plain_pcall(concat, ...)))
end

function tables.insert(...)
  local list, place, value = ...
  if type(list) == 'table' then
    local count = select('#', ...)
    if frozen[list] and (count == 2 or count == 3) then
      readonly()
    elseif count == 2 then
      return insert(list, place) -- at the end
    end
    place = count == 3 and as_int(place)
    local last = #list + 1
    if place and last - place > ITEMS then
      for at = last, place + 1, -1 do
        rawset(list, at, rawget(list, at - 1))
      end
      rawset(list, place, value)
      return
    end
  end
  return settled(plain_pcall(insert, ...))
end

function tables.remove(...)
  local list, place = ...
  if type(list) == 'table' then
    local last = #list
    place = as_optional(place, last)
    if place and place >= 1 and last - place > ITEMS then
      local removed = rawget(list, place)
      for at = place, last - 1 do
        rawset(list, at, rawget(list, at + 1))
      end
      rawset(list, last, nil)
      return removed
    end
  end
  return settled(plain_pcall(remove, ...))
end

-- The checks of arguments are those of the function that ours stands for
local function rewritten(name, body)
  local native = table[name]
  tables[name] = function(...)
    local list, with = ...
    if type(list) == 'table' and (type(with) == 'function' or name == 'maxn' or (name == 'sort' and with == nil)) then
      return settled(plain_pcall(body, list, with))
    end
    return settled(plain_pcall(native, ...))
  end
end

rewritten('maxn', function(list)
  local largest = 0
  for key in next, list do
    if type(key) == 'number' and key > largest then
      largest = key
    end
  end
  return largest
end)

rewritten('foreach', function(list, call)
  for key, value in next, list do
    local found = call(key, value)
    if found ~= nil then
      return found
    end
  end
end)

rewritten('foreachi', function(list, call)
  for at = 1, #list do
    local found = call(at, rawget(list, at))
    if found ~= nil then
      return found
    end
  end
end)

local function is_less(one, other)
  return one < other
end

local function swap(list, i, j)
  local one, other = rawget(list, i), rawget(list, j)
  rawset(list, i, other)
  rawset(list, j, one)
end

-- Three items in order: the median is the pivot
local function sort_three(list, from, to, less)
  if less(rawget(list, to), rawget(list, from)) then
    swap(list, from, to)
  end
  if to - from == 1 then
    return
  end
  local middle = floor((from + to) / 2)
  if less(rawget(list, middle), rawget(list, from)) then
    swap(list, middle, from)
  elseif less(rawget(list, to), rawget(list, middle)) then
    swap(list, middle, to)
  end
  return middle
end

-- Parts what lies between by the pivot, which waits at to - 1; where the pivot belongs
local function part(list, from, to, less)
  local pivot, i, j = rawget(list, to - 1), from, to - 1
  while true do
    i = i + 1
    while less(rawget(list, i), pivot) do
      if i > to then
        error('invalid order function for sorting', 0)
      end
      i = i + 1
    end
    j = j - 1
    while less(pivot, rawget(list, j)) do
      if j < from then
        error('invalid order function for sorting', 0)
      end
      j = j - 1
    end
    if j < i then
      swap(list, to - 1, i)
      return i
    end
    swap(list, i, j)
  end
end

-- Lua 5.1's quicksort step by step, so that equal items end where they end there
local function quicksort(list, from, to, less)
  while from < to do
    local middle = sort_three(list, from, to, less)
    if to - from < 3 then
      return
    end
    swap(list, middle, to - 1)
    local place = part(list, from, to, less)
    if place - from < to - place then
      quicksort(list, from, place - 1, less)
      from = place + 1
    else
      quicksort(list, place + 1, to, less)
      to = place - 1
    end
  end
end

-- Whether Lua's own sort is quick at worst, with the square of the number of comparisons, and cannot fail
local function is_simple(list, count)
  local kind = type(rawget(list, 1))
  for at = 1, count do
    local value = rawget(list, at)
    if type(value) ~= kind or value ~= value or (kind == 'string' and #value > SORTED_TEXT) then
      return false
    end
  end
  return kind == 'number' or kind == 'string'
end

rewritten('sort', function(list, less)
  local count = #list
  if not less and count <= SORTED and is_simple(list, count) then
    spend(count * count)
    return sort(list)
  end
  quicksort(list, 1, count, less or is_less)
end)

---------------------------------------------------------------------- numbers

local maths = {}
for name, value in pairs(math) do
  maths[name] = value
end

local LARGEST = 2 ^ 31 - 1
local state -- 48 bits: chance's at first, or what the script set

local function seed(value)
  state = value % 2 ^ 32 * 2 ^ 16 + 0x330E
end

-- drand48's next 31 bits, as Redis makes them
local function draw()
  local high, low = floor(state / 2 ^ 24), state % 2 ^ 24
  local upper = (high * 0xECE66D + low * 0x5DE) % 2 ^ 24
  state = (upper * 2 ^ 24 + low * 0xECE66D + 0xB) % 2 ^ 48
  return floor(state / 2 ^ 17)
end

local function limits(count, ...)
  for at = 1, count do
    local value = select(at, ...)
    if not as_int(value) then
      bad(at, 'number expected, got ' .. type(value))
    end
  end
  if count == 1 then
    return 1, as_int((...)), 1
  end
  return as_int((...)), as_int((select(2, ...))), 2
end

local function random(count, ...)
  local drawn = draw() % LARGEST / LARGEST
  if count == 0 then
    return drawn
  elseif count > 2 then
    error('wrong number of arguments', 0)
  end
  local least, most, at = limits(count, ...)
  if least > most then
    bad(at, 'interval is empty')
  end
  return floor(drawn * as_int(most - least + 1)) + least
end

function maths.random(...)
  return settled(plain_pcall(random, select('#', ...), ...))
end

function maths.randomseed(...)
  return settled(plain_pcall(function(count, value)
    if not as_int(value) then
      bad(1, 'number expected, got ' .. (count == 0 and 'no value' or type(value)))
    end
    seed(as_int(value))
  end, select('#', ...), ...))
end

---------------------------------------------------------------------- base

local bases = {}

function bases.unpack(...)
  local list, from, to = ...
  if type(list) == 'table' then
    from, to = as_optional(from, 1), as_optional(to, #list)
    if from and to and to - from + 1 + select('#', ...) > STACK then
      error('too many results to unpack', 2)
    end
  end
  return settled(plain_pcall(plain_unpack, ...))
end

function bases.rawset(...)
  if frozen[(...)] and select('#', ...) > 2 then
    readonly()
  end
  return settled(plain_pcall(rawset, ...))
end

function bases.setmetatable(...)
  local list, meta = ...
  if frozen[list] and select('#', ...) > 1 and (meta == nil or type(meta) == 'table') then
    readonly()
  end
  return settled(plain_pcall(setmetatable, ...))
end

-- The other options stop or slow the collector for everybody
local HARMLESS = { stop = 0, restart = 0, step = false, setpause = 200, setstepmul = 200 }

function bases.collectgarbage(...)
  local option = ...
  if HARMLESS[option] ~= nil then
    return HARMLESS[option]
  end
  look()
  return settled(plain_pcall(collectgarbage, ...))
end

local names, named = setmetatable({}, { __mode = 'k' }), 0

-- An address would tell where things are in the process, so what has no text is numbered
local function name_of(value, kind)
  if kind == 'userdata' then
    return 'userdata: (nil)' -- cjson.null, the only one
  end
  if not names[value] then
    named = named + 1
    names[value] = format('%s: 0x%012x', kind, named * 32)
  end
  return names[value]
end

function bases.tostring(...)
  local value = ...
  local kind = type(value)
  if kind == 'number' or kind == 'string' then
    return plain_tostring(value)
  elseif kind == 'table' or kind == 'function' or kind == 'thread' or kind == 'userdata' then
    local meta = plain_getmetatable(value)
    if not meta or rawget(meta, '__tostring') == nil then
      return name_of(value, kind)
    end
  end
  return settled(plain_pcall(plain_tostring, ...))
end

-- Before each script: nothing of the one before is left
local function forget()
  state = chance
  draw()
  chance = state -- the next script's begins elsewhere, whatever this one draws or sets
  if named > 0 then
    names, named = setmetatable({}, { __mode = 'k' }), 0
  end
end

return { string = strings, table = tables, math = maths, base = bases, forget = forget, settled = settled }

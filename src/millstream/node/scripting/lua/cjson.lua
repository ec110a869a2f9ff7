-- JSON for scripts: cjson.encode and cjson.decode with the names, limits and errors that scripts know from Redis.
-- Loaded once; returns the library. Plain Lua, so that the time and memory limits hold inside it too.

local char, find, format, gsub, lower, sub =
  string.char, string.find, string.format, string.gsub, string.lower, string.sub
local concat, floor, min = table.concat, math.floor, math.min
local error, next, pcall, rawget, select, tonumber, type = error, next, pcall, rawget, select, tonumber, type

local cjson = {}

-- What null is decoded to: equals nothing but itself
local null = newproxy()
cjson.null = null

local MAX_DEPTH = 1000
-- An array with more gaps than this, and less than half full, is refused
local SPARSE_SAFE, SPARSE_RATIO = 10, 2
-- Bytes that one call of C may look at
local WINDOW = 65536

---------------------------------------------------------------------- encode

local ESCAPES = {
  ['"'] = '\\"', ['\\'] = '\\\\', ['/'] = '\\/', ['\b'] = '\\b', ['\f'] = '\\f', ['\n'] = '\\n', ['\r'] = '\\r',
  ['\t'] = '\\t', ['\127'] = '\\u007f',
}
for code = 0, 31 do
  local one = char(code)
  ESCAPES[one] = ESCAPES[one] or format('\\u%04x', code)
end

local function escaped(text)
  return (gsub(text, '[%z\1-\31"\\/\127]', ESCAPES))
end

local function quoted(text)
  if #text <= WINDOW then
    return '"' .. escaped(text) .. '"'
  end
  local parts = {}
  for at = 1, #text, WINDOW do
    parts[#parts + 1] = escaped(sub(text, at, at + WINDOW - 1))
  end
  return '"' .. concat(parts) .. '"'
end

local function refuse(kind, reason)
  error('Cannot serialise ' .. kind .. ': ' .. reason, 0)
end

local function number(value)
  if value ~= value or value == 1 / 0 or value == -1 / 0 then
    refuse('number', 'must not be NaN or Inf')
  end
  return format('%.14g', value)
end

-- The length of a table that is an array, nil for any other
local function array_length(value)
  local largest, count = 0, 0
  for key in next, value do
    if type(key) ~= 'number' or key < 1 or floor(key) ~= key then
      return nil
    end
    count = count + 1
    if key > largest then
      largest = key
    end
  end
  if largest > count * SPARSE_RATIO and largest > SPARSE_SAFE then
    refuse('table', 'excessively sparse array')
  end
  return largest > 0 and largest or nil
end

local write

local function write_object(out, value, depth)
  local first = true
  out[#out + 1] = '{'
  for key, item in next, value do
    if not first then
      out[#out + 1] = ','
    end
    first = false
    if type(key) == 'number' then
      out[#out + 1] = '"' .. number(key) .. '":'
    elseif type(key) == 'string' then
      out[#out + 1] = quoted(key) .. ':'
    else
      refuse(type(key), 'table key must be a number or string')
    end
    write(out, item, depth)
  end
  out[#out + 1] = '}'
end

function write(out, value, depth)
  local kind = type(value)
  if kind == 'string' then
    out[#out + 1] = quoted(value)
  elseif kind == 'number' then
    out[#out + 1] = number(value)
  elseif kind == 'boolean' then
    out[#out + 1] = value and 'true' or 'false'
  elseif kind == 'nil' or value == null then
    out[#out + 1] = 'null'
  elseif kind == 'table' then
    if depth == 0 then
      error('Cannot serialise, excessive depth (' .. MAX_DEPTH + 1 .. ')', 0)
    end
    local length = array_length(value)
    if not length then
      return write_object(out, value, depth - 1)
    end
    for at = 1, length do
      out[#out + 1] = at == 1 and '[' or ','
      write(out, rawget(value, at), depth - 1)
    end
    out[#out + 1] = ']'
  else
    refuse(kind, 'type not supported')
  end
end

---------------------------------------------------------------------- decode

local WORDS = { ['true'] = true, ['false'] = false, null = null }
local NAMES = { ['{'] = 'T_OBJ_BEGIN', ['}'] = 'T_OBJ_END', ['['] = 'T_ARR_BEGIN', [']'] = 'T_ARR_END',
  [','] = 'T_COMMA', [':'] = 'T_COLON', ['"'] = 'T_STRING' }
local UNESCAPES = { b = '\b', f = '\f', n = '\n', r = '\r', t = '\t', ['"'] = '"', ['\\'] = '\\', ['/'] = '/' }

local function token_at(text, at)
  local one = sub(text, at, at)
  if one == '' then
    return 'T_END'
  elseif NAMES[one] then
    return NAMES[one]
  elseif find(text, '^[-%d]', at) then
    return 'T_NUMBER'
  elseif find(text, '^true', at) or find(text, '^false', at) then
    return 'T_BOOLEAN'
  elseif find(text, '^null', at) then
    return 'T_NULL'
  end
  return 'invalid token'
end

local function unexpected(wanted, text, at)
  error('Expected ' .. wanted .. ' but found ' .. token_at(text, at) .. ' at character ' .. at, 0)
end

-- The first byte of a class from a place on. A long text is searched in parts, each longer than the one before, so that
-- the clock is looked at between them and the next word of many costs little
local function seek(text, class, at)
  if #text - at < WINDOW then
    return find(text, class, at)
  end
  local size = 64
  while at <= #text do
    local found = find(sub(text, at, at + size - 1), class)
    if found then
      return at + found - 1
    end
    at = at + size
    size = min(4 * size, WINDOW)
  end
end

local function skip(text, at)
  return seek(text, '[^ \t\r\n]', at) or #text + 1
end

local function utf8(code)
  if code < 0x80 then
    return char(code)
  elseif code < 0x800 then
    return char(0xC0 + floor(code / 64), 0x80 + code % 64)
  elseif code < 0x10000 then
    return char(0xE0 + floor(code / 4096), 0x80 + floor(code / 64) % 64, 0x80 + code % 64)
  end
  return char(0xF0 + floor(code / 262144), 0x80 + floor(code / 4096) % 64, 0x80 + floor(code / 64) % 64, 0x80 + code % 64)
end

local function bad_escape(at)
  error('Expected value but found invalid escape code at character ' .. at, 0)
end

local function unescape(text, at)
  local letter = sub(text, at + 1, at + 1)
  if UNESCAPES[letter] then
    return UNESCAPES[letter], at + 2
  end
  local digits = letter == 'u' and find(text, '^%x%x%x%x', at + 2) and sub(text, at + 2, at + 5)
  if not digits then
    bad_escape(at)
  end
  local code = tonumber(digits, 16)
  if code >= 0xDC00 and code < 0xE000 then
    bad_escape(at)
  elseif code >= 0xD800 and code < 0xDC00 then
    local low = find(text, '^\\u[dD][c-fC-F]%x%x', at + 6) and tonumber(sub(text, at + 8, at + 11), 16)
    if not low then
      bad_escape(at)
    end
    return utf8(0x10000 + (code - 0xD800) * 1024 + low - 0xDC00), at + 12
  end
  return utf8(code), at + 6
end

local function read_string(text, at)
  local parts, from = {}, at + 1
  while true do
    local stop = seek(text, '[%z\1-\31"\\]', from)
    local what = stop and sub(text, stop, stop)
    if what == '"' then
      parts[#parts + 1] = sub(text, from, stop - 1)
      return concat(parts), stop + 1
    elseif what ~= '\\' then
      error('Expected value but found ' .. (stop and 'invalid token' or 'unexpected end of string')
        .. ' at character ' .. (stop or #text + 1), 0)
    end
    parts[#parts + 1] = sub(text, from, stop - 1)
    parts[#parts + 1], from = unescape(text, stop)
  end
end

-- The value of hexadecimal digits as strtod reads them, and where they end
local function read_hexadecimal(text, at)
  local _, stop = find(text, '^%x*', at)
  local digits, power = sub(text, at, stop), 0
  local _, fraction = find(text, '^%.%x*', stop + 1)
  if fraction then
    digits, power, stop = digits .. sub(text, stop + 2, fraction), -4 * (fraction - stop - 1), fraction
  end
  local _, exponent = find(text, '^[pP][-+]?%d+', stop + 1)
  if exponent then
    power, stop = power + tonumber(sub(text, stop + 2, exponent)), exponent
  end
  local value = 0
  for place = 1, #digits do
    value = value * 16 + tonumber(sub(digits, place, place), 16)
  end
  return value * 2 ^ power, stop
end

local function read_decimal(text, at)
  local _, stop = find(text, '^%d+%.?%d*', at)
  if not stop then
    _, stop = find(text, '^%.%d+', at)
  end
  if stop then
    local _, exponent = find(text, '^[eE][-+]?%d+', stop + 1)
    stop = exponent or stop
    return tonumber(sub(text, at, stop)), stop
  end
end

-- Redis reads a number with C's strtod, which also takes hexadecimal, inf and nan
local function read_number(text, at)
  local from = find(text, '^[-+]', at) and at + 1 or at
  local word = lower(sub(text, from, from + 7))
  local value, stop
  if sub(word, 1, 3) == 'inf' then
    value, stop = 1 / 0, from + (word == 'infinity' and 7 or 2)
  elseif sub(word, 1, 3) == 'nan' then
    value, stop = -(0 / 0), from + 2
    local _, closing = find(text, '^%([%w_]*%)', from + 3)
    stop = closing or stop
  elseif find(word, '^0x%x') or find(word, '^0x%.%x') then
    value, stop = read_hexadecimal(text, from + 2)
  else
    value, stop = read_decimal(text, from)
  end
  if not value then
    error('Expected value but found invalid number at character ' .. at, 0)
  end
  return sub(text, at, at) == '-' and -value or value, stop + 1
end

local read

local function deeper(depth, at)
  if depth == 0 then
    error('Found too many nested data structures (' .. MAX_DEPTH + 1 .. ') at character ' .. at, 0)
  end
  return depth - 1
end

local function read_object(text, at, depth)
  local found = {}
  at = skip(text, at + 1)
  if sub(text, at, at) == '}' then
    return found, at + 1
  end
  while true do
    if sub(text, at, at) ~= '"' then
      unexpected('object key string', text, at)
    end
    local key
    key, at = read_string(text, at)
    at = skip(text, at)
    if sub(text, at, at) ~= ':' then
      unexpected('colon', text, at)
    end
    found[key], at = read(text, skip(text, at + 1), depth)
    at = skip(text, at)
    local mark = sub(text, at, at)
    if mark == '}' then
      return found, at + 1
    elseif mark ~= ',' then
      unexpected('comma or object end', text, at)
    end
    at = skip(text, at + 1)
  end
end

local function read_array(text, at, depth)
  local found, count = {}, 0
  at = skip(text, at + 1)
  if sub(text, at, at) == ']' then
    return found, at + 1
  end
  while true do
    count = count + 1
    found[count], at = read(text, at, depth)
    at = skip(text, at)
    local mark = sub(text, at, at)
    if mark == ']' then
      return found, at + 1
    elseif mark ~= ',' then
      unexpected('comma or array end', text, at)
    end
    at = skip(text, at + 1)
  end
end

function read(text, at, depth)
  local one = sub(text, at, at)
  if one == '{' then
    return read_object(text, at, deeper(depth, at))
  elseif one == '[' then
    return read_array(text, at, deeper(depth, at))
  elseif one == '"' then
    return read_string(text, at)
  end
  local _, whole = find(text, '^-?%d+', at)
  if whole and not find(text, '^[.eExX]', whole + 1) then
    return tonumber(sub(text, at, whole)), whole + 1
  elseif find(text, '^[-+%d]', at) or find(text, '^[iI][nN][fF]', at) or find(text, '^[nN][aA][nN]', at) then
    return read_number(text, at)
  end
  local _, stop = find(text, '^%l+', at)
  local word = stop and sub(text, at, stop)
  if word and WORDS[word] ~= nil then
    return WORDS[word], stop + 1
  end
  unexpected('value', text, at)
end

---------------------------------------------------------------------- the library

local function positioned(body, name, ...)
  if select('#', ...) ~= 1 then
    error("bad argument #1 to '" .. name .. "' (expected 1 argument)", 3)
  end
  local ok, result = pcall(body, (...))
  if not ok then
    error(result, type(result) == 'string' and result ~= 'not enough memory' and 3 or 0)
  end
  return result
end

local function encode(value)
  local out = {}
  write(out, value, MAX_DEPTH)
  return concat(out)
end

local function decode(text)
  if type(text) == 'number' then
    text = format('%.14g', text)
  elseif type(text) ~= 'string' then
    error("bad argument #1 to 'decode' (string expected, got " .. type(text) .. ')', 0)
  end
  local value, at = read(text, skip(text, 1), MAX_DEPTH)
  at = skip(text, at)
  if at <= #text then
    unexpected('the end', text, at)
  end
  return value
end

function cjson.encode(...)
  local result = positioned(encode, 'encode', ...)
  return result
end

function cjson.decode(...)
  local result = positioned(decode, 'decode', ...)
  return result
end

return cjson

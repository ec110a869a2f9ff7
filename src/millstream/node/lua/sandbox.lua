-- What a script sees, and how it is run. Loaded once, with the functions of the host as its argument; returns the two
-- functions the host calls. A script gets proxies of the libraries that cannot be changed, so nothing it does is seen by
-- the next one, and no function that reaches files, processes, other environments or objects of the host.
--
-- Rules for this file: a host function takes and gives strings, numbers and booleans only (tables it may give), never
-- raises, and is followed by host.arm(), since the memory limit is off while the host works.

local host = ...

local assert, error, getmetatable, ipairs, next, pairs = assert, error, getmetatable, ipairs, next, pairs
local rawequal, rawget, rawset, select, setfenv, setmetatable = rawequal, rawget, rawset, select, setfenv, setmetatable
local tonumber, tostring, type, unpack, loadstring = tonumber, tostring, type, unpack, loadstring
local plain_pcall, plain_xpcall, collectgarbage = pcall, xpcall, collectgarbage
local concat, format, gsub, sub, find = table.concat, string.format, string.gsub, string.sub, string.find
local getinfo, sethook = debug.getinfo, debug.sethook
local create, resume, status, yield, running =
  coroutine.create, coroutine.resume, coroutine.status, coroutine.yield, coroutine.running

-- Instructions between two looks at the clock
local STEP = 10000
-- Tables inside tables that a reply may have
local DEPTH = 1000
local READONLY = 'Attempt to modify a readonly table'

---------------------------------------------------------------------- stopping

local stopped -- the error that ends the script, once its time is up

local function tick()
  if not stopped and host.is_over() then
    stopped = { err = host.stop_line() }
  end
  if stopped then
    error(stopped, 0)
  end
end

-- What nothing catches: the end of the time, and of the memory
local function go_on(ok, ...)
  if not ok and (...) == 'not enough memory' then
    stopped = stopped or { err = 'ERR not enough memory' }
  end
  if stopped then
    error(stopped, 0)
  end
  return ok, ...
end

---------------------------------------------------------------------- tables that cannot be changed

local frozen = {}

local function freeze(real, missing)
  local proxy = {}
  frozen[proxy] = true
  return setmetatable(proxy, {
    __index = missing or real,
    __newindex = function()
      error(READONLY, 2)
    end,
    __metatable = false,
  })
end

local function refuse_frozen(one)
  if frozen[one] then
    error({ err = 'ERR ' .. READONLY })
  end
end

---------------------------------------------------------------------- the redis library

local redis = {}

local function fail(text)
  error({ err = text })
end

local function words_of(...)
  local count = select('#', ...)
  if count == 0 then
    return nil, 'ERR Please specify at least one argument for this redis lib call'
  end
  local words = { ... }
  for at = 1, count do
    local kind = type(words[at])
    if kind == 'number' then
      words[at] = format('%.17g', words[at])
    elseif kind ~= 'string' then
      return nil, 'ERR Lua redis lib command arguments must be strings or integers'
    end
  end
  return words, count
end

local function command(...)
  local words, count = words_of(...)
  if not words then
    return { err = count }
  end
  local reply = host.call(unpack(words, 1, count))
  host.arm()
  return reply
end

function redis.call(...)
  local reply = command(...)
  if type(reply) == 'table' and rawget(reply, 'err') then
    error(reply)
  end
  return reply
end

redis.pcall = command

function redis.acl_check_cmd(...)
  local words, count = words_of(...)
  if not words then
    fail(count)
  end
  local allowed = host.allows(unpack(words, 1, count))
  if allowed == nil then
    fail('ERR Invalid command passed to redis.acl_check_cmd()')
  end
  return allowed
end

local function one_string(name, ...)
  if select('#', ...) ~= 1 or type((...)) ~= 'string' then
    return { err = 'ERR wrong number or type of arguments' }
  end
  return { [name] = (...) }
end

function redis.error_reply(...)
  local made = one_string('err', ...)
  local text = gsub(gsub(made.err, '^%-', ''), '[\r\n]+$', '')
  if not find(text, ' ', 1, true) then
    text = 'ERR ' .. text
  end
  return { err = text }
end

function redis.status_reply(...)
  return (one_string('ok', ...))
end

function redis.sha1hex(...)
  if select('#', ...) ~= 1 then
    fail('ERR wrong number of arguments')
  end
  local digest = host.sha1(type((...)) == 'number' and tostring((...)) or type((...)) == 'string' and (...) or '')
  host.arm()
  return digest
end

function redis.setresp(...)
  if select('#', ...) ~= 1 then
    fail('ERR redis.setresp() requires one argument.')
  end
  local version = math.floor(tonumber((...)) or 0)
  if version ~= 2 and version ~= 3 then
    fail('ERR RESP version must be 2 or 3.')
  end
  host.set_resp(version)
end

function redis.log(...)
  if select('#', ...) < 2 then
    fail('ERR redis.log() requires two arguments or more.')
  end
  local level = (...)
  if type(level) ~= 'number' then
    fail('ERR First argument must be a number (log level).')
  end
  if level < 0 or level > 3 then
    fail('ERR Invalid debug level.')
  end
  local parts = {}
  for at = 2, select('#', ...) do
    local part = select(at, ...)
    local kind = type(part)
    if kind == 'string' or kind == 'number' then
      parts[#parts + 1] = tostring(part)
    end
  end
  host.log(level, concat(parts, ' '))
  host.arm()
end

function redis.replicate_commands()
  return true
end

-- What is logged is what changed, whatever a script asks for
function redis.set_repl(...)
  if select('#', ...) ~= 1 then
    fail('ERR redis.set_repl() requires one argument.')
  end
  local flags = tonumber((...)) or 0
  if flags < 0 or flags >= 4 then
    fail('ERR Invalid replication flags. Use REPL_AOF, REPL_REPLICA, REPL_ALL or REPL_NONE.')
  end
end

-- There is no debugger, and without one they do nothing in Redis too
function redis.breakpoint()
  return false
end

function redis.debug() end

redis.LOG_DEBUG, redis.LOG_VERBOSE, redis.LOG_NOTICE, redis.LOG_WARNING = 0, 1, 2, 3
redis.REPL_NONE, redis.REPL_AOF, redis.REPL_SLAVE, redis.REPL_REPLICA, redis.REPL_ALL = 0, 1, 2, 2, 3
redis.REDIS_VERSION, redis.REDIS_VERSION_NUM = host.version, host.version_number

---------------------------------------------------------------------- bit operations on 32 bits

local bit = {}

local function number_at(name, at, ...)
  local value = tonumber((select(at, ...)))
  if not value then
    error(format("bad argument #%d to '%s' (number expected, got %s)", at, name,
      select('#', ...) < at and 'no value' or type((select(at, ...)))), 3)
  end
  return value
end

for name, least in pairs({
  tobit = 1, bnot = 1, bswap = 1, band = 1, bor = 1, bxor = 1, lshift = 2, rshift = 2, arshift = 2, rol = 2, ror = 2,
}) do
  bit[name] = function(...)
    local numbers = {}
    for at = 1, least > select('#', ...) and least or select('#', ...) do
      numbers[at] = number_at(name, at, ...)
    end
    return host.bits(name, unpack(numbers))
  end
end

function bit.tohex(...)
  local value = number_at('tohex', 1, ...)
  local digits = select('#', ...) > 1 and number_at('tohex', 2, ...) or 8
  local hex = host.hex(value, digits)
  host.arm()
  return hex
end

---------------------------------------------------------------------- what of Lua a script may use

local globals = {
  _VERSION = _VERSION,
  assert = assert,
  error = error,
  gcinfo = gcinfo,
  getmetatable = getmetatable,
  ipairs = ipairs,
  next = next,
  pairs = pairs,
  rawequal = rawequal,
  rawget = rawget,
  select = select,
  tonumber = tonumber,
  tostring = tostring,
  type = type,
  unpack = unpack,
}

local env = freeze(globals, function(_, name)
  local value = globals[name]
  if value == nil then
    error("Script attempted to access nonexistent global variable '" .. tostring(name) .. "'", 2)
  end
  return value
end)

function globals.rawset(one, ...)
  refuse_frozen(one)
  return rawset(one, ...)
end

function globals.setmetatable(one, ...)
  refuse_frozen(one)
  return setmetatable(one, ...)
end

-- The other options stop or slow the collector for everybody
function globals.collectgarbage(option)
  if option == nil or option == 'collect' or option == 'count' then
    return collectgarbage(option)
  end
  return 0
end

-- As in Redis, what an error table says is what is caught
local function caught(ok, problem, ...)
  if not ok and type(problem) == 'table' and type(rawget(problem, 'err')) == 'string' then
    return ok, problem.err
  end
  return ok, problem, ...
end

function globals.pcall(...)
  return caught(go_on(plain_pcall(...)))
end

function globals.xpcall(body, handler)
  return go_on(plain_xpcall(body, function(problem)
    if stopped then
      return stopped
    end
    return handler(problem)
  end))
end

-- Compiled code could do anything to the process, so only text is taken
local function compile(text, name)
  if sub(text, 1, 1) == '\27' then
    return nil, 'attempt to load a binary chunk'
  end
  local made, problem = loadstring(text, name)
  if made then
    setfenv(made, env)
  end
  return made, problem
end

function globals.loadstring(text, name)
  if type(text) ~= 'string' then
    error("bad argument #1 to 'loadstring' (string expected, got " .. type(text) .. ')', 2)
  end
  return compile(text, type(name) == 'string' and name or text)
end

function globals.load(reader, name)
  local parts = {}
  while true do
    local part = reader()
    if part == nil or part == '' then
      break
    end
    if type(part) ~= 'string' then
      return nil, 'reader function must return a string'
    end
    parts[#parts + 1] = part
  end
  return compile(concat(parts), type(name) == 'string' and name or '=(load)')
end

-- A coroutine has a hook of its own; without it a script could run for ever inside one
local function created(body)
  local made = create(body)
  sethook(made, tick, '', STEP)
  return made
end

local function unwrapped(ok, ...)
  if not ok then
    error((...), 0)
  end
  return ...
end

local coroutines = {
  create = created,
  status = status,
  yield = yield,
  running = running,
  resume = function(...)
    return go_on(resume(...))
  end,
  wrap = function(body)
    local made = created(body)
    return function(...)
      return unwrapped(go_on(resume(made, ...)))
    end
  end,
}

local strings = {}
for name, value in pairs(string) do
  if name ~= 'dump' then
    strings[name] = value
  end
end
getmetatable('').__index = strings
getmetatable('').__metatable = false

globals._G = env
globals.string = freeze(strings)
globals.table = freeze(table)
globals.math = freeze(math)
globals.coroutine = freeze(coroutines)
globals.bit = freeze(bit)
globals.redis = freeze(redis)
globals.server = globals.redis
globals.cjson = freeze(host.json)

---------------------------------------------------------------------- replies

local function one_line(text)
  return (gsub(text, '[\r\n]', ' '))
end

local function double(value)
  if value ~= value then
    return 'nan'
  elseif value == math.huge then
    return 'inf'
  elseif value == -math.huge then
    return '-inf'
  end
  for digits = 15, 17 do
    local text = format('%.' .. digits .. 'g', value)
    if tonumber(text) == value then
      return text
    end
  end
end

-- Writes a value as a reply. wide: the client speaks RESP3; own: the version the script asked for.
local write

local failed -- whether an error was written

-- Errors of commands were counted when they ran; errors of the script's own are counted when they leave it
local function write_error(out, text, counted)
  failed = true
  out[#out + 1] = '-' .. one_line(text) .. '\r\n'
  if not counted then
    host.count(text)
    host.arm()
  end
end

local function write_pairs(out, found, mark, wide, own, depth, with_values)
  local count = 0
  for _ in next, found do
    count = count + 1
  end
  if wide then
    out[#out + 1] = mark .. count .. '\r\n'
  else
    out[#out + 1] = '*' .. (with_values and 2 * count or count) .. '\r\n'
  end
  for key, value in next, found do
    write(out, key, wide, own, depth)
    if with_values then
      write(out, value, wide, own, depth)
    end
  end
end

local function write_table(out, value, wide, own, depth)
  local field = rawget(value, 'err')
  if type(field) == 'string' then
    return write_error(out, field, rawget(value, 'ignore_error_stats_update'))
  end
  field = rawget(value, 'ok')
  if type(field) == 'string' then
    out[#out + 1] = '+' .. one_line(field) .. '\r\n'
    return
  end
  field = rawget(value, 'double')
  if type(field) == 'number' then
    local text = double(field)
    out[#out + 1] = wide and ',' .. text .. '\r\n' or '$' .. #text .. '\r\n' .. text .. '\r\n'
    return
  end
  field = rawget(value, 'map')
  if type(field) == 'table' then
    return write_pairs(out, field, '%', wide, own, depth, true)
  end
  field = rawget(value, 'set')
  if type(field) == 'table' then
    return write_pairs(out, field, '~', wide, own, depth, false)
  end
  field = rawget(value, 'big_number')
  if type(field) == 'string' then
    local text = one_line(field)
    out[#out + 1] = wide and '(' .. text .. '\r\n' or '$' .. #text .. '\r\n' .. text .. '\r\n'
    return
  end
  field = rawget(value, 'verbatim_string')
  if type(field) == 'table' then
    local text, kind = rawget(field, 'string'), rawget(field, 'format')
    if type(text) == 'string' and type(kind) == 'string' then
      if wide then
        text = sub(kind .. '   ', 1, 3) .. ':' .. text
      end
      out[#out + 1] = (wide and '=' or '$') .. #text .. '\r\n' .. text .. '\r\n'
      return
    end
  end
  local count = 0
  while rawget(value, count + 1) ~= nil do
    count = count + 1
  end
  out[#out + 1] = '*' .. count .. '\r\n'
  for at = 1, count do
    write(out, rawget(value, at), wide, own, depth)
  end
end

function write(out, value, wide, own, depth)
  local kind = type(value)
  if kind == 'string' then
    out[#out + 1] = '$' .. #value .. '\r\n' .. value .. '\r\n'
  elseif kind == 'number' then
    out[#out + 1] = format(':%d\r\n', value)
  elseif kind == 'boolean' and own == 3 and wide then
    out[#out + 1] = value and '#t\r\n' or '#f\r\n'
  elseif kind == 'boolean' and own == 3 then
    out[#out + 1] = value and ':1\r\n' or ':0\r\n'
  elseif value == true then
    out[#out + 1] = ':1\r\n'
  elseif kind == 'table' then
    if depth == 0 then
      write_error(out, 'ERR reached lua stack limit')
    else
      write_table(out, value, wide, own, depth - 1)
    end
  else
    out[#out + 1] = wide and '_\r\n' or '$-1\r\n'
  end
end

---------------------------------------------------------------------- running

local OURS = { ['=sandbox'] = true, ['=cjson'] = true }

-- Where in the script an error came from: the innermost function that is the script's own
local function explained(problem)
  local level, place = 2, nil
  repeat
    place = getinfo(level, 'Sl')
    level = level + 1
  until not place or (place.what ~= 'C' and not OURS[place.source])
  local text = type(problem) == 'table' and rawget(problem, 'err') or problem
  if type(problem) ~= 'table' then
    text = 'ERR ' .. tostring(problem)
  elseif type(text) ~= 'string' then
    text = 'ERR unknown error'
  end
  local counted = type(problem) == 'table' and rawget(problem, 'ignore_error_stats_update') and true or false
  return { err = text, source = place and place.source, line = place and place.currentline, counted = counted }
end

local function run(body, keys, argv, wide)
  stopped, failed = nil, false
  globals.KEYS, globals.ARGV = keys, argv
  host.arm()
  sethook(tick, '', STEP)
  local ok, value = plain_xpcall(body, explained)
  if ok then
    local result = value
    ok, value = plain_xpcall(function()
      local out = {}
      write(out, result, wide, host.resp(), DEPTH)
      return concat(out)
    end, explained)
  end
  sethook()
  host.disarm()
  globals.KEYS, globals.ARGV = nil, nil
  if ok then
    return true, value, failed
  elseif type(value) == 'table' then
    return false, value.err, value.source, value.line, value.counted
  end
  return false, 'ERR ' .. tostring(value), nil, nil, false
end

return compile, run

-- What a script sees, and how it is run. Loaded once, with the functions of the host as its argument; returns the two
-- functions the host calls. A script gets proxies of the libraries that cannot be changed, so nothing it does is seen by
-- the next one, and no function that reaches files, processes, other environments or objects of the host.
--
-- Rules for this file: the host is called by `ask` and `quickly` alone, with strings, numbers and booleans (it may give
-- tables); no value of the host but those reaches a script, and no error of it. What a script calls is written in Lua or
-- is a function of Lua's that cannot run long (`natives.lua` has the others). Nothing that a script can change is kept
-- for the next one.

local host, version, version_number, chance, patterns, natives, json, quick, plain_names = ...

local assert, error, getmetatable, ipairs, next, pairs = assert, error, getmetatable, ipairs, next, pairs
local rawequal, rawget, rawset, select, setfenv, setmetatable = rawequal, rawget, rawset, select, setfenv, setmetatable
local tonumber, tostring, type, unpack, load, loadstring = tonumber, tostring, type, unpack, load, loadstring
local plain_pcall, plain_xpcall, collectgarbage, gcinfo, dump = pcall, xpcall, collectgarbage, gcinfo, string.dump
local byte, concat, format, gsub = string.byte, table.concat, string.format, string.gsub
local sub, find = string.sub, string.find
local getinfo, sethook = debug.getinfo, debug.sethook
local create, resume, status, yield, running =
  coroutine.create, coroutine.resume, coroutine.status, coroutine.yield, coroutine.running

-- Instructions between two looks at whether the clock is due. One of them may copy or compare all the memory there is, so
-- the looks are more frequent while much is in use (in KiB)
local STEP, HEAVY_STEP, HEAVY = 200, 20, 32 * 1024
-- So many looks, or so much work, in bytes, and the clock is due; as it is when the second has changed
local TICKS, WORK = 50, 2 ^ 20
-- Words that cross to the host in one call
local CHUNK = 200
-- Words that one packer takes
local PACKED = 40
-- Bytes of a word, and of all words that are packed in parts, above which a plain command crosses as any other: packing
-- copies them twice, for which the memory limit may leave no room
local WORD_MAX, WORDS_MAX = 2 ^ 19, 2 ^ 20
-- KiB in use up to which the host may make a plain command's reply while the memory limit is on: there is room for it
local ROOMY = 128 * 1024
-- Tables inside tables that a reply may have
local DEPTH = 1000
local READONLY = 'Attempt to modify a readonly table'

---------------------------------------------------------------------- stopping

local stopped -- the error that ends the script, once its time is up

local function stop(text)
  stopped = stopped or { err = text }
  error(stopped, 0)
end

-- The memory limit is off: in the host, and after a call that Lua's stack had no room to come back from
local is_loose = false

local function tighten()
  if is_loose then
    host.arm()
    is_loose = false
  end
end

-- What a call of the host came to. `state` is 0, or else `value` says why the script must end. Where the call failed,
-- `state` is what Lua says of its stack or its memory, or else an object of the host's, which is dropped here
local function answered(ran, state, value)
  tighten()
  if stopped then
    error(stopped, 0)
  elseif not ran and type(state) == 'string' and state ~= 'error during Python call' then
    error(state, 0)
  elseif not ran then
    stop('ERR internal error: a function of the server failed')
  elseif state ~= 0 then
    stop(value)
  end
  return value
end

local function ask(name, ...)
  is_loose = true
  return answered(plain_pcall(host[name], ...))
end

local work, ticks, second = 0, 0, 0
local function look()
  work, ticks = 0, 0
  ask('look')
end

-- Counts what a single call of C is about to do, or did
local function spend(bytes)
  work = work + bytes
  if work > WORK then
    look()
  end
end

local time = os.time

local function look_if_due()
  if stopped then
    error(stopped, 0)
  end
  ticks = ticks + 1
  local now = time()
  if ticks >= TICKS or now ~= second then
    second = now
    look()
  end
  return gcinfo() > HEAVY
end

-- Each coroutine has a hook of its own, and the hook that is set says how often it comes
local tick

local function heavy_tick()
  if not look_if_due() then
    sethook(tick, '', STEP)
  end
end

function tick()
  if look_if_due() then
    sethook(heavy_tick, '', HEAVY_STEP)
  end
end

-- What nothing catches: the end of the time, and of the memory
local function go_on(ok, ...)
  tighten()
  if not ok and not stopped then
    if (...) == 'not enough memory' then
      stop('ERR not enough memory')
    elseif type((...)) == 'userdata' and (...) ~= json.null then
      stop('ERR internal error: an object of the server came up')
    end
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

---------------------------------------------------------------------- the redis library

local redis = {}

local function fail(text)
  error({ err = text })
end

-- Words for the host, the last of them with the call; a function of C takes no more than 8000 arguments, so that many
-- words go in parts. Nil and the error if they are none
local function ask_words(name, ...)
  local count = select('#', ...)
  if count == 0 then
    return nil, 'ERR Please specify at least one argument for this redis lib call'
  end
  local words = { ... }
  for at = 1, count do
    local kind = type(words[at])
    if kind ~= 'string' and kind ~= 'number' then
      return nil, 'ERR Lua redis lib command arguments must be strings or integers'
    end
  end
  if count <= CHUNK then
    return ask(name, ...)
  end
  for from = 1, count, CHUNK do
    ask(from == 1 and 'words' or 'more_words', unpack(words, from, from + CHUNK - 1 < count and from + CHUNK - 1 or count))
  end
  return ask(name)
end

-- Plain commands cross as the bytes that a client would send. A packer makes them, of a certain number of words, without
-- a loop; nil of what is no word as it stands
local HEADS, LENGTHS, DIGITS, PLAIN = {}, {}, {}, {}
for number = 0, 1023 do
  HEADS[number], LENGTHS[number], DIGITS[number] = '*' .. number, '\r\n$' .. number .. '\r\n', tostring(number)
end
for name in string.gmatch(plain_names, '%S+') do
  PLAIN[name], PLAIN[string.upper(name)] = true, true
end

local function digits(word)
  if type(word) == 'number' then
    return DIGITS[word] or (word % 1 == 0 and word > 0 and word < 1e14 and format('%d', word))
  end
end

local function length(word)
  return '\r\n$' .. #word .. '\r\n'
end

local packers = {}

local function make_packer(count)
  local names, checks, parts = {}, {}, {}
  for at = 1, count do
    names[at] = 'word' .. at
    checks[at] = gsub("if type(W) ~= 'string' then W = digits(W) if not W then return end "
      .. 'elseif #W > most then return end ', 'W', names[at])
    parts[at] = gsub(' .. (lengths[#W] or length(W)) .. W', 'W', names[at])
  end
  local text = 'local type, digits, length, lengths, most = ... return function(head, tail, ' .. concat(names, ', ') .. ') '
    .. concat(checks) .. ' return head' .. concat(parts) .. ' .. tail end'
  packers[count] = loadstring(text, '=sandbox')(type, digits, length, LENGTHS, WORD_MAX)
end

for count = 1, PACKED do
  make_packer(count)
end

local function pack_many(count, ...)
  local words, parts, size = { ... }, { HEADS[count] }, 0
  for from = 1, count, PACKED do
    local last = from + PACKED - 1 < count and from + PACKED - 1 or count
    local part = packers[last - from + 1]('', '', unpack(words, from, last))
    size = size + (part and #part or WORDS_MAX)
    if size >= WORDS_MAX then
      return
    end
    parts[#parts + 1] = part
  end
  parts[#parts + 1] = '\r\n'
  return concat(parts)
end

-- An array of the host's: in its shape two bytes for each array, how many items it has, and 0x8000 if some of them are
-- arrays; then each of those that are not has 0xffff there
local function made_of(shape, leaves)
  local at, used = -1, 0
  local function array()
    at = at + 2
    local high, low = byte(shape, at, at + 1)
    if high < 128 then
      local from, count, list = used, high * 256 + low, nil
      used = from + count
      if count == 4 then -- a row of XPENDING's, of which there are many
        return { leaves[from + 1], leaves[from + 2], leaves[from + 3], leaves[from + 4] }
      end
      list = {}
      for item = 1, count do
        list[item] = leaves[from + item]
      end
      return list
    elseif high == 255 and low == 255 then
      used = used + 1
      return leaves[used]
    end
    local list = {}
    for item = 1, (high - 128) * 256 + low do
      list[item] = array()
    end
    return list
  end
  return array()
end

-- What the host gave for a plain command
local function received(ran, reply, status, shape, ...)
  if not ran then
    answered(ran, reply)
  elseif reply ~= true then
    return reply
  elseif status then
    return { ok = status }
  end
  return made_of(shape, { ... })
end

-- The reply to a plain command; nil if it was not run, which is the ordinary way's then
local function quickly(...)
  if not PLAIN[(...)] or stopped or gcinfo() > ROOMY then
    return
  end
  local count = select('#', ...)
  local pack, text = packers[count], nil
  if pack then
    text = pack(HEADS[count], '\r\n', ...)
  elseif count <= CHUNK then
    text = pack_many(count, ...)
  end
  if text then
    return received(plain_pcall(quick, text))
  end
end

local function command(...)
  local reply, problem = ask_words('call', ...)
  if problem then
    return { err = problem }
  end
  return reply
end

function redis.call(...)
  local reply = quickly(...)
  if reply ~= nil then
    return reply
  end
  reply = command(...)
  if type(reply) == 'table' and rawget(reply, 'err') then
    error(reply)
  end
  return reply
end

function redis.pcall(...)
  local reply = quickly(...)
  if reply ~= nil then
    return reply
  end
  return (command(...))
end

function redis.acl_check_cmd(...)
  local allowed, problem = ask_words('allows', ...)
  if problem then
    fail(problem)
  elseif allowed == nil then
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
  return ask('sha1', type((...)) == 'number' and tostring((...)) or type((...)) == 'string' and (...) or '')
end

local resp -- the protocol that the script asked for

function redis.setresp(...)
  if select('#', ...) ~= 1 then
    fail('ERR redis.setresp() requires one argument.')
  end
  local wanted = math.floor(tonumber((...)) or 0)
  if wanted ~= 2 and wanted ~= 3 then
    fail('ERR RESP version must be 2 or 3.')
  end
  ask('set_resp', wanted)
  resp = wanted
end

function redis.log(...)
  if select('#', ...) < 2 then
    fail('ERR redis.log() requires two arguments or more.')
  end
  local level = tonumber((...))
  if not level then
    fail('ERR First argument must be a number (log level).')
  end
  level = math.floor(level)
  if not (level >= 0 and level <= 3) then
    fail('ERR Invalid log level.')
  end
  local parts = {}
  for at = 2, select('#', ...) do
    local part = select(at, ...)
    local kind = type(part)
    if kind == 'string' or kind == 'number' then
      parts[#parts + 1] = tostring(part)
    end
  end
  ask('log', level, concat(parts, ' '))
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
  if not (flags >= 0 and flags < 4) then
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
redis.REDIS_VERSION, redis.REDIS_VERSION_NUM = version, version_number

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
    return ask('bits', name, unpack(numbers))
  end
end

function bit.tohex(...)
  local value = number_at('tohex', 1, ...)
  local digits = select('#', ...) > 1 and number_at('tohex', 2, ...) or 8
  return ask('hex', value, digits)
end

---------------------------------------------------------------------- what of Lua a script may use

local made = natives(spend, look, ask, frozen, patterns, chance)
local settled = made.settled
local globals = {
  _VERSION = _VERSION,
  assert = assert,
  collectgarbage = made.base.collectgarbage,
  error = error,
  gcinfo = gcinfo,
  getmetatable = getmetatable,
  ipairs = ipairs,
  next = next,
  pairs = pairs,
  rawequal = rawequal,
  rawget = rawget,
  rawset = made.base.rawset,
  select = select,
  setmetatable = made.base.setmetatable,
  tonumber = tonumber,
  tostring = made.base.tostring,
  type = type,
  unpack = made.base.unpack,
}

setmetatable(globals, {
  __index = function(_, name)
    error("Script attempted to access nonexistent global variable '" .. tostring(name) .. "'", 2)
  end,
})
local env = freeze(globals)

-- As in Redis, what an error table says is what is caught
local function caught(ok, problem, ...)
  if not ok and type(problem) == 'table' and type(rawget(problem, 'err')) == 'string' then
    return ok, problem.err
  end
  return ok, problem, ...
end

function globals.pcall(...)
  if select('#', ...) == 0 then
    return false, 'attempt to call a boolean value' -- Redis's words
  end
  return caught(go_on(plain_pcall(...)))
end

function globals.xpcall(...)
  local body, handler = ...
  if select('#', ...) < 2 then
    error("bad argument #2 to 'xpcall' (value expected)", 2)
  end
  return go_on(plain_xpcall(body, function(problem)
    tighten()
    if stopped then
      return stopped
    end
    return handler(problem)
  end))
end

-- Compiled code could do anything to the process, so only text is taken; what it compiles to is mended by the host
local function compile(text, name)
  if sub(text, 1, 1) == '\27' then
    return nil, 'attempt to load a binary chunk'
  end
  local refused = ask('weigh', text)
  if refused then
    return nil, refused
  end
  local made, problem = loadstring(text, name)
  if not made then
    return nil, problem
  end
  return setfenv(loadstring(ask('mend', dump(made)), name), env)
end

function globals.loadstring(...)
  local text, name = ...
  if type(text) == 'number' then
    text = tostring(text)
  elseif type(text) ~= 'string' then
    settled(plain_pcall(loadstring, ...))
  end
  return compile(text, type(name) == 'string' and name or text)
end

function globals.load(...)
  local reader, name = ...
  if type(reader) ~= 'function' then
    settled(plain_pcall(load, ...))
  end
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
local function hooked(thread)
  sethook(thread, tick, '', STEP)
  return thread
end

-- As Lua has it: an error that leaves a wrapped coroutine is told with the place of the call, too
local function unwrapped(ok, ...)
  if not ok then
    error((...), 3)
  end
  return ...
end

local coroutines = {
  status = status,
  yield = yield,
  running = running,
  create = function(...)
    return hooked(settled(plain_pcall(create, ...)))
  end,
  resume = function(...)
    if type((...)) ~= 'thread' then
      settled(plain_pcall(resume, ...))
    end
    return go_on(resume(...))
  end,
  wrap = function(...)
    local thread = hooked(settled(plain_pcall(create, ...)))
    return function(...)
      return unwrapped(go_on(resume(thread, ...)))
    end
  end,
}

getmetatable('').__index = made.string
getmetatable('').__metatable = false
debug.getmetatable(host.look).__metatable = false

globals._G = env
globals.string = freeze(made.string)
globals.table = freeze(made.table)
globals.math = freeze(made.math)
globals.coroutine = freeze(coroutines)
globals.bit = freeze(bit)
globals.redis = freeze(redis)
globals.server = globals.redis
globals.cjson = freeze(json)

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
  local text = format('%.15g', value)
  if tonumber(text) == value and not find(text, 'e', 1, true) then
    return text
  end
  return ask('double', value) -- C writes an exponent by other rules than Redis
end

-- Writes a value as a reply. wide: the client speaks RESP3; own: the version the script asked for.
local write

local failed -- whether an error was written

-- Errors of commands were counted when they ran; errors of the script's own are counted when they leave it
local function write_error(out, text, counted)
  failed = true
  out[#out + 1] = '-' .. one_line(text) .. '\r\n'
  if not counted then
    ask('count', text)
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

local OURS = { ['=sandbox'] = true, ['=natives'] = true, ['=patterns'] = true, ['=cjson'] = true }

-- Where in the script an error came from: the innermost function that is the script's own
local function explained(problem)
  sethook() -- what follows is no longer the script's, and must not be ended
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

-- Before anything of a script's: the limits hold, and nothing of the one before is left
local function begin()
  stopped, is_loose, work, ticks, second, resp = nil, false, 0, 0, time(), 2
  patterns.forget()
  made.forget()
  host.arm()
end

local function finish()
  sethook()
  host.disarm()
  stopped, globals.KEYS, globals.ARGV = nil, nil, nil
end

-- The two functions that the host calls; the memory limit is off before and after
local function compile_script(text, name)
  begin()
  local ok, script, problem = plain_pcall(compile, text, name)
  finish()
  if ok then
    return script, problem
  end
  return nil, type(script) == 'table' and script.err or script
end

local function run(body, keys, argv, wide)
  failed = false
  begin()
  globals.KEYS, globals.ARGV = keys, argv
  sethook(tick, '', STEP)
  local ok, value = plain_xpcall(body, explained)
  if ok then
    local result = value
    ok, value = plain_xpcall(function()
      local out = {}
      write(out, result, wide, resp, DEPTH)
      sethook()
      return concat(out)
    end, explained)
  end
  finish()
  if ok then
    return true, value, failed
  elseif type(value) == 'table' then
    return false, value.err, value.source, value.line, value.counted
  end
  return false, 'ERR ' .. tostring(value), nil, nil, false
end

return compile_script, run

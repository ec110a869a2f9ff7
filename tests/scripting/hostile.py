"""Hostile scripts: known attacks that crash or block a server with a plain Lua 5.1, and a grammar for others."""

import random

# The key that a script writes when it holds an object that is not Lua's
LEAK = "LEAK"

# All that scripts share, as one text: kinds, numbers, and results of the libraries
FINGERPRINT = """
local libraries = {
  string = 'byte char find format gfind gmatch gsub len lower match rep reverse sub upper',
  table = 'concat foreach foreachi getn insert maxn remove setn sort',
  math = 'abs acos asin atan atan2 ceil cos cosh deg exp floor fmod frexp huge ldexp log log10 max min mod modf pi pow '
    .. 'rad random randomseed sin sinh sqrt tan tanh',
  coroutine = 'create resume running status wrap yield',
  bit = 'arshift band bnot bor bswap bxor lshift rol ror rshift tobit tohex',
  redis = 'acl_check_cmd breakpoint call debug error_reply log pcall replicate_commands set_repl setresp sha1hex '
    .. 'status_reply LOG_DEBUG REPL_ALL REDIS_VERSION',
  cjson = 'decode encode null',
  _G = 'assert collectgarbage error getmetatable ipairs load loadstring next pairs pcall rawequal rawget rawset select '
    .. 'setmetatable tonumber tostring type unpack xpcall KEYS ARGV',
}
local parts = {}
local function put(value)
  parts[#parts + 1] = type(value) .. ' ' .. tostring(value)
end
for _, name in ipairs({'string', 'table', 'math', 'coroutine', 'bit', 'redis', 'cjson', '_G'}) do
  local library = _G[name]
  put(library)
  put(getmetatable(library))
  put(next(library))
  put(#library)
  for word in libraries[name]:gmatch('%S+') do
    if word ~= 'KEYS' and word ~= 'ARGV' then
      put(library[word])
    end
  end
end
put(getmetatable(''))
put(getmetatable(put))
put(getmetatable(1))
put(getmetatable(nil))
put(getmetatable(true))
put(getmetatable(cjson.null))
put(#KEYS)
put(('a'):upper() .. ('b'):rep(3) .. ('x1'):match('%d') .. ('x'):gsub('x', 'y'))
put(cjson.encode({1, 'a', cjson.null}))
put(bit.tohex(-1) .. redis.sha1hex('a') .. table.concat({1, 2}, ','))
put(redis.call('echo', 'here'))
put(pcall(error, 'x'))
put(redis.pcall('nosuch').err)
math.randomseed(1)
put(math.random(1000))
return table.concat(parts, ';')
"""

# Each ends the process of a server with Lua 5.1 as it is, or with the bridge as it was, or keeps it for minutes
KNOWN = r"""
return {unpack({1,2,3}, -2, 2147483647)}
return select('#', unpack({}, 0, 2147483647))
return {unpack({}, -1e300, 1e300)}
return string.find(('a'):rep(400000), ('a?'):rep(400000)..'b')
return string.find(('a'):rep(40000), ('a-'):rep(1500)..'b')
return string.match(('a'):rep(30), ('a?'):rep(30)..('a'):rep(31))
return string.gsub(('a'):rep(300000), ('.'):rep(300000)..'b', '')
return string.find(('x'):rep(100000), '.-.-.-.-b')
return string.find(('x'):rep(1000000), '.-b')
return string.find(('('):rep(300000), '%b()')
return string.find(('x'):rep(100000), '(x-)%1y')
for word in string.gmatch(('x'):rep(1000000), 'x-b') do end
return string.find(('x'):rep(4000000), ('x'):rep(2000000)..'y')
return string.find(('x'):rep(4000000), ('x'):rep(2000000)..'y', 1, true)
return #(''):rep(2147483647)
return #('x'):rep(2147483647)
while true do ('x'):rep(4000000):upper() end
while true do ('x'):rep(4000000):reverse() end
while true do string.format('%q', ('x'):rep(4000000)) end
while true do cjson.encode(('x'):rep(4000000)) end
while true do cjson.decode('"'..('x'):rep(4000000)..'"') end
while true do redis.sha1hex(('x'):rep(4000000)) end
while true do pcall(cjson.decode, (' '):rep(4000000)) end
local s = ('x'):rep(8000000) while true do local t = s .. 'y' end
table.insert({}, -2147483647, 1)
table.insert({}, 2147483647, 1) return 1
return table.concat({}, '', -2147483648, 2147483647)
local t = {} for i = 1, 300000 do t[i] = i end while true do table.insert(t, 1, 1) end
local t = {} for i = 1, 300000 do t[i] = i end while true do table.remove(t, 1) end
local t = {} for i = 1, 300000 do t[i] = i % 7 end while true do table.sort(t) end
local t = {} for i = 1, 300000 do t[i] = i end while true do table.maxn(t) end
local t = {} for i = 1, 300000 do t[i] = i end while true do table.foreach(t, math.abs) end
local t = {} for i = 1, 300000 do t[i] = i end while true do collectgarbage() end
table.sort({3, 2, 1, 5, 4, 7}, function() while true do end end)
return table.sort({1,2,3,4,5,6,7,8,9,10}, function() return true end)
local c c = coroutine.wrap(function() c() end) c()
local function f() return coroutine.wrap(f)() end f()
local function f() return pcall(f) end return f()
local function f(s) return (s:gsub('.', function(c) return f(s) end)) end return f('abc')
return xpcall(function() error(1) end, function(e) error(e) end)
xpcall(function() while true do end end, function() while true do end end)
while true do xpcall(error, function() while true do end end) end
while true do coroutine.wrap(function() while true do end end)() end
while true do loadstring('while 1 do '..('do break end '):rep(15000)..' end') end
return loadstring('while 1 do '..('do break end '):rep(100000)..' end')
return loadstring('return '..('a and '):rep(100000)..'1')
return loadstring('return '..('('):rep(100000))
return loadstring(('\27Lua'):rep(100))
return load(function() return 'x ' end)
while true do pcall(loadstring, 'x(') end
return setmetatable({}, {__index = function() while true do end end})
error(setmetatable({}, {__tostring = function() while true do end end}))
local t = {} t[1] = t return cjson.encode(t)
return cjson.decode(('['):rep(1000000))
return cjson.decode('['..('9'):rep(1000000)..']')[1] > 0
return ('%99.99f'):format(1e308)
return ('x'):rep(1000000):byte(1, -1)
return pcall(bit.tohex, 1, 1/0)
return pcall(redis.log, 0/0, 'x')
return pcall(redis.setresp, 0/0)
return pcall(redis.call, 'get', 1/0)
""".strip().splitlines()


def vararg(parameters: int, depth: int) -> str:
    """Build a script that calls a vararg function without its arguments at every depth of the stack (CVE-2014-5461)."""
    names = ",".join(f"a{number}" for number in range(parameters))
    return f"""
local function f({names}, ...) return 1 end
local function deep(n) if n == 0 then return f() end return 1 + f() + deep(n - 1) end
for depth = 1, {depth} do coroutine.wrap(deep)(depth) end
return 'fine'
"""


# ---------------------------------------------------------------------- the grammar


def _words(text: str) -> list[str]:
    return text.split()


NUMBERS = _words(
    "0 1 -1 2 3 0.5 255 -2147483648 2147483647 2147483648 4294967297 -2147483649 9007199254740993 "
    "1e15 1e17 -1e17 2^63 -2^63 1e300 -1e300 1e-300 1/0 -1/0 0/0 7998 8000 20000 1000000"
)
TEXTS = (
    "''",
    "'a'",
    "'key'",
    "'\\0'",
    "'\\255\\0x'",
    "'%'",
    "'%b'",
    "'%f'",
    "'[a'",
    "'(a'",
    "'%1'",
    "'%d+'",
    "'.-.-b'",
    "'^(%w*)=(.-)$'",
    "'%99d%s%q'",
    "'0x1F'",
    "'[1,{\"a\":[nan,0x10]}]'",
    "'\\27Lua'",
    "'return 1'",
    "'while true do end'",
    "'return function(...) return ... end'",
    "'get'",
    "'nosuch'",
    "'ping'",
    "('x'):rep(100000)",
    "('ab?'):rep(1000)",
    "('(.-)'):rep(20)",
    "('['):rep(3000)",
    "('x '):rep(50000)",
    "('-'):rep(9000)",
)
VALUES = (
    "nil",
    "true",
    "false",
    "{}",
    "{1,2,3}",
    "{1,nil,3}",
    "{'b','a'}",
    "{ok='x'}",
    "{err='E x'}",
    "{map={a=1}}",
    "{double=0/0}",
    "_G",
    "string",
    "redis",
    "cjson.null",
    "KEYS",
    "ARGV",
    "loop",
    "wild",
    "many",
    "function() end",
    "function(...) return ... end",
    "function() error({}) end",
    "function() error('x', 0) end",
    "function() error(cjson.null) end",
    "function() return coroutine.yield(1) end",
    "function() while true do end end",
    "coroutine.create(function() coroutine.yield() end)",
    "coroutine.wrap(function(a) while true do a = coroutine.yield(a) end end)",
    "coroutine.running()",
    "getmetatable('')",
    "setmetatable({}, {__index=string, __newindex=_G})",
)
FUNCTIONS = _words(
    "assert collectgarbage error getmetatable ipairs load loadstring next pairs pcall rawequal rawget rawset select "
    "setmetatable tonumber tostring type unpack xpcall string.byte string.char string.find string.format string.gmatch "
    "string.gfind string.gsub string.len string.lower string.match string.rep string.reverse string.sub string.upper "
    "table.concat table.foreach table.foreachi table.getn table.insert table.maxn table.remove table.setn table.sort "
    "math.abs math.ceil math.floor math.fmod math.frexp math.ldexp math.max math.min math.modf math.pow math.random "
    "math.randomseed math.sqrt coroutine.create coroutine.resume coroutine.running coroutine.status coroutine.wrap "
    "coroutine.yield bit.arshift bit.band bit.bnot bit.bor bit.bswap bit.bxor bit.lshift bit.rol bit.ror bit.rshift "
    "bit.tobit bit.tohex redis.acl_check_cmd redis.breakpoint redis.call redis.debug redis.error_reply redis.log "
    "redis.pcall redis.replicate_commands redis.set_repl redis.setresp redis.sha1hex redis.status_reply cjson.decode "
    "cjson.encode"
)

# `see` looks at every value there is: it must be one of Lua's own, and no table of those that all share
HEAD = """
local leak = redis.call
local function see(...)
  for at = 1, select('#', ...) do
    local value = (select(at, ...))
    if type(value) == 'userdata' and value ~= cjson.null then leak('set', 'LEAK', 1) end
  end
  return ...
end
local loop = {} loop[1] = loop loop.loop = loop
local wild = setmetatable({}, {
  __index = function(t, k) return k end, __newindex = function() error('set') end,
  __call = function(...) return ... end, __tostring = function() return {} end, __len = function() return 1e9 end,
  __eq = function() error({}) end, __lt = function() return true end, __le = function() return 1 end,
  __concat = function() return 'c' end, __unm = error, __add = coroutine.yield, __gc = error, __mode = 'kv',
  __metatable = 'locked',
})
local many = {} for i = 1, 9000 do many[i] = i end
"""


def _argument(rng: random.Random, depth: int) -> str:
    kind = rng.random()
    if kind < 0.3:
        return rng.choice(NUMBERS)
    if kind < 0.55:
        return rng.choice(TEXTS)
    if kind < 0.8 or depth == 0:
        return rng.choice(VALUES)
    if kind < 0.9:
        return rng.choice(FUNCTIONS)
    return _call(rng, depth - 1)


def _call(rng: random.Random, depth: int) -> str:
    words = ", ".join(_argument(rng, depth) for _ in range(rng.choice((0, 1, 1, 2, 2, 3, 3, 4, 5))))
    name = rng.choice(FUNCTIONS)
    match rng.randrange(6):
        case 0:
            return f"pcall({name}{', ' if words else ''}{words})"
        case 1:
            return f"xpcall(function() return {name}({words}) end, {_argument(rng, 0)})"
        case 2:
            return f"coroutine.wrap(function() return {name}({words}) end)()"
        case _:
            return f"{name}({words})"


def _statement(rng: random.Random) -> str:
    call = _call(rng, 2)
    match rng.randrange(8):
        case 0:
            return f"for i = 1, 50 do pcall(function() see({call}) end) end"
        case 1:
            return f"local kept = {{pcall(function() return see({call}) end)}} see(kept[2], kept[3])"
        case 2:
            target, key = rng.choice(("string", "_G", "redis", "getmetatable('')", "KEYS", "wild")), rng.choice(TEXTS)
            return f"pcall(function() {target}[{key}] = {_argument(rng, 1)} end)"
        case 3:
            return f"pcall(function() for k, v in {call} do see(k, v) break end end)"
        case 4:
            operator = rng.choice(("..", "+", "<", "==", "%", "^"))
            return f"pcall(function() return see({_argument(rng, 1)} {operator} {_argument(rng, 1)}) end)"
        case _:
            return f"see(pcall(function() return see({call}) end))"


def script(seed: int) -> str:
    """Build a script that calls every function with unsuitable arguments."""
    rng = random.Random(seed)
    body = "\n".join(f"do {_statement(rng)} end" for _ in range(rng.randrange(3, 12)))
    return f"{HEAD}{body}\nreturn see({_argument(rng, 2)})"

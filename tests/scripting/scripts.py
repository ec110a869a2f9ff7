"""Scripts whose replies are compared with those of a living redis-server: one a line, and some of several lines."""

SETUP = [
    ["SET", "str", "abc"],
    ["SET", "num", "41"],
    ["RPUSH", "list", "a", "b", "c"],
    ["HSET", "hash", "f1", "v1", "f2", "v2"],
    ["SADD", "set", "1", "2", "3"],
    ["ZADD", "zset", "1", "a", "2.5", "b"],
    ["XADD", "stream", "1-1", "f", "v"],
    ["XGROUP", "CREATE", "stream", "g", "0"],
]

# Each is run with KEYS k1 k2 and ARGV a1 "\x00\xff" 3
SAME = r"""
return 1
return 1.9
return -1.9
return 2^40
return 'text'
return ''
return '\0\255\r\n'
return true
return false
return nil
return
return {}
return {1,2,3}
return {1,2,nil,4}
return {nil,1}
return {1.5,'a',{2.9,true,false}}
return {{{{{1}}}}}
return {ok='fine'}
return {err='ERR bad thing'}
return {err='CODE bad thing'}
return {ok='a\r\nb'}
return {err='ERR a\r\nb'}
return {ok=1}
return {err=1}
return {a=1,b=2}
return {1,2,a=3}
return {double=3.5}
return {double=1e300}
return {map={a=1}}
return {set={a=true}}
return {big_number='123456789012345678901234567890'}
return {verbatim_string={string='hello',format='txt'}}
return function() end
return math.huge
return -math.huge
return KEYS[1]
return KEYS
return ARGV
return {#KEYS,#ARGV,KEYS[3],ARGV[4]}
return ARGV[2]
return ARGV[3]+1
return #ARGV[2]
return redis.call('get','str')
return redis.call('GET','nosuch')
return redis.call('incr','num')
return redis.call('set','k','v')
return redis.call('set','k','v','NX')
return redis.call('lrange','list',0,-1)
return redis.call('hgetall','hash')
return redis.call('smembers','set')
return redis.call('zrange','zset',0,-1,'withscores')
return redis.call('zscore','zset','b')
return redis.call('exists','str','nosuch')
return redis.call('type','hash')
return redis.call('ping')
return redis.call('echo',ARGV[2])
return redis.call('xrange','stream','-','+')
return redis.call('xadd','stream','2-1','a','b')
return redis.call('xlen','stream')
return redis.call('xread','count',1,'streams','stream','0')
return redis.call('xread','block',10,'streams','stream','$')
return redis.call('xread','block',0,'streams','none','$')
return redis.call('xreadgroup','group','g','c','streams','stream','>')
return redis.call('xack','stream','g','1-1')
return type(redis.call('get','nosuch'))
return type(redis.call('lpop','nosuch'))
return type(redis.call('set','k','v'))
return redis.call('set','k','v').ok
return redis.call('set','k',12)
return redis.call('set','k',3.5) and redis.call('get','k')
redis.call('set','k',3.3) return redis.call('get','k')
redis.call('set','k',1e20) return redis.call('get','k')
redis.call('set','k',2^53) return redis.call('get','k')
redis.call('select',5) redis.call('set','other','x') return redis.call('dbsize')
return redis.call('dbsize')
redis.call('del','str') return redis.call('exists','str')
redis.call('set','half','done') error('later')
return redis.call('get','half')
return redis.call('set')
return redis.call('nosuch')
return redis.call('xgroup','nosuch','a')
return redis.call()
return redis.call({})
return redis.call('get',true)
return redis.call('get',nil)
return redis.pcall('set')
return redis.pcall('nosuch')
return redis.pcall()
return redis.pcall({})
return redis.call('incr','str2x')
return redis.call('incr','list')
return redis.pcall('incr','list')
return redis.call('lpush','hash','x')
local r = redis.call('incr','list') return r
local r = redis.pcall('incr','list') return r.err
local r = redis.pcall('incr','list') return type(r)
local r = redis.pcall('incr','list') error(r)
local ok, e = pcall(redis.call, 'incr', 'list') return e
local ok, e = pcall(redis.call, 'incr', 'list') return type(e)
local ok, e = pcall(function() redis.call('incr','list') end) return e
local ok, e = pcall(error, {err='X y'}) return e
local ok, e = pcall(error, {a='X y'}) return e.a
local ok, e = pcall(function() return nosuch end) return e
local ok, a, b = pcall(function() return 1, 2 end) return {ok, a, b}
return redis.call('multi')
return redis.call('watch','k')
return redis.call('subscribe','c')
return redis.call('eval','return 1',0)
return redis.call('script','load','return 1')
return redis.error_reply('My Err')
return redis.error_reply('-My Err')
return redis.error_reply('Single')
return redis.error_reply()
return redis.error_reply(1)
return redis.error_reply('a','b')
return redis.status_reply('My Status')
return redis.status_reply()
return redis.status_reply('-x')
return redis.sha1hex('')
return redis.sha1hex('abc')
return redis.sha1hex(1)
return redis.sha1hex(1.5)
return redis.sha1hex()
return redis.sha1hex('a','b')
return redis.setresp(4)
return redis.setresp()
return redis.setresp('x')
return redis.log(redis.LOG_DEBUG,'hello')
return redis.log(1)
return redis.log(9,'x')
return redis.log('a','x')
return {redis.LOG_DEBUG,redis.LOG_VERBOSE,redis.LOG_NOTICE,redis.LOG_WARNING}
return {redis.REPL_NONE,redis.REPL_AOF,redis.REPL_SLAVE,redis.REPL_REPLICA,redis.REPL_ALL}
return redis.replicate_commands()
redis.set_repl(redis.REPL_ALL)
redis.setresp(3) return redis.call('hgetall','hash')
redis.setresp(3) return redis.call('hgetall','hash').map.f1
redis.setresp(3) return redis.call('zscore','zset','b')
redis.setresp(3) return redis.call('zscore','zset','b').double
redis.setresp(3) return redis.call('get','nosuch')
redis.setresp(3) return type(redis.call('get','nosuch'))
redis.setresp(3) local r = redis.call('smembers','set') return {r.set['1'], r.set['9']}
redis.setresp(3) return redis.call('lrange','list',0,-1)
redis.setresp(3) return {true,false}
redis.setresp(3) return redis.call('xread','count',1,'streams','stream','0')
redis.setresp(3) redis.setresp(2) return redis.call('hgetall','hash')
x = 1
x.y = 1
return x
local a = x
string.foo = 1
redis.call = 1
redis.foo = 1
_G.x = 1
return _G.nosuch
math.pi = 3
setmetatable(_G, {})
rawset(_G, 'x', 1)
KEYS = {}
error('boom')
error('boom', 0)
error('boom', 2)
error({err='My boom'})
error({err='boom'})
error({err='ERR boom', source='x', line='7'})
error(5)
error()
local x = nil; return x.y
local x = {} ; return x.y.z
return 1 + {}
return 'a' + 1
return #nil
return {} .. ''
return nosuch()
return redis.nosuch('x')
local function f() error('deep') end f()
local function f() redis.call('incr','list') end f()
local f = loadstring('return y') return f()
return loadstring('return 1+1')()
return loadstring('return (')
return load(function() return nil end)
return type(print)
return type(os)
return type(io)
return type(require)
return type(dofile)
return type(loadfile)
return type(debug)
return type(package)
return type(getfenv)
return type(setfenv)
return type(newproxy)
return type(module)
return type(python)
return _VERSION
return type(_G)
return tostring(nil)..tostring(true)..tostring(1.5)..tostring(1e15)
return tonumber('0x10')
return tonumber('z')
return select('#', 1, nil, 3)
return {unpack({1,2,3})}
return table.concat({1,2,3}, ',')
local t = {3,1,2} table.sort(t) return t
local t = {} table.insert(t, 'a') table.insert(t, 1, 'b') return t
return string.format('%5.2f|%d|%s|%q|%x', 1.234, 5, 'a', 'b', 255)
return ('abc'):upper()..('x'):rep(3)
return {string.find('hello', 'l+')}
return {('k=v'):match('(%w+)=(%w+)')}
return (('a,b'):gsub(',', ';'))
return {math.floor(1.5), math.max(1,2), math.abs(-3), math.fmod(7,3)}
local c = coroutine.wrap(function() coroutine.yield(1) coroutine.yield(2) end) return {c(), c()}
local c = coroutine.create(function(a) return coroutine.yield(a) end) return {coroutine.resume(c, 5)}
local c = coroutine.create(function() end) coroutine.resume(c) return coroutine.status(c)
local c = coroutine.wrap(function() return redis.call('get','num') end) return c()
return {xpcall(function() error('a',0) end, function(e) return 'h'..e end)}
return {pcall(error)}
return {rawequal('a','a'), rawget({a=1},'a'), next({})}
local t = setmetatable({}, {__index=function(_, k) return k..'!' end}) return t.x
local t = setmetatable({}, {__index=function(_, k) return k end}) return t
return cjson.encode({1,2,{a=1.5}})
return cjson.encode({})
return cjson.encode('a/b"\1\127\200')
return cjson.encode({1e15, 0.1, 1/3, 123456789012, -0.5, 1e100})
return cjson.encode({[1]=1,[5]=2})
return cjson.encode({[1]=1,[500]=2})
return cjson.encode({[1]=1,a=2}) == '{"1":1,"a":2}'
return cjson.encode({[true]=1})
return cjson.encode(1/0)
return cjson.encode(function() end)
return cjson.encode(cjson.null)
return cjson.encode({cjson.null, false, true})
return cjson.encode(nil)
return cjson.encode()
return cjson.encode(cjson.decode('{"a":[1,{"b":null}],"c":""}')) ~= nil
return cjson.decode('[1,"a",true,false,1.5e3,-2]')
return cjson.decode('[1,null,{"a":true}]')
return cjson.decode('{"a":{"b":[1,2,3]}}').a.b
return cjson.decode('"\\u00e9\\ud83d\\ude00\\n\\/"')
return cjson.decode(' [ 1 , 2 ] ')
return cjson.decode('12')
return cjson.decode('null') == cjson.null
return cjson.decode('[')
return cjson.decode('[1,]')
return cjson.decode('{"a"}')
return cjson.decode('{"a":1,}')
return cjson.decode('{a:1}')
return cjson.decode('nope')
return cjson.decode('[1] x')
return cjson.decode('')
return cjson.decode('"abc')
return cjson.decode('"\\x"')
return cjson.decode()
return bit.band(7,12)
return bit.bor(1,2,4)
return bit.bxor(5,1)
return bit.bnot(0)
return bit.lshift(1,31)
return bit.rshift(-1,28)
return bit.arshift(-8,1)
return bit.rol(1,33)
return bit.ror(1,1)
return bit.bswap(0x12345678)
return bit.tobit(2^32+5)
return bit.tohex(255)
return bit.tohex(255,4)
return bit.tohex(255,-4)
return bit.band('x')
retrn 1
return (
return 1 end
for
return 'unfinished
--[[ unfinished
return ... == nil
return select('#', ...)
return redis.call('expire','num',100) + redis.call('ttl','num')
local t = {} for i = 1, 100 do t[i] = i end return t
local s = 0 for i = 1, 100 do s = s + redis.call('incrby','sum',i) end return s
for i = 1, 5 do redis.call('rpush','queue',i) end return redis.call('lrange','queue',0,-1)
local r = {} for _, v in ipairs(redis.call('lrange','queue',0,-1)) do r[#r+1] = v * 2 end return r
return #redis.call('keys','*') > 0
return redis.call('del', unpack(redis.call('keys','queue*')))
return {redis.call('get','str'), redis.call('get','nosuch'), redis.call('get','num')}
""".strip().splitlines()

BLOCKS = [
    "\n\nerror('third line')",
    "local function f()\n  return redis.call('incr', 'list')\nend\nlocal r = f()\nreturn r",
    "return\nredis.call('incr','list')",
    "return redis.call(\n'incr',\n'list')",
    "#!lua\nreturn 5",
    "#!lua flags=no-writes\nreturn redis.call('set','a','b')",
    "#!lua flags=no-writes,allow-stale\nreturn redis.call('get','str')",
    "#!lua name=x\nreturn 5",
    "#!lua flags=nosuch\nreturn 5",
    "#!nosuch\nreturn 5",
    "#!lua\n\nerror('third')",
    "if redis.call('get', KEYS[1]) == ARGV[1] then\n  return redis.call('del', KEYS[1])\nelse\n  return 0\nend",
    "-- return redis.call('x')\nlocal s = \"return redis.call('y')\" return s",
]

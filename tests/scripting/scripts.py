"""Scripts whose replies are compared with a running redis-server: one a line, and some of several lines."""

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
return {{double=1e-7},{double=1e-5},{double=1e17},{double=0.1+0.2},{double=-1.5e22}}
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
redis.setresp(3) return redis.call('zrange','zset',0,-1,'withscores')
redis.setresp(3) return redis.call('zrange','zset',0,-1,'withscores')[2][2].double
redis.setresp(3) return redis.call('zmscore','zset','a','none','b')
redis.setresp(3) return type(redis.call('zincrby','zset','0','b'))
redis.setresp(3) redis.call('zadd','far','-inf','a','inf','b') return redis.call('zpopmax','far',2)
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

# Results and refusals of Lua's libraries at the edges; each is a function that is not Lua's own here
EDGES = r"""
redis.log(9)
redis.log()
redis.log(9,'x')
redis.log(-1,'x')
redis.log(0/0,'x')
redis.log(1/0,'x')
redis.log(3.5,'x')
redis.log('3','x')
redis.log('x')
redis.log({},1)
setmetatable(_G)
setmetatable(_G,1)
setmetatable(_G,nil)
setmetatable()
setmetatable(1,{})
setmetatable({})
setmetatable('',{})
setmetatable(string,{})
rawset(_G)
rawset(string,1)
rawset(1,2,3)
math.randomseed(5) return {tostring(math.random()),tostring(math.random()),math.random(100),math.random(5,10)}
math.randomseed(2^40+7) return tostring(math.random())
math.randomseed(-1) return tostring(math.random())
math.randomseed(1.9) return tostring(math.random())
math.randomseed(0/0) return tostring(math.random())
return math.randomseed()
return math.randomseed('x')
return math.random(0)
return math.random(2,1)
return math.random(1,2,3)
return math.random('a')
return math.random(2^31)
return math.random(-2^31,2^31-1)
return type(math.randomseed(1))
local a = cjson.decode("[0x10, nan]") return {tostring(a[1]), tostring(a[2])}
local a = cjson.decode("[+1,01,-0x1F]") return {tostring(a[1]), tostring(a[2]),tostring(a[3])}
local a = cjson.decode("[inf,-inf,Infinity,NAN]") return {tostring(a[1]), tostring(a[2]),tostring(a[3]),tostring(a[4])}
return tostring(cjson.decode("[nan(12)]")[1])
return tostring(cjson.decode("[0x1p4]")[1])
return tostring(cjson.decode("[.5]")[1])
return tostring(cjson.decode("[1.]")[1])
return tostring(cjson.decode("[1e]")[1])
return tostring(cjson.decode("[-]")[1])
return tostring(cjson.decode("[+]")[1])
return tostring(cjson.decode("[+nan]")[1])
return tostring(cjson.decode("[-nan]")[1])
return tostring(cjson.decode("[0x]")[1])
return tostring(cjson.decode("[1.5.5]")[1])
return tostring(cjson.decode("[1e400]")[1])
return tostring(cjson.decode("[infinit]")[1])
return tostring(cjson.decode("[ina]")[1])
return tostring(cjson.decode("[na]")[1])
return cjson.decode('{"a":nan}').a
return cjson.encode(0/0)
return {unpack({1,2,3}, -2, 2147483647)}
return select('#', unpack({}, 0, 2147483647))
return select('#', unpack({}, 1, 8000))
return select('#', unpack({}, 1, 7999))
return select('#', unpack({}, 1, 7998))
return select('#', unpack({}, 1, 7990))
return select('#', unpack({}, 1, 0))
return select('#', unpack({}, 5, 1))
return select('#', unpack({}, 1, 2^31))
return select('#', unpack({}, 1, 2^32+3))
return select('#', unpack({}, 1, 1e300))
return select('#', unpack({}, 1, 0/0))
return select('#', unpack({}, -2^31, 2^31-1))
return select('#', unpack({}, 1.9, 3.9))
return unpack()
return unpack(1)
return unpack({}, 'a')
return unpack({}, 1, {})
local t={} for i=1,7998 do t[i]='k' end return redis.call('del',unpack(t))
local t={} for i=1,7999 do t[i]='k' end return redis.call(unpack(t))
local t={} for i=1,7990 do t[i]='k' end return redis.call('del',unpack(t))
local t={} for i=1,7000 do t[i]='k' end return redis.call('del',unpack(t))
return pcall(string.rep)
return ('x'):rep({})
return string.rep('x',{})
local f=string.upper return f()
return ('x'):rep(2^31)
return #(('x'):rep(-1))
return #(('x'):rep(2^32+1))
return table.concat({1,{},3})
return table.concat({1,2,3},',',1,5)
return table.insert({},1,2,3)
return table.insert({})
return table.insert(1,2)
return table.remove({1,2,3},7)
return table.remove()
return table.sort({3,1,'x'})
return table.sort({3,1,2},function(a,b) return true end)
return table.sort({1,2,3,4,5,6,7,8,9,10},function(a,b) return true end)
table.sort({3,2,1},function(a,b) error('cmp') end)
table.sort({3,2,1},5)
table.sort(1)
return table.maxn({1,2,[100]=3})
return table.getn({1,2})
return table.setn({},1)
return table.foreach({5},function(k,v) return v end)
return table.foreachi({5,6},function(k,v) return v+1 end)
return string.find('a')
return string.find('abc','%')
return string.find('abc','[')
return string.find('abc','(a')
return string.find('abc','a)')
return string.find('abc','%b')
return string.find('abc','%f')
return string.find('abc','%1')
return string.find('abc',('()'):rep(33))
return string.gsub('abc','b','%9')
return string.gsub('abc','b',true)
return string.gsub('abc','b',function() return {} end)
return string.gsub('abc','b',function() error('boom',0) end)
return string.gsub('abc','b',function() error('boom') end)
return string.gsub('abc')
return {string.gsub('abc','','-')}
return {string.gsub('abc','b','%%')}
return {string.gsub('abc','b','%')}
return {string.gsub('abc','(b)','<%1%0>',1)}
return {string.gsub('abc','b','x',-1)}
for a in string.gmatch('abc','^a') do return a end return 'none'
return string.gfind('abc','b')
return string.format('%d','x')
return string.format('%y',1)
return string.format('%s')
return string.format('%100d',1)
return string.format('%.100f',1)
return string.format('%s',{})
return ('%d'):format('x')
return pcall(string.format,'%d','x')
return {pcall(redis.log,1)}
return {pcall(math.floor,'x')}
return {math.floor({})}
return tonumber()
return tonumber('z',99)
return tostring()
return type(cjson.null)..tostring(cjson.null)
return xpcall()
return xpcall(1)
return {pcall()}
return {pcall(1)}
return {xpcall(function() error('a') end, 5)}
return coroutine.create(1)
return coroutine.resume(1)
return coroutine.yield(1)
return {coroutine.resume(coroutine.create(function() error('in') end))}
return coroutine.wrap(function() error('in') end)()
return coroutine.status(1)
return tostring(coroutine.running())
return collectgarbage('stop')
return collectgarbage('x')
return collectgarbage('collect')
return collectgarbage('step')
return type(collectgarbage('count'))
return loadstring()
return load(1)
return bit.tohex(255,0)
return bit.tohex(255,1/0)
return bit.tohex(255,0/0)
return bit.tohex(255,-2147483648)
return bit.tohex(255,2^32+2)
return bit.tohex(255,100)
return bit.tohex(255,-100)
return bit.tohex(1/0)
return bit.tohex(2^40+3)
return bit.band(1e300,1)
return bit.tohex()
return bit.lshift(1)
return bit.tohex('a')
return bit.tohex(1,'2')
return bit.band()
return bit.tobit(2.5)
return bit.tobit(3.5)
return bit.tobit(2^53+2)
return bit.tobit(2^63)
return bit.lshift(1,-1)
return bit.lshift(1,1/0)
return redis.setresp(2.5)
return redis.setresp(0/0)
return redis.set_repl(0/0)
return redis.set_repl(1/0)
return select('#', unpack({},1,7995))
return select('#', unpack({},1,7996))
return select('#', unpack({},1,7997))
table.insert(string,'x')
table.insert(_G,'x')
table.remove(string)
table.sort(string)
table.insert(KEYS,'x') return KEYS
return math.mod(5,3)
local t={} for i=1,20 do t[i]=(i*7)%13 end table.sort(t,function(a,b) return a>b end) return t
local t={} for i=1,40 do t[i]=i*7%5+i/100 end table.sort(t,function(a,b) return a-a%1<b-b%1 end) return cjson.encode(t)
local t={'b','a','c',''} table.sort(t) return t
return {string.find('key:123:x', '(%d+):(%a)')}
return {string.find('a.b', '.', 1, true)}
return {string.find('a.b', '.', 3)}
local r = {} for i = 1, 3 do r[i] = string.find('ab.b', '.', nil, i > 1) end return r
local r = {} for i = 1, 3 do r[i] = string.gsub('ab.b', '%a', '%%', i) end return r
return {string.find('abc', 'b', -1)}
return {string.find('abc', '', 10)}
return {string.find('abc', 'c', '2')}
return {string.find(12345, 34)}
return {string.match('2024-01-02', '(%d+)-(%d+)-(%d+)')}
return {string.match('  trim me  ', '^%s*(.-)%s*$')}
return {string.match('f(a(b)c)d', '%b()')}
return {string.match('THE (quick) fox', '%f[%a]%a+', 5)}
return {string.match('abcabc', '(abc)%1')}
return {string.match('hello', '()ll()')}
return {string.gsub('hello world', 'o', {o='0'})}
return {string.gsub('hello world', '%w+', function(w) return w:upper() end)}
return {string.gsub('hello', '(l)(l)', '%2-%1')}
return {string.gsub('abc', '%w', '%0%0')}
return {string.gsub('abc', '^a', 'x')}
return {string.gsub('a,b,,c', ',', '')}
local r = {} for k, v in string.gmatch('a=1, b=2', '(%w+)=(%w+)') do r[#r+1] = k .. v end return r
local r = {} for w in string.gmatch('one two', '%a*') do r[#r+1] = '<' .. w .. '>' end return r
local t = {1,2,3} return {table.remove(t), table.remove(t, 1), #t}
local t = {1,2,3} table.insert(t, 2, 'x') return t
local t = {1,2,3} table.insert(t, 10, 'x') return {#t, t[10]}
return table.concat({}, 'x')
return table.concat({1,2,3}, ', ', 2, 3)
return {tostring(nil), tostring(12.5), tostring('x'), tostring(true)}
return tostring(setmetatable({}, {__tostring = function() return 'mine' end}))
return {pcall(string.rep, 'x')}
return {pcall(string.find, 'x', '[')}
return {pcall(table.concat, {{}})}
return {pcall(unpack, {}, 1, 1e9)}
return {pcall(math.random, 0)}
local s = string return s.rep()
return string.upper({})
return ('x'):upper(1)
return string.upper(12)
return ('x').rep('ab', 3)
return #string.rep('ab', 5000)
return #cjson.encode(string.rep('ab', 5000))
math.randomseed(7) return {math.random(1e9), math.random(10), math.random(-5,5), math.random(2^31-1)}
return {1, '2', cjson.decode('[0x1F, -0X1f, 0x.8, 0x1.8p1, 1E2, .5e1]')[1]}
return {cjson.decode('[0x1F]')[1], cjson.decode('[-0X1f]')[1], cjson.decode('[0x1.8p1]')[1]}
return cjson.decode('{"a":0x10}').a
return cjson.decode('0x')
return cjson.decode('nan') ~= cjson.decode('nan')
return cjson.decode('infinityx')
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

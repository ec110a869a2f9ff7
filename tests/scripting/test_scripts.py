"""Limits of scripts in the server: time, sandbox, log, waiting clients, and the cache of scripts."""

import hashlib
import logging
import sys

import pytest

from millstream.node.scripting import scripts
from millstream.replies import Error, Simple
from support.inprocess import WAITING, Client, World
from support.state import snapshot


@pytest.fixture
def world() -> World:
    return World({"busy-reply-threshold": "300"})


@pytest.fixture
def client(world: World) -> Client:
    return world.client()


def line_of(reply: object) -> str:
    """Return an error reply's text."""
    assert isinstance(reply, Error), reply
    return reply.line


def run(client: Client, script: str, *args: str) -> object:
    return client.call("EVAL", script, "0", *args)


@pytest.mark.parametrize("resp", [2, 3])
def test_a_script_of_a_client_that_listens_is_told_pong(world: World, resp: int) -> None:
    """A script of a subscribed RESP3 client gets PING's usual reply. In RESP2 such a client may not run scripts."""
    client = world.client(resp)
    client.raw("SUBSCRIBE", "news")
    if resp == 2:
        assert "only (P|S)SUBSCRIBE" in line_of(run(client, "return 1"))
        return
    assert run(client, "return redis.call('PING')") == Simple(b"PONG")
    assert run(client, "return redis.call('PING', 'x')") == b"x"


# ---------------------------------------------------------------------- limits


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "script",
    [
        "while true do end",
        "while true do pcall(function() while true do end end) end",
        "while true do xpcall(function() while true do end end, function() end) end",
        "local c = coroutine.wrap(function() while true do end end) c()",
        "while true do local c = coroutine.create(function() while true do end end) coroutine.resume(c) end",
        "local t = setmetatable({}, {__index = function() while true do end end}) return t.x",
        "loadstring('while true do end')()",
        "while true do redis.call('ping') end",
    ],
)
def test_a_script_that_runs_for_ever_is_stopped(client: Client, script: str) -> None:
    """A script that exceeds the time limit is stopped, and the next command works."""
    assert "stopped after 300 ms" in line_of(run(client, script))
    assert run(client, "return 1") == 1


def test_what_a_stopped_script_wrote_stays_and_is_one_record(world: World, client: Client) -> None:
    """The writes of a stopped script stay, in one record of the log."""
    line = line_of(run(client, "redis.call('set','a','1') redis.call('set','b','2') while true do end"))
    assert "what it had written stays" in line
    assert client.call("MGET", "a", "b") == [b"1", b"2"]
    assert len(world.log.payloads) == 1
    assert snapshot(world.recovered()) == snapshot(world.node)


def test_no_limit_is_none(world: World) -> None:
    """A time limit of 0 is none. Both names of the parameter are the same."""
    client = world.client()
    assert client.call("CONFIG", "SET", "lua-time-limit", "0") == Simple(b"OK")
    assert client.call("CONFIG", "GET", "busy-reply-threshold") == [b"busy-reply-threshold", b"0"]
    assert run(client, "local n = 0 for i = 1, 3000000 do n = n + 1 end return n") == 3000000


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "script",
    [
        "local t = {} for i = 1, 1e9 do t[i] = ('x'):rep(1000) .. i end",
        "local s = 'x' while true do s = s .. s end",
        "return ('x'):rep(2^30)",
        "local t = {} for i = 1, 1e9 do t[i] = redis.call('get', 'big') .. i end",
        "local t = {} while true do t[#t + 1] = redis.call('lrange', 'list', 0, -1) end",
        "local t = {} while true do pcall(function() t[#t + 1] = ('x'):rep(1e6) .. #t end) end",
    ],
)
def test_a_script_that_eats_memory_is_stopped(client: Client, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """A script that exceeds the memory limit, also by replies, is stopped. The next script has a new runtime."""
    monkeypatch.setattr(scripts, "MEMORY", 16 * 1024 * 1024)
    client.call("CONFIG", "SET", "busy-reply-threshold", "0")
    client.call("SET", "big", "y" * 100_000)
    client.call("RPUSH", "list", *[f"element {number}" for number in range(1000)])
    assert "not enough memory" in line_of(run(client, script))
    assert run(client, "return redis.call('strlen','big')") == 100_000


@pytest.mark.parametrize("depth", [10, 5000])
def test_deep_results_do_not_break_the_server(client: Client, depth: int) -> None:
    """A reply nested more than a thousand levels ends in an error inside it."""
    reply = client.send("EVAL", f"local t = 1 for i = 1, {min(depth, 400)} do t = {{t}} end return t", "0")
    for _ in range(min(depth, 400)):
        assert isinstance(reply, list)
        (reply,) = reply
    assert reply == 1
    outcome = client.world.node.execute(
        client.session, [b"EVAL", b"local t = {} t[1] = t return t", b"0"], client.world.clock.now()
    )
    assert outcome is not None
    wire = b"".join(outcome.buffers)
    assert wire.startswith(b"*1\r\n*1\r\n")
    assert wire.endswith(b"-ERR reached lua stack limit\r\n")


def test_endless_recursion_is_an_error(client: Client) -> None:
    """Endless recursion and deep JSON are errors."""
    assert "stack overflow" in line_of(run(client, "local function f() return 1 + f() end return f()"))
    assert "excessive depth" in line_of(run(client, "local t = {} t[1] = t return cjson.encode(t)"))
    assert "too many nested" in line_of(run(client, "return cjson.decode(('['):rep(2000))"))


# ---------------------------------------------------------------------- the sandbox


OUTSIDE = (
    "os io package require loadfile dofile debug module newproxy getfenv setfenv print python lupa host arm "
    "string.dump coroutine.debug redis.host cjson.new"
)


@pytest.mark.parametrize("name", OUTSIDE.split())
def test_what_reaches_outside_is_not_there(client: Client, name: str) -> None:
    """Scripts have no access to files, processes, environments, compiled code or host objects."""
    reply = run(client, f"return type({name})")
    assert reply == b"nil" if "." in name else "nonexistent global variable" in line_of(reply)


def test_no_object_of_the_host_can_be_reached(client: Client) -> None:
    """A script can reach only functions, tables and plain values of Lua."""
    script = """
        local seen, kinds = {}, {}
        local function walk(value)
          local kind = type(value)
          kinds[kind] = true
          if kind == 'table' and not seen[value] then
            seen[value] = true
            for k, v in pairs(value) do walk(k) walk(v) end
            local meta = getmetatable(value)
            if type(meta) == 'table' then walk(meta) end
          end
        end
        for _, name in ipairs({'string','table','math','coroutine','bit','redis','cjson','_G','KEYS','ARGV'}) do
          walk(_G[name])
        end
        walk(getmetatable(''))
        for _, f in ipairs({redis.call, redis.pcall, pcall, error, cjson.encode, bit.band}) do walk(f) end
        return kinds.userdata == nil and kinds.thread == nil
    """
    assert run(client, script) == 1
    for words in ("redis.call('get')", "redis.call({})", "bit.band({})", "cjson.decode({})", "redis.sha1hex({})"):
        assert run(client, f"local ok, e = pcall(function() return {words} end) return type(e)") == b"string"


@pytest.mark.parametrize(
    "script",
    [
        "string.upper = nil",
        "redis.call = nil",
        "_G.pcall = nil",
        "rawset(string, 'upper', 1)",
        "setmetatable(string, {})",
        "rawset(_G, 'leak', 1)",
        "getmetatable('').__index = nil",
        "getmetatable(_G).__index = nil",
        "leak = 1",
    ],
)
def test_nothing_is_left_behind_for_the_next_script(client: Client, script: str) -> None:
    """A script cannot change the objects that all scripts share."""
    assert isinstance(run(client, script), Error)
    assert run(client, "return ('a'):upper() .. tostring(rawget(_G, 'leak')) .. type(pcall)") == b"Anilfunction"


def test_compiled_code_is_refused(client: Client) -> None:
    """Compiled Lua code is refused."""
    assert run(client, "local f, e = loadstring('\\27Lua') return e") == b"attempt to load a binary chunk"
    assert "binary chunk" in line_of(client.call("EVAL", b"\x1bLuaQ", "0"))
    assert run(client, "local p = {'\\27', 'Lua'} local f, e = load(function() return table.remove(p, 1) end) return e")


def test_keys_and_arguments_are_each_scripts_own(client: Client) -> None:
    """Changes of KEYS and ARGV do not reach the next script."""
    assert client.call("EVAL", "KEYS[1] = 'x' ARGV[5] = 'y' return KEYS[1]", "1", "k", "a") == b"x"
    assert client.call("EVAL", "return {KEYS[1], ARGV[5] or 'none'}", "1", "k", "a") == [b"k", b"none"]


# ---------------------------------------------------------------------- the log, waits, time


def test_a_script_is_one_record(world: World, client: Client) -> None:
    """All changes of a script are one record, and a script that only reads logs nothing."""
    script = """
        redis.call('set', 's', '1') redis.call('hset', 'h', 'a', '1') redis.call('zadd', 'z', '1.5', 'm')
        redis.call('rpush', 'l', 'a', 'b') redis.call('sadd', 'e', 'x') redis.call('xadd', 'x', '*', 'f', 'v')
        redis.call('select', '3') redis.call('set', 'other', '1')
        return redis.call('dbsize')
    """
    assert run(client, script) == 1
    assert client.call("DBSIZE") == 6, "SELECT holds inside the script only"
    assert len(world.log.payloads) == 1
    assert client.barrier == 1
    run(client, "return redis.call('get', 's')")
    assert len(world.log.payloads) == 1
    assert snapshot(world.recovered()) == snapshot(world.node)


@pytest.mark.parametrize(("resp", "found"), [(2, b"1%s" % (b"0" * 400)), (3, b"inf")])
def test_a_number_beyond_a_double_reaches_a_script(client: Client, resp: int, found: bytes) -> None:
    """INCREX's number beyond a double reaches a script as text in RESP2, and as a double in RESP3."""
    script = "redis.setresp(tonumber(ARGV[1])) local n = redis.call('INCREX', 'k', 'BYFLOAT', '1e400')[1] return n"
    answer = client.call("EVAL", script, "0", str(resp))
    assert answer[:3] == found[:3]


def test_time_stands_still_in_a_script(client: Client) -> None:
    """The clock does not advance during a script, so generated ids share their time."""
    script = "return {redis.call('xadd','x','*','f','v'), redis.call('xadd','x','*','f','v'), redis.call('time')[1]}"
    first, second, _ = run(client, script)
    assert first.partition(b"-")[0] == second.partition(b"-")[0]
    assert (first[-2:], second[-2:]) == (b"-0", b"-1")


def test_those_who_wait_are_served_after_the_script(world: World, client: Client) -> None:
    """Waiting clients are served after the script, with the state it leaves."""
    reader, popper = world.client(), world.client()
    assert reader.send("XREAD", "BLOCK", "0", "STREAMS", "x", "$") is WAITING
    assert popper.send("BLPOP", "l", "0") is WAITING
    run(
        client,
        "for i = 1, 3 do redis.call('xadd', 'x', i .. '-0', 'f', 'v') redis.call('rpush', 'l', i) end "
        "redis.call('lpop', 'l')",
    )
    assert [entry[0] for entry in reader.inbox[0][0][1]] == [b"1-0", b"2-0", b"3-0"]
    assert popper.inbox == [[b"l", b"2"]]


@pytest.mark.parametrize(
    "command", ["'xread','block','0','streams','none','$'", "'blpop','none','0'", "'brpop','none','0'"]
)
def test_commands_do_not_wait_inside_a_script(client: Client, command: str) -> None:
    """Blocking commands in a script reply null at once."""
    assert run(client, f"return redis.call({command})") is None


def test_scripts_in_a_transaction(world: World, client: Client) -> None:
    """EVAL in a transaction is queued, and both are one record."""
    for words in (["MULTI"], ["SET", "a", "1"], ["EVAL", "return redis.call('incr', KEYS[1])", "1", "a"]):
        client.call(*words)
    assert client.call("EXEC") == [Simple(b"OK"), 2]
    assert len(world.log.payloads) == 1


def test_a_changed_watch_is_noticed(world: World, client: Client) -> None:
    """A script's write breaks a WATCH."""
    other = world.client()
    client.call("WATCH", "a")
    run(other, "redis.call('set', 'a', '1')")
    client.call("MULTI")
    client.call("PING")
    assert client.call("EXEC") is None


# ---------------------------------------------------------------------- who may, the cache, the rest


def test_permissions_hold_inside_a_script(world: World, client: Client) -> None:
    """A user's script runs only the commands and uses only the keys that the user may."""
    client.call("ACL", "SETUSER", "u", "on", "nopass", "+eval", "+get", "+auth", "~k*")
    user = world.client()
    user.call("AUTH", "u", "x")
    refused = line_of(run(user, "return redis.call('set','k','v')"))
    assert "ACL failure in script: User u has no permissions to run the 'set' command" in refused
    assert "ACL failure in script" in line_of(run(user, "return redis.call('get','other')"))
    assert run(user, "return redis.call('get','k')") is None


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        ("'get', 'k1'", b"true"),
        ("'get', 'other'", b"false"),
        ("'get'", b"true"),
        ("'get', 1", b"false"),
        ("'set', 'k1', 'v'", b"false"),
        ("'xgroup', 'nosuch'", "ERR Invalid command passed to redis.acl_check_cmd()"),
        ("'nosuch'", "ERR Invalid command passed to redis.acl_check_cmd()"),
        ("", "ERR Please specify at least one argument for this redis lib call"),
        ("{}", "ERR Lua redis lib command arguments must be strings or integers"),
    ],
)
def test_a_script_may_ask_what_it_may_do(world: World, client: Client, call: str, answer: bytes | str) -> None:
    """redis.acl_check_cmd replies as in Redis 7.0 and adds nothing to ACL LOG."""
    client.call("ACL", "SETUSER", "u", "on", "nopass", "+eval", "+get", "+auth", "~k*")
    user = world.client()
    user.call("AUTH", "u", "x")
    found = run(user, f"return tostring(redis.acl_check_cmd({call}))")
    if isinstance(answer, bytes):
        assert found == answer
    else:
        assert line_of(found).startswith(answer + " script: ")
    assert client.call("ACL", "LOG") == []


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        ("redis.setresp(3.5)", None),
        ("redis.setresp('x')", "ERR RESP version must be 2 or 3."),
        ("redis.set_repl(redis.REPL_ALL)", None),
        ("redis.set_repl(1.5)", None),
        ("redis.set_repl('x')", None),
        ("redis.set_repl()", "ERR redis.set_repl() requires one argument."),
        ("redis.set_repl(99)", "ERR Invalid replication flags. Use REPL_AOF, REPL_REPLICA, REPL_ALL or REPL_NONE."),
        ("redis.breakpoint()", None),
        ("redis.debug('x', {})", None),
    ],
)
def test_calls_that_change_nothing_here_are_read_as_redis_reads_them(
    client: Client, call: str, answer: str | None
) -> None:
    """Calls about replication and debugging are accepted without effect, and invalid ones are refused, as in Redis."""
    found = run(client, f"return {call}")
    if answer is None:
        assert found is None
    else:
        assert line_of(found).startswith(answer + " script: ")


def test_scripts_are_kept_by_their_sha(client: Client) -> None:
    """EVAL and SCRIPT LOAD keep a script, EVALSHA runs it in upper or lower case, SCRIPT FLUSH removes all."""
    source = "return ARGV[1]"
    sha = hashlib.sha1(source.encode()).hexdigest()
    missing = Error("NOSCRIPT No matching script. Please use EVAL.")
    assert client.call("EVALSHA", sha, "0", "x") == missing
    assert client.call("SCRIPT", "LOAD", source) == sha.encode()
    assert client.call("EVALSHA", sha.upper(), "0", "x") == b"x"
    assert client.call("EVALSHA_RO", sha, "0", "x") == b"x"
    assert client.call("SCRIPT", "EXISTS", sha, "0" * 40) == [1, 0]
    assert client.call("SCRIPT", "FLUSH", "ASYNC") == Simple(b"OK")
    assert client.call("EVALSHA", sha, "0", "x") == missing
    run(client, source, "x")
    assert client.call("EVALSHA", sha, "0", "x") == b"x"


def test_only_so_many_scripts_of_eval_are_kept(client: Client) -> None:
    """The number of scripts kept by EVAL is limited, and loaded scripts stay."""
    loaded = client.call("SCRIPT", "LOAD", "return 'loaded'")
    shas = [hashlib.sha1(f"return {number}".encode()).hexdigest() for number in range(scripts.EVAL_KEPT + 10)]
    for number in range(len(shas)):
        run(client, f"return {number}")
    found = client.call("SCRIPT", "EXISTS", *shas)
    assert found == [0] * 10 + [1] * scripts.EVAL_KEPT
    assert client.call("SCRIPT", "EXISTS", loaded) == [1]


@pytest.mark.parametrize("inner", ["'set','a','b'", "'publish','a','b'"])
@pytest.mark.parametrize("command", ["EVAL_RO", "EVAL"])
def test_read_only_scripts_do_not_write(world: World, client: Client, command: str, inner: str) -> None:
    """A read-only script, by its command or first line, may not write or publish."""
    head = "#!lua flags=no-writes\n" if command == "EVAL" else ""
    reply = client.call(command, f"{head}return redis.call({inner})", "0")
    assert line_of(reply).startswith("ERR Write commands are not allowed from read-only scripts.")
    assert world.log.payloads == []


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["EVAL", "return 1", "x"], "ERR value is not an integer or out of range"),
        (["EVAL", "return 1", "1"], "ERR Number of keys can't be greater than number of args"),
        (["EVAL", "return 1", "-1"], "ERR Number of keys can't be negative"),
        (["SCRIPT", "KILL"], "NOTBUSY No scripts in execution right now."),
        (["SCRIPT", "FLUSH", "x"], "ERR SCRIPT FLUSH only support SYNC|ASYNC option"),
        (["SCRIPT", "NOSUCH"], "ERR unknown subcommand 'NOSUCH'. Try SCRIPT HELP."),
        (["FUNCTION", "NOSUCH"], "ERR unknown subcommand 'NOSUCH'. Try FUNCTION HELP."),
        (["FUNCTION", "FLUSH", "x"], "ERR FUNCTION FLUSH only supports SYNC|ASYNC option"),
    ],
)
def test_refusals(client: Client, words: list[str], line: str) -> None:
    """Invalid script commands are refused with Redis's errors."""
    assert client.call(*words) == Error(line)


def test_functions_are_none(client: Client) -> None:
    """FUNCTION FLUSH and FUNCTION LIST work, although there are no functions."""
    assert client.call("FUNCTION", "FLUSH") == Simple(b"OK")
    assert client.call("FUNCTION", "LIST", "LIBRARYNAME", "*", "WITHCODE") == []
    assert any(b"LOAD" in line.text for line in client.call("SCRIPT", "HELP"))


def test_a_script_writes_to_the_servers_log(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    """redis.log writes one line with its level to the server's log."""
    with caplog.at_level(logging.DEBUG, "millstream.script"):
        run(client, "redis.log(redis.LOG_WARNING, 'careful', 7)")
    assert [(record.levelname, record.message) for record in caplog.records] == [("WARNING", "careful 7")]


def test_without_lupa_the_error_says_what_to_install(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without lupa, a script's error states how to install it, and the server runs."""
    monkeypatch.setitem(sys.modules, "lupa", None)
    assert "pip install 'millstream[server]'" in line_of(run(client, "return 1"))
    assert client.call("SCRIPT", "EXISTS", "0" * 40) == [0]


def test_versions_are_those_clients_are_told(client: Client) -> None:
    """A script sees the same version numbers as INFO."""
    assert run(client, "return {redis.REDIS_VERSION, redis.REDIS_VERSION_NUM}") == [b"8.10.0", 0x080A00]


LIST = "redis.call('rpush', 'list', 'x')\n"


@pytest.mark.parametrize(
    ("script", "line"),
    [
        ("return redis.call('incr', 'list')", 2),
        ("return\nredis.call('incr', 'list')", 3),
        ("return redis.call(\n'incr',\n'list'\n)", 2),
        ("return redis.call('incr', tostring('list'))", 2),
        ("local function f() return redis.call('incr', 'list') end\n\nreturn f() .. 'x'", 2),
        ("return pcall(error) or\nredis.call 'incr'", 3),
        ("-- return redis.call(1)\nreturn cjson.decode(')')", 3),
        ("local s = [[return redis.call(')]]\nreturn ('x'):rep({})", 3),
    ],
)
def test_the_place_of_an_error_is_that_of_the_librarys_call(client: Client, script: str, line: int) -> None:
    """An error's position is that of the library call, also for a tail call, and despite texts and comments."""
    assert line_of(run(client, LIST + script)).endswith(f", on @user_script:{line}.")


def test_a_scripts_own_tail_calls_fill_no_stack(client: Client) -> None:
    """A script may make any number of tail calls. Other calls have Lua's limit."""
    assert run(client, "local function f(n) if n == 0 then return 'done' end return f(n - 1) end return f(300000)")
    deep = "local function f(n) if n == 0 then return 1 end return 1 + f(n - 1) end return f(300000)"
    assert "stack overflow" in line_of(run(client, deep))


@pytest.mark.parametrize("head", ["#!lua", "#!lua flags=allow-oom"])
def test_a_script_that_may_write_is_refused_by_eval_ro(client: Client, head: str) -> None:
    """EVAL_RO refuses a script whose first line lacks no-writes."""
    line = "ERR Can not execute a script with write flag using *_ro command."
    source = f"{head}\nreturn 1"
    assert line_of(client.call("EVAL_RO", source, "0")) == line
    assert line_of(client.call("EVALSHA_RO", client.call("SCRIPT", "LOAD", source), "0")) == line

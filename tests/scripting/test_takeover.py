"""Attacks with EVAL alone: a hostile user tries to reach host objects, other users' scripts and permissions."""

import pytest

from millstream.replies import Error, Simple
from scripting.hostile import FINGERPRINT, FUNCTIONS
from support.inprocess import Client, World

HOST = [name for name in FUNCTIONS if name.startswith(("redis.", "bit.", "cjson."))]


@pytest.fixture
def world() -> World:
    return World({"busy-reply-threshold": "500"})


@pytest.fixture
def client(world: World) -> Client:
    return world.client()


def run(client: Client, script: str) -> object:
    return client.call("EVAL", script, "0")


@pytest.mark.parametrize("name", HOST)
def test_no_function_of_the_host_lets_go_of_an_object_of_its_own(client: Client, name: str) -> None:
    """Every host function returns or raises only Lua values, for any argument."""
    script = f"""
        local values = {{1/0, -1/0, 0/0, 2^53, 2^63, -2^63, 1e300, -1e300, '', 'x', true, {{}}, _G, print}}
        local bad = 0
        local function see(...)
          for at = 1, select('#', ...) do
            local value = (select(at, ...))
            if type(value) == 'userdata' and value ~= cjson.null then bad = bad + 1 end
          end
        end
        for i = 1, 14 do
          see(pcall({name}, values[i]))
          for j = 1, 14 do
            see(pcall({name}, values[i], values[j]))
            see(pcall({name}, 1, values[i], values[j]))
          end
        end
        return bad
    """.replace(", print}", ", tostring}")
    assert run(client, script) == 0
    assert run(client, "return ('a'):upper() .. bit.tohex(10, 2)") == b"A0a"


@pytest.mark.parametrize(
    "attempt",
    [
        "local ok, e = pcall(bit.tohex, 1, 1/0) getmetatable(e).__call = function() end",
        "local ok, e = pcall(redis.log, 0/0, 'x') getmetatable(e).__index = redis",
        "getmetatable(redis.call).__call = function() end",
        "getmetatable('').__index = {upper = function() return 'stolen' end}",
        "table.insert(_G, 'stolen')",
        "table.insert(redis, 1, 'stolen')",
        "table.insert(string, 'stolen')",
        "rawset(redis, 'call', function() return 'stolen' end)",
        "string.upper = function() return 'stolen' end",
        "_G.redis = {call = function() return 'stolen' end}",
        "math.randomseed(0) math.random()",
        "KEYS[1] = 'stolen' ARGV[1] = 'stolen'",
        "loadstring('stolen = 1')()",
        "setmetatable(_G, {__index = function() return 'stolen' end})",
        "setmetatable(cjson.null, {__tostring = function() return 'stolen' end})",
        "pcall(table.sort, redis, function() return true end)",
        "coroutine.wrap(function() KEYS.x = coroutine.running() coroutine.yield() end)()",
        "for i = 1, 300 do ('x'):find(('%d'):rep(i)) end",
        "local t = {} while true do t[#t + 1] = ('x'):rep(1e6) .. #t end",
        "while true do end",
        "error(redis)",
    ],
)
def test_nothing_a_script_does_outlives_it(world: World, client: Client, attempt: str) -> None:
    """Nothing that a script does changes what the next script sees."""
    before = run(client, FINGERPRINT)
    assert isinstance(before, bytes)
    run(world.client(), attempt)
    assert run(client, FINGERPRINT) == before
    assert b"stolen" not in before


def test_a_user_who_may_only_run_scripts_gets_nothing_else(world: World, client: Client) -> None:
    """A user who may only run scripts gets no further permission by any script."""
    client.call("SET", "secret", "s3cret")
    client.call("ACL", "SETUSER", "mallory", "on", "nopass", "-@all", "+eval", "+evalsha", "~own*")
    mallory = world.client()
    # AUTH is always allowed; the session is mallory's from here on
    assert mallory.call("AUTH", "mallory", "x") == Simple(b"OK")
    sha = client.call("SCRIPT", "LOAD", "return redis.call('get', 'secret')")
    assert isinstance(sha, bytes)
    read = "return redis.call('get', 'secret')"
    for attempt in (
        read,
        "local ok, e = pcall(bit.tohex, 1, 1/0) pcall(function() getmetatable(e).__call = error end) " + read,
        "return coroutine.wrap(function() return redis.call('get', 'secret') end)()",
        "return loadstring(\"return redis.call('get', 'secret')\")()",
        "local r = redis.pcall('set', 'own', 'x') return r.err and redis.error_reply(r.err) or r",
        "redis.setresp(3) return redis.call('get', 'secret')",
    ):
        refused = run(mallory, attempt)
        assert isinstance(refused, Error), (attempt, refused)
        assert "ACL failure in script" in refused.line
    assert client.call("EVALSHA", sha, "0") == b"s3cret"
    answer = mallory.call("EVALSHA", sha, "0")
    assert isinstance(answer, Error)
    assert "ACL failure in script" in answer.line
    run(mallory, "pcall(redis.call, 'get', 'secret') while true do end")
    assert run(client, "return redis.call('get', 'secret')") == b"s3cret"


def test_a_fault_of_ours_ends_the_script_and_is_reported(
    world: World, client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An internal error ends the script, which cannot catch it, and is logged. The next script works."""

    def broken(*_: object) -> None:
        raise RuntimeError("a defect")

    with monkeypatch.context() as patch:
        patch.setattr(world.node.scripts, "_run_command", broken)
        answer = run(client, "local ok, e = pcall(redis.call, 'echo', 'k') return type(e)")
    assert answer == Error("ERR internal error in 'eval'; the server's log has the details")
    assert "a defect" in caplog.text
    assert run(client, "return redis.call('echo', 'x')") == b"x"


def test_an_interrupt_is_the_callers_and_not_the_scripts(
    world: World, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C during a script's command is raised in the program with the store."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(world.node.scripts, "_run_command", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(client, "while true do pcall(redis.call, 'echo', 'k') end")
    assert run(client, "return 1") == 1


def test_an_interrupt_while_a_script_is_compiled_is_that_scripts(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while a script is compiled does not affect the next script."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    assert run(client, "return 1") == 1
    with monkeypatch.context() as patch:
        patch.setattr("millstream.node.scripting.bytecode.objection", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(client, "return 2")
    assert run(client, "return 1") == 1
    assert run(client, "return 2") == 2


def test_addresses_of_the_process_are_not_told(client: Client) -> None:
    """A table's or function's text has a counter instead of its memory address."""
    script = "local t, f = {}, tostring return {tostring(t), tostring(f), tostring(t), tostring(cjson.null)}"
    expected = [b"table: 0x000000000020", b"function: 0x000000000040", b"table: 0x000000000020", b"userdata: (nil)"]
    assert run(client, script) == expected
    assert run(client, script) == expected


def test_memory_stays_limited_where_the_stack_has_no_room(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory limit also applies after a host call at the deepest level of the stack."""
    monkeypatch.setattr("millstream.node.scripting.scripts.MEMORY", 16 * 1024 * 1024)
    for levels in range(16_371, 16_376):  # Lua's list of calls is full at 16384
        for before in (0, 4000):  # instructions: not every look at the clock may come in between
            answer = run(
                client,
                f"""
                for i = 1, {before} do end
                local function deep(n) if n == 0 then redis.call('ping') else return 1 + deep(n - 1) end end
                coroutine.wrap(function() pcall(deep, {levels}) end)()
                local s = 'x' for i = 1, 25 do s = s .. s end redis.call('set', 'beyond', #s)
                """,
            )
            assert isinstance(answer, Error), (levels, before)
            assert "not enough memory" in answer.line
            assert client.call("EXISTS", "beyond") == 0


@pytest.mark.parametrize(
    ("number", "text"),
    [
        ("0.1", b"0.1"),
        ("3.3", b"3.3"),
        ("-0.5", b"-0.5"),
        ("1e17", b"100000000000000000"),
        ("2^53", b"9007199254740992"),
        ("2^62", b"4611686018427387904"),
        ("2^63", b"9223372036854776000"),
        ("1e20", b"1e+20"),
        ("1e300", b"1e+300"),
        ("1e-7", b"1e-7"),
        ("-0", b"0"),
        ("1/3", b"0.3333333333333333"),
        ("1/0", b"inf"),
        ("-1/0", b"-inf"),
    ],
)
def test_numbers_in_commands_have_their_shortest_text(client: Client, number: str, text: bytes) -> None:
    """A number in a command has its shortest text, as in Redis since 7.2."""
    assert run(client, f"redis.call('set', 'k', {number}) return redis.call('get', 'k')") == text


@pytest.mark.parametrize("count", [199, 200, 201, 400, 401, 4000, 7999])
def test_as_many_words_as_fit_on_the_stack_reach_a_command(client: Client, count: int) -> None:
    """As many arguments as fit on Lua's stack reach a command, in order."""
    script = f"local t = {{}} for i = 1, {count - 2} do t[i] = i end redis.call('rpush', 'l', unpack(t))"
    run(client, script)
    assert client.call("LRANGE", "l", "0", "-1") == [b"%d" % number for number in range(1, count - 1)]
    assert run(client, "return redis.call('echo', 'after')") == b"after"


@pytest.mark.parametrize("source", ["return redis.x(" * 15_000, "[[" * 100_000, "return {" * 50_000, "--[[" * 100_000])
@pytest.mark.timeout(60)
def test_sources_that_make_no_sense_are_refused_at_once(client: Client, source: str) -> None:
    """Sources without meaning are refused in one pass over their text."""
    refused = run(client, source)
    assert isinstance(refused, Error)
    assert refused.line.startswith("ERR Error compiling script")


@pytest.mark.parametrize(
    "source",
    [
        "while 1 do " + "do break end " * 130_000 + "end",
        "if x then " + "elseif x then " * 100_000 + "end",
        "return " + "a and " * 100_000 + "1",
        "local a, b, c, d, e, f, g, h local function f() " * 190 + "x = x " * 400_000 + "end " * 190,
    ],
)
@pytest.mark.timeout(60)
def test_sources_that_would_hold_the_compiler_are_refused(client: Client, source: str) -> None:
    """Sources that would take the compiler too long are refused. Long and simple ones are accepted."""
    refused = run(client, source)
    assert isinstance(refused, Error)
    assert "takes too long to compile" in refused.line
    assert "pass data as arguments" in refused.line
    assert run(client, "return #{" + "'some text', " * 30_000 + "}") == 30_000


def test_what_a_script_logs_is_one_short_line(caplog: pytest.LogCaptureFixture) -> None:
    """A script's log line is short, printable and a single line."""
    client = World({}).client()
    client.call("EVAL", r"redis.log(3, 'a\27[2J\nb', ('x'):rep(1000000))", "0")
    (line,) = (record.getMessage() for record in caplog.records if record.name == "millstream.script")
    assert line.startswith(r"a\x1b[2J\nb xxx")
    assert line.isprintable()
    assert len(line) < 1100

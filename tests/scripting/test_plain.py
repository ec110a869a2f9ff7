"""Plain commands of scripts take a fast path with the same effect as alone and in a transaction."""

import itertools
from typing import Any

import pytest

from millstream import core
from millstream.commands.context.config import Config
from millstream.commands.table.table import TABLE
from millstream.engine.keyspace import Keyspace, StringValue
from millstream.node.log import codec
from millstream.replies import Error
from node.test_batch import GROUP, Lines, counted
from support import campaign
from support.inprocess import Client, World
from support.plain import needs_runner
from support.state import check, snapshot
from support.wire import pack

# ARGV: of each command how many words, and the words; 'n' before them: those that are numbers go as Lua's numbers
SCRIPT = r"""
local at, replies = 2, {}
while ARGV[at] do
  local words = {}
  for word = 1, tonumber(ARGV[at]) do
    words[word] = ARGV[at + word]
    if ARGV[1] == 'n' and string.find(words[word], '^[1-9]%d?%d?%d?%d?%d?%d?%d?%d?$') then
      words[word] = tonumber(words[word])
    end
  end
  replies[#replies + 1] = redis.pcall(unpack(words))
  at = at + 1 + #words
end
return replies
"""
# Commands forbidden to scripts, those that change more than data, and those with another reply inside a script
ELSEWHERE = frozenset({b"MULTI", b"EXEC", b"WATCH", b"CONFIG", b"CLIENT", b"HELLO", b"SELECT", b"NOSUCH"})


def commands_of(lines: Lines, count: int) -> list[list[bytes]]:
    """Return random commands that have the same effect in a script, in a transaction and alone."""
    made = (lines.one() for _ in itertools.count())
    same = (one for one in made if one[0] not in ELSEWHERE and b"BLOCK" not in one)
    whole = (one for one in same if len(one) >= abs(TABLE[one[0].lower()].arity) or one[0] == b"XGROUP")
    return list(itertools.islice(whole, count))


def words_of(commands: list[list[bytes]], kind: str) -> list[bytes]:
    """Return an EVAL of the commands."""
    words = [word for command in commands for word in (b"%d" % len(command), *command)]
    return [b"EVAL", SCRIPT.encode(), b"0", kind.encode(), *words]


def alike(reply: Any) -> Any:
    """Remove from a reply what a script cannot return: the kind of null, an error's position, more than 53 bits."""
    if isinstance(reply, int) and abs(reply) > 2**53:
        return "a number too large for Lua"
    if isinstance(reply, list):
        return [alike(item) for item in reply]
    if type(reply).__name__ == "Error":
        return "an error"
    return None if type(reply).__name__ == "NilArray" else reply


def steps_of(world: World, before: int) -> list[Any]:
    """Return the changes logged since."""
    return [step for payload in world.log.payloads[before:] for step in codec.unpack(payload)[1]]


def compare_ways(seed: int, rounds: int = 8) -> None:
    """Compare commands run alone, in a transaction and in a script: the same replies, data, and changes in the log."""
    lines = Lines(seed)
    config = {"stream-node-max-entries": lines.random.choice(["100", "5", "1"])}
    worlds = [World(config) for _ in range(3)]
    single, queued, scripted = asking = [world.client() for world in worlds]
    for client, line in itertools.product(asking, GROUP):
        client.call(*line.split())
    for _ in range(rounds):
        commands = commands_of(lines, lines.random.randrange(1, 20))
        before = [world.log.appended for world in worlds]
        replies = [single.call(*command) for command in commands]
        for command in ([b"MULTI"], *commands):
            queued.call(*command)
        assert alike(queued.call("EXEC")) == alike(replies), (seed, commands)
        answer = scripted.call(*words_of(commands, lines.random.choice("sn")))
        assert alike(answer) == alike(replies), (seed, commands)
        changes = [steps_of(world, at) for world, at in zip(worlds, before, strict=True)]
        assert changes[0] == changes[1] == changes[2], (seed, commands)
        assert scripted.world.log.appended <= before[2] + 1
        assert snapshot(worlds[0].node) == snapshot(worlds[1].node) == snapshot(worlds[2].node), (seed, commands)
        for world in worlds:
            check(world.node)
            world.clock.advance(seed % 3)
    assert snapshot(worlds[2].recovered()) == snapshot(worlds[2].node)


def compare_scripts(seed: int, rounds: int = 8) -> None:
    """Compare scripts with and without the fast path: the same in every respect."""
    lines = Lines(seed)
    config = {"stream-node-max-entries": lines.random.choice(["100", "5", "1"])}
    plain, ordinary = worlds = [World(config) for _ in range(2)]
    asking, waiting = ([world.client() for world in worlds] for _ in range(2))
    for client, line in itertools.product(asking, GROUP):
        client.call(*line.split())
    for world, line in zip(worlds, (("WATCH nobody's", "UNWATCH"), ("UNWATCH", "WATCH nobody's")), strict=True):
        other = world.client()
        for words in line:
            other.call(*words.split())
    for _ in range(rounds):
        for client in waiting:
            if seed % 2 and not client.session.blocked:
                client.send("XREAD", "BLOCK", 0, "STREAMS", "s", "t", "$", "$")
        commands = [one for one in (lines.one() for _ in range(25)) if one[0] not in {b"CONFIG", b"CLIENT"}]
        words = words_of(commands, lines.random.choice("sn"))
        asked = [[b"MULTI"], words, [b"SET", b"str", b"v"], [b"EXEC"]] if lines.random.random() < 0.2 else [words]
        replies = [[client.raw(*line) for line in asked] for client in asking]
        assert replies[0] == replies[1], (seed, commands)
        for world in worlds:
            world.deliver()
        assert snapshot(plain.node) == snapshot(ordinary.node), (seed, commands)
        assert counted(plain) == counted(ordinary), (seed, commands)
        assert waiting[0].inbox == waiting[1].inbox, (seed, commands)
        assert steps_of(plain, 0) == steps_of(ordinary, 0), (seed, commands)
        assert plain.log.appended == ordinary.log.appended
        assert asking[0].barrier == asking[1].barrier, (seed, commands)
        mine, theirs = (client.session for client in asking)
        assert (mine.db, mine.resp, mine.last_command) == (theirs.db, theirs.resp, theirs.last_command)
        for world in worlds:
            check(world.node)
            world.clock.advance(seed % 3)


@pytest.mark.parametrize("part", range(3))
def test_a_script_does_what_its_commands_do_by_themselves_and_in_a_transaction(part: int) -> None:
    """A script's commands have the same replies, data and changes as alone and in a transaction, in one record."""
    for seed in range(part * 12, part * 12 + 12):
        compare_ways(seed)


@pytest.mark.parametrize("part", range(3))
def test_nothing_tells_whether_a_scripts_commands_were_plain(part: int) -> None:
    """The fast path changes no reply, data, record, counter, wake-up or barrier of a script."""
    for seed in range(part * 12, part * 12 + 12):
        compare_scripts(seed)


@pytest.mark.long
@pytest.mark.timeout(campaign.LIMIT)
def test_many_scripts_of_plain_commands() -> None:
    """For 10,000 seeds, scripts equal their commands run alone, and the fast path changes nothing."""

    def some(piece: int) -> None:
        for seed in range(piece * 100, piece * 100 + 100):
            compare_ways(seed)
            compare_scripts(seed)

    campaign.run("scripts", some, range(1, 101))


@pytest.fixture
def client() -> Client:
    client = World({"busy-reply-threshold": "0"}).client()  # none: a slow machine takes longer than others allow
    for line in (*GROUP, "XADD s 1-2 a b"):
        client.call(*line.split())
    return client


def ordinary_calls(client: Client, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the commands of scripts that do not take the fast path."""
    found: list[str] = []
    admission = client.world.node.admission
    refusal_inside = admission.refusal_inside

    def noted(ctx: Any, row: Any, argv: list[bytes]) -> Any:
        found.append(row.name)
        return refusal_inside(ctx, row, argv)

    monkeypatch.setattr(admission, "refusal_inside", noted)
    return found


@needs_runner
@pytest.mark.parametrize(
    ("script", "ordinary"),
    [
        ("redis.call('SET', 'k', 'v') redis.call('xadd', 's', '*', 'f', 'v') return redis.call('GET', 'k')", []),
        ("redis.call('SET', 'k', 7) return redis.call('GET', 'k')", []),
        ("redis.call('SET', 'k', 1.5) return redis.call('GET', 'k')", ["set"]),
        ("redis.call('HSET', 'h', 'f', 'v') redis.call('SET', 'k', 'v')", ["hset"]),
        ("redis.setresp(3) redis.call('SET', 'k', 'v') redis.setresp(2) redis.call('GET', 'k')", ["set"]),
        ("for at = 1, 9 do redis.call('XACK', 's', 'g', '1-1', '1-2', '1-3', '1-4', '1-5', '1-6', at) end", []),
        ("redis.call('SELECT', 1) redis.call('SET', 'k', 'v') redis.call('SELECT', 0)", ["select", "select"]),
    ],
)
def test_plain_commands_of_scripts_are_not_given_to_handlers(
    client: Client, monkeypatch: pytest.MonkeyPatch, script: str, ordinary: list[str]
) -> None:
    """Plain commands of a script take the fast path, in any order with others and any number of arguments."""
    found = ordinary_calls(client, monkeypatch)
    client.call("EVAL", script, 0)
    assert found == ordinary


@needs_runner
def test_a_worker_acknowledges_by_plain_commands(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scripts by which a worker acknowledges entries take the fast path, also with waiting clients."""
    from millstream.worker.settlement.fence_scripts import MOVE

    client.world.client().send("XREADGROUP", "GROUP", "g", "d", "BLOCK", "0", "STREAMS", "s", ">")
    client.call("XADD", "s", "1-3", "f", "v")
    found = ordinary_calls(client, monkeypatch)
    words = ("g", "d", "1", "1-2", "1-2", "", "60", "", "0", "2", "XACK", "g", "0", "1", "1-2")
    assert client.call("EVAL", MOVE, 1, "s", *words) == [[], 1, None, None, None]
    assert found == []


def test_a_script_of_many_changes_is_one_record(client: Client) -> None:
    """A script with many changes is one record of the log."""
    world, before = client.world, client.world.log.appended
    script = "for at = 1, 9 do redis.call('SET', KEYS[1] .. at, string.rep('x', 300000)) end"
    client.call("EVAL", script, 1, "k")
    assert world.log.appended == before + 1
    assert len(steps_of(world, before)) == 9
    assert snapshot(world.recovered()) == snapshot(world.node)


@pytest.mark.parametrize(
    "call", ["redis.call('XADD', 's', '*', 'f', 'v')", "pcall(redis.call, 'XADD', 's', '*', 'f', 'v')"]
)
def test_the_time_ends_between_plain_commands_too(client: Client, call: str) -> None:
    """A script of plain commands ends at its time limit, its writes stay in one record, and the next script works."""
    world, before = client.world, client.world.log.appended
    client.call("CONFIG", "SET", "lua-time-limit", "100")
    stopped = client.call("EVAL", f"while true do {call} end", 0)
    assert isinstance(stopped, Error)
    assert stopped.line.startswith("ERR Script stopped after 100 ms (busy-reply-threshold); what it had written stays")
    assert world.log.appended == before + 1
    added = len(steps_of(world, before))
    assert added > 1
    assert client.call("XLEN", "s") == 1 + added
    assert client.call("SCRIPT", "KILL") == Error("NOTBUSY No scripts in execution right now.")
    assert client.call("EVAL", f"return {call} and 1", 0) == 1
    assert snapshot(world.recovered()) == snapshot(world.node)


@pytest.mark.parametrize("count", [1, 3])
def test_what_waits_is_woken_behind_the_script(client: Client, count: int) -> None:
    """A waiting client is woken after the script, by one entry or several."""
    waiting = client.world.client()
    waiting.send("XREAD", "BLOCK", 0, "STREAMS", "s", "$")
    script = "for at = 1, tonumber(ARGV[1]) do redis.call('XADD', 's', '*', 'f', at) end"
    assert client.call("EVAL", script, 0, count) is None
    client.world.deliver()
    entries = [[b"1700000000000-%d" % at, [b"f", b"%d" % (at + 1)]] for at in range(count)]
    assert waiting.inbox == [[[b"s", entries]]]


@pytest.mark.parametrize("count", [1, 4, 5, 300, 1500, 5000])
def test_a_plain_reply_of_any_length_is_the_same_table(client: Client, count: int) -> None:
    """A plain command's reply of any length is the same Lua table as an ordinary one's."""
    for at in range(10, 10 + count):
        client.call("XADD", "m", f"{at}-0", "f", "v")
    client.call("XGROUP", "CREATE", "m", "g", "0")
    client.call("XREADGROUP", "GROUP", "g", "c", "STREAMS", "m", ">")
    for line in (
        f"XRANGE m - + COUNT {count}",
        f"XPENDING m g - + {count}",
        f"XAUTOCLAIM m g c 0 0 COUNT {count} JUSTID",
    ):
        words = line.split()
        script = f"return redis.call({', '.join(map(repr, words))})"
        assert client.call("EVAL", script, 0) == client.call(*words)


@pytest.mark.parametrize("count", [39, 40, 41, 79, 80, 81, 120, 197, 198, 199, 300])
def test_a_plain_command_has_any_number_of_words(client: Client, count: int) -> None:
    """A plain command may have any number of arguments."""
    words = [f"w{at}" * (at % 40) for at in range(2 * (count // 2))]
    script = "redis.call('XADD', 's', '*', unpack(ARGV)) return redis.call('XREVRANGE', 's', '+', '-', 'COUNT', 1)"
    [[_, fields]] = client.call("EVAL", script, 0, *words)  # type: ignore[misc]  # a list it is
    assert fields == [word.encode() for word in words]


def test_an_interrupt_in_a_plain_command_is_the_callers(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C during a plain command is raised in the program with the store, not in the script."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(StringValue, "__init__", interrupted)
        with pytest.raises(KeyboardInterrupt):
            client.call("EVAL", "while true do pcall(redis.call, 'SET', 'k', 'v') end", 0)
    assert client.call("EVAL", "redis.call('SET', 'k', 'v') return redis.call('GET', 'k')", 0) == b"v"


@pytest.mark.parametrize(
    "word", ["{}", "setmetatable({}, {__concat = function() return 'k' end})", "true", "function() end"]
)
def test_what_is_no_word_is_none_in_a_plain_command(client: Client, word: str) -> None:
    """An argument that is not a string or integer is refused in a plain command."""
    line = "ERR Lua redis lib command arguments must be strings or integers"
    assert (
        client.call("EVAL", f"return redis.pcall('XACK', 's', 'g', 1, 2, 3, 4, 5, 6, {word}).err", 0) == line.encode()
    )


@pytest.mark.parametrize(
    "word", ["1e15", "-1", "0", "-0", "0.1", "1e300", "2^53", "99999999999999", "1/0", "1023", "1024"]
)
def test_a_number_is_the_same_word_in_a_plain_command(client: Client, word: str) -> None:
    """A number becomes the same text in a plain command as in others."""
    same = f"redis.call('SET', 'k', {word}) redis.call('APPEND', 'l', {word})"
    assert client.call("EVAL", same + " return redis.call('GET', 'k') == redis.call('GET', 'l')", 0) == 1


# ---------------------------------------------------------------------- the runner by itself


@needs_runner
def test_what_claims_change_is_taken_over_in_time() -> None:
    """Changes of plain claims are applied before they exceed a limit."""
    assert core.native is not None
    client = World().client()
    client.call("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM")
    for _ in range(1_000):
        client.call("XADD", "s", "*", "f", "v")
    client.call("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">")
    runner = core.native.PlainRunner(Config(), {}, {}, True)
    runner.begin(client.world.node.keyspace.databases[0], 1_800_000_000_000, -1, list, [])
    claim = pack("XAUTOCLAIM", "s", "g", "c", "0", "0", "COUNT", "1000", "JUSTID")
    claims = itertools.count()
    while runner.call(claim) is not None:
        assert next(claims) < 1_000
    assert len(runner.end().record) < (1 << 20) + 100_000  # CHANGES_MAX of _core/runs.h


@needs_runner
def test_a_call_that_is_not_plain_or_out_of_time_is_not_run() -> None:
    """The fast path declines commands that are incomplete, followed by others, outside its block, or out of time."""
    assert core.native is not None
    runner, database = core.native.PlainRunner(Config(), {}, {}, True), Keyspace().databases[0]
    runner.begin(database, 1_700_000_000_000, -1, list, [])
    data = pack("SET", "k", "v")
    assert runner.call(data) == (True, b"OK")
    assert runner.call(data + b"*1\r\n") is runner.call(data[:-1]) is None
    assert runner.end().commands == 1
    assert runner.call(pack("PING")) is None
    runner.begin(database, 1, 0, list, [])
    assert runner.call(pack("PING")) is None  # its time is over
    with pytest.raises(TypeError):
        runner.begin(database, 1, 0, list, [])

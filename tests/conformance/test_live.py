"""Random commands to Millstream and to a running redis-server: the same replies, except later versions' changes.

``KNOWN`` is the whole list of allowed differences, each with its reason. A failure prints its seed; repeat it with
``MILLSTREAM_SEED=<seed> make test ARGS=tests/conformance/test_live.py``. The long campaign (``make test-long``) is
a million commands from other seeds, see ``support.campaign``.

Features after 7.0 are not generated: XNACK, XACKDEL, XDELEX, XCFGSET, XIDMPRECORD; CLAIM, MAXCOUNT, MAXSIZE of
XREADGROUP; ``+`` of XREAD; KEEPREF, DELREF, ACKED, IDMP and IDMPAUTO of XADD and XTRIM; delivery counts near 2^63. The
recorded transcripts, from a later server, have those.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from conformance.generator import Command, Generator
from conformance.pipe import Pipe
from conformance.transcripts import as_json, masked
from millstream.replies import Error
from support import campaign
from support.inprocess import World
from support.resp import fields
from support.servers import ServerProcess

pytestmark = pytest.mark.realserver

RUN = 500  # commands from one empty database
COMMANDS = 20_000
FIRST_SEED = int(os.environ.get("MILLSTREAM_SEED", "1"))

Json = object


@dataclass(frozen=True)
class Known:
    """One allowed difference.

    Attributes:
        what: The difference and its reason.
        applies: Function that returns True if a command can show it.
        hide: Function that removes the differing part from a reply.
    """

    what: str
    applies: Callable[[Command], bool]
    hide: Callable[[Json], Json]


def names(*words: bytes) -> Callable[[Command], bool]:
    """Return a check that is true for commands that begin with these words."""
    return lambda command: tuple(command[: len(words)]) == words


def without(*keys: str) -> Callable[[Json], Json]:
    """Return a function that removes these fields from every map in a reply."""

    def hide(value: Json) -> Json:
        if isinstance(value, dict) and "%" in value:
            return {"%": [[key, hide(item)] for key, item in value["%"] if key not in keys]}
        if not isinstance(value, list):
            return value
        if is_flat_map(value):
            pairs = zip(value[::2], value[1::2], strict=True)
            return [word for key, item in pairs if key not in keys for word in (key, hide(item))]
        return [hide(item) for item in value]

    return hide


def without_idle_consumers(value: Json) -> Json:
    """Remove consumers without pending entries, and the numbers of consumers."""
    value = without("consumers")(value) if not has_rows(value) else value
    if isinstance(value, dict) and "%" in value:
        return {"%": [[key, without_idle_consumers(item)] for key, item in value["%"]]}
    if isinstance(value, list):
        return [without_idle_consumers(item) for item in value if not holds_nothing(item)]
    return value


def has_rows(value: Json) -> bool:
    """Return True if a map's ``consumers`` are rows (FULL) rather than a number."""
    return isinstance(as_map(value).get("consumers"), list)


def holds_nothing(value: Json) -> bool:
    """Return True if a map is a consumer without pending entries."""
    found = as_map(value)
    held = found.get("pending") if "idle" in found else found.get("pel-count") if "seen-time" in found else None
    return held == 0


def as_map(value: Json) -> dict[str, Json]:
    """Return a map of a reply in either protocol, or an empty one for anything else."""
    if isinstance(value, dict) and "%" in value:
        return dict(value["%"])
    if isinstance(value, list) and is_flat_map(value):
        return dict(zip(value[::2], value[1::2], strict=True))
    return {}


def is_flat_map(value: list[Json]) -> bool:
    """Return True if a list is a map of XINFO in RESP2."""
    return len(value) > 0 and isinstance(value[0], str) and value[0] in {"name", "length"}


def any_error(value: Json) -> Json:
    """Replace any error by one text."""
    return {"-": "some error"} if isinstance(value, dict) and "-" in value else value


def same_unbalanced(value: Json) -> Json:
    """Replace the error for an unbalanced list of streams by one text."""
    if isinstance(value, dict) and "Unbalanced" in value.get("-", ""):
        return {"-": "Unbalanced"}
    return value


KNOWN = (
    Known(
        "8.6 shows how a stream remembers producers, 8.8 how many entries are released",
        names(b"XINFO", b"STREAM"),
        without(
            "idmp-duration",
            "idmp-maxsize",
            "pids-tracked",
            "iids-tracked",
            "iids-added",
            "iids-duplicates",
            "nacked-count",
        ),
    ),
    Known("7.2 shows when a consumer was last given something", names(b"XINFO"), without("active-time", "inactive")),
    Known(
        "8.0 knows a lag, and so entries-read, in more cases; 8.2 clamps ENTRIESREAD",
        names(b"XINFO"),
        without("lag", "entries-read"),
    ),
    Known(
        "since 7.2 a consumer exists from its first attempt, before only once it was given something",
        names(b"XINFO"),
        without_idle_consumers,
    ),
    Known(
        "the same: whether CREATECONSUMER finds the consumer there",
        names(b"XGROUP", b"CREATECONSUMER"),
        lambda value: 1 if value == 0 else value,
    ),
    Known("7.4 gives + a meaning in XREAD", lambda command: command[0] == b"XREAD" and b"+" in command, lambda _: None),
    Known(
        "the same: XREADGROUP refuses + in the words it has for $",
        lambda command: command[0] == b"XREADGROUP" and b"+" in command,
        any_error,
    ),
    Known("7.4 words the error on an odd list of streams anew", names(b"XREAD"), same_unbalanced),
    Known("7.4 words the error on an odd list of streams anew", names(b"XREADGROUP"), same_unbalanced),
)


def comparable(command: Command, reply: object) -> Json:
    """Return a reply without times and known differences."""
    shown = masked(command, as_json(reply))
    for known in KNOWN:
        if known.applies(command):
            shown = known.hide(shown)
    return shown


def with_looks(commands: list[Command]) -> list[Command]:
    """Add a look at the stream after each command that trims or changes the limit of a trim."""
    telling = {b"MINID", b"MAXLEN", b"XSETID"}
    looks = {number: [b"XINFO", b"STREAM", words[1]] for number, words in enumerate(commands) if telling & set(words)}
    return [words for number, command in enumerate(commands) for words in (command, looks.get(number)) if words]


def compare(pipe: Pipe, seed: int) -> str | None:
    """Run one seed's commands on both servers; return the first difference in words, or None."""
    resp = 2 + seed % 2
    generator = Generator(seed)
    setup, commands = generator.setup(resp), with_looks(generator.commands(RUN))
    client = World(logged=False).client()
    for command in setup:
        client.call(*command)
    pipe.ask(setup)
    theirs = pipe.ask(commands)
    for number, (command, reply) in enumerate(zip(commands, theirs, strict=True)):
        ours = client.call(*command)
        wanted, got = comparable(command, reply), comparable(command, ours)
        if wanted != got:
            return f"seed {seed}, command {number} (RESP{resp}): {command}\n  redis: {wanted}\n  here:  {got}"
    return None


def run(server: ServerProcess, seeds: range) -> None:
    pipe = Pipe(server.port)
    try:
        for seed in seeds:
            difference = compare(pipe, seed)
            assert difference is None, difference
    finally:
        pipe.close()


def test_random_commands_answer_as_a_living_redis_does(each_redis: ServerProcess) -> None:
    """The replies to 20,000 random commands, some of them with faults, equal those of redis-server."""
    run(each_redis, range(FIRST_SEED, FIRST_SEED + COMMANDS // RUN))


@pytest.mark.long
@pytest.mark.timeout(campaign.LIMIT)
def test_very_many_random_commands_answer_as_a_living_redis_does(each_redis: ServerProcess) -> None:
    """The replies to a million other random commands equal those of redis-server."""
    campaign.run("live", lambda piece: run(each_redis, range(piece * 10, piece * 10 + 10)), range(1000, 1200))


@pytest.mark.parametrize("tilde", [b"~", b"="])
def test_nodes_close_and_go_where_those_of_redis_do(each_redis: ServerProcess, tilde: bytes) -> None:
    """After every addition and trim, the number of nodes equals that of redis-server, for entries of all sizes."""
    pipe, client = Pipe(each_redis.port), World(logged=False).client()
    try:
        for seed in range(12):
            generator = Generator(seed)
            random = generator.random
            commands: list[Command] = [[b"FLUSHALL"]]
            for number in range(1, 150):
                step = random.choice([1, 1, 5000, 70_000, 2**33])
                words = [word.encode("latin-1") for word in generator.fields()]
                if random.random() < 0.3:
                    words = [b"f", bytes(random.choice(b"0123456789-ab") for _ in range(random.randint(0, 130)))]
                commands.append([b"XADD", b"s", b"%d-%d" % (number * step if seed % 2 else number, step), *words])
                if random.random() < 0.2:
                    commands.append([b"XDEL", b"s", b"%d-%d" % (random.randint(1, number), step)])
                if random.random() < 0.05:
                    commands.append([b"XTRIM", b"s", b"MAXLEN", tilde, b"%d" % random.randint(0, 120)])
                commands.append([b"XINFO", b"STREAM", b"s"])
            for command, reply in zip(commands, pipe.ask(commands), strict=True):
                ours = client.call(*command)
                if command[0] == b"XINFO":
                    for name in (b"length", b"radix-tree-keys"):
                        assert fields(ours)[name] == fields(reply)[name], (seed, command)
                else:
                    assert ours == reply, (seed, command)
    finally:
        pipe.close()


def test_ids_are_read_as_redis_reads_them(each_redis: ServerProcess) -> None:
    """Any text is accepted as the same id, or refused, as in redis-server."""
    random = Generator(7).random
    pieces = [
        "0",
        "5",
        "07",
        "+9",
        "-",
        "-",
        " ",
        "\t",
        "+",
        "18446744073709551615",
        "18446744073709551616",
        "-0",
        "-07",
    ]
    pieces += ["9223372036854775807", "9223372036854775808", "-9223372036854775808", "0x1", "a", "\x00", "(", "*", ">"]
    pieces += ["0" * 40, "1.5", "1e3", "\n", "\xa0", "\xb2"]
    commands: list[Command] = []
    for _ in range(1500):
        word = "".join(random.choice(pieces) for _ in range(random.randint(0, 4))).encode("latin-1")
        commands += [[b"DEL", b"k"], [b"XGROUP", b"CREATE", b"k", b"g", word, b"MKSTREAM"], [b"XINFO", b"GROUPS", b"k"]]
        commands += [[b"XRANGE", b"k", word, b"+"], [b"XRANGE", b"k", b"-", word]]
    pipe, client = Pipe(each_redis.port), World(logged=False).client()
    try:
        for command, reply in zip(commands, pipe.ask(commands), strict=True):
            assert comparable(command, client.call(*command)) == comparable(command, reply), command
    finally:
        pipe.close()


def test_the_generator_reaches_every_command() -> None:
    """The generator produces every command, many of them with replies that are neither empty nor errors."""
    generator = Generator(1)
    client = World(logged=False).client()
    for command in generator.setup(2):
        client.call(*command)
    full: dict[bytes, int] = {}
    for command in generator.commands(4000):
        reply = client.call(*command)
        full[command[0]] = full.get(command[0], 0) + (not isinstance(reply, Error) and reply not in (None, 0, []))
    assert len(full) > 15
    assert {name for name, number in full.items() if number < 8} <= {b"XSETID", b"DEL"}

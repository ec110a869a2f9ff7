"""ACL beside a real redis-server: the same rules, and the same results for each permission.

Redis 7.0 words a refusal without the user's name and orders a user's command rules in its own way; 7.2 changed both,
and Millstream has the later form. So the texts are brought to one form, and only the effect of rules is compared.
"""

import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.commands.table.keyspecs import uses_of
from millstream.commands.table.spec import Command
from millstream.commands.table.table import every
from millstream.commands.users.categories import CATEGORIES
from millstream.server.thread import ServerThread
from support.servers import redis_server
from support.wire import Wire

RULES = [
    "on nopass",
    "on nopass +@all ~* &*",
    "on nopass +@all",
    "on nopass +@read ~*",
    "on nopass +@write ~*",
    "on nopass +@stream ~s*",
    "on nopass +@stream -xadd ~*",
    "on nopass +@all -@dangerous ~* &c*",
    "on nopass -@all +@fast ~*",
    "on nopass +@slow -@blocking ~*",
    "on nopass +@all %R~*",
    "on nopass +@all %W~*",
    "on nopass +@all %R~s* %W~t*",
    "on nopass +@all %RW~s* &news",
    "on nopass +@all %R~s %W~s",
    "on nopass +@all ~s[0-3] ~t? ~\\*",
    "on nopass +get +set +xgroup ~*",
    "on nopass +xgroup|create +config|get +client|id +select|0 ~*",
    "on nopass +xgroup -xgroup|destroy ~*",
    "on nopass +@all -config|set -client ~*",
    "on nopass allcommands allkeys allchannels nocommands",
    "on nopass +@all ~* resetkeys ~t",
    "on nopass +@connection +@transaction +@pubsub &c? &c*",
    "on nopass +@keyspace +@string +@scripting ~k*",
    "on nopass +@admin +acl|whoami",
    "on nopass (+get ~s) (+set ~t*) +xlen ~x",
    "on nopass +@all ~* &* (+@all) -@all",
    "on nopass (%R~s +@all) (%W~t +@all &c)",
    "on nopass +@all reset +get ~s",
    "on nopass +XADD +@READ ~s",
]
COMMANDS = [
    "GET s",
    "SET t v",
    "SET s v GET",
    "GETSET s v",
    "MSET s 1 t 2",
    "DEL s t",
    "EXISTS s",
    "TYPE t",
    "RENAME s t",
    "COPY s t",
    "COPY t s",
    "XADD s * a b",
    "XLEN x",
    "XREAD COUNT 1 STREAMS s t 0 0",
    "XREAD COUNT 1 STREAMS STREAMS 0",
    "XREADGROUP GROUP g c STREAMS s >",
    "XREADGROUP GROUP streams c STREAMS s >",
    "XACK s g 1",
    "XCLAIM s g c 0 1",
    "XAUTOCLAIM s g c 0 0",
    "XGROUP CREATE s g $",
    "XGROUP DESTROY s g",
    "XINFO STREAM s",
    "XRANGE t - +",
    "XTRIM s MAXLEN 0",
    "BITFIELD s GET u8 0",
    "BITFIELD t GET u8 0",
    "BITFIELD t SET u8 0 1",
    "BITFIELD s GET u8 0 INCRBY u8 0 1",
    "SORT s",
    "SORT s STORE t",
    "SORT t STORE s",
    "SORT_RO t",
    "KEYS *",
    "FLUSHALL",
    "DBSIZE",
    "INFO",
    "LASTSAVE",
    "CONFIG GET x",
    "CONFIG SET x y",
    "CLIENT ID",
    "CLIENT LIST",
    "COMMAND COUNT",
    "SELECT 0",
    "SELECT 1",
    "PING",
    "AUTH x",
    "MULTI",
    "WATCH t",
    "PUBLISH c m",
    "SUBSCRIBE c1 news",
    "PSUBSCRIBE c*",
    "PSUBSCRIBE c?",
    "UNSUBSCRIBE x",
    "BLPOP s t 0",
    "EVAL x 1 k1",
    "EVAL x 0",
    "ACL WHOAMI",
    "ACL LIST",
    "ZADD s 1 a",
    "ZPOPMIN s",
    "HGETALL t",
    "MEMORY USAGE s",
    "OBJECT ENCODING s",
    "INCR k",
]
BAD = [
    "foo",
    "+foo",
    "-foo",
    "+@foo",
    "-@foo",
    "allkeys ~x",
    "allchannels &x",
    "+config|get|x",
    "+config|nope",
    "+select|",
    "-select|0",
    "-config|nope",
    "+get|x|y",
    "%~x",
    "%X~x",
    "%RR~x",
    "%R",
    "(+get",
    "(+foo)",
    "(foo)",
    "on (+get ~x",
    "~a\x00b",
    "&a\tb",
    "~",
    "&",
    "",
    "(",
    "()",
    "nopass resetpass clearselectors",
]


class Pair:
    """One connection to a real Redis and one to Millstream."""

    def __init__(self, real: Wire, ours: Wire) -> None:
        self.real = real
        self.ours = ours

    def ask(self, *words: str) -> tuple[object, object]:
        return self.real.ask(*words), self.ours.ask(*words)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Yield both servers, fresh."""
    folder: Path = tmp_path_factory.mktemp("redis")
    with redis_server(folder) as real, ServerThread() as ours, Wire(real.url) as one, Wire(ours.url) as two:
        yield Pair(one, two)


def plain(reply: object) -> object:
    """Return a reply without the words that 7.2 changed: "This user" or the user's name."""
    if isinstance(reply, bytes):
        return re.sub(rb"^(This user|User u) has", b"U has", reply)
    return str(reply) if isinstance(reply, Exception) else reply


@pytest.mark.parametrize("rules", RULES)
def test_the_same_is_allowed(pair: Pair, rules: str) -> None:
    """Each of fifty commands is allowed, or refused for the same key, channel or command, as in Redis."""
    for words in ("DELUSER u", f"SETUSER u {rules}"):
        pair.ask("ACL", *words.split(" "))
    different = []
    for line in COMMANDS:
        real, ours = map(plain, pair.ask("ACL", "DRYRUN", "u", *line.split(" ")))
        if real != ours:
            different.append((line, real, ours))
    assert not different


def random_rules(rng: random.Random, names: list[str]) -> str:
    """Return a line of rules, most of them valid."""
    atoms = [sign + rng.choice(names) for sign in "++-"] + [f"{sign}@{rng.choice(CATEGORIES)}" for sign in "++-"]
    atoms += ["~s", "~t*", "%R~s*", "%W~t", "&c", "&c*", "+select|0", "(+get ~s)", "(+@all %R~* &news)"]
    atoms += ["+@all", "-@all", "resetkeys", "resetchannels", "clearselectors", "reset", "allkeys", "nopass"]
    return " ".join(rng.choice(atoms) for _ in range(rng.randint(1, 9)))


def test_random_rules_allow_the_same(pair: Pair) -> None:
    """After each of 400 lines of random rules, commands are allowed or refused as in Redis."""
    rng = random.Random(20)
    names = [row.name for row in every() if row.handler and known(row, pair)]
    different = []
    pair.ask("ACL", "DELUSER", "u")
    for _ in range(400):
        rules = random_rules(rng, names)
        real, ours = map(str, pair.ask("ACL", "SETUSER", "u", *rules.split(" ")))
        if real != ours:
            different.append((rules, real, ours))
        for line in rng.sample(COMMANDS, 10):
            real, ours = map(str, map(plain, pair.ask("ACL", "DRYRUN", "u", *line.split(" "))))
            if real != ours:
                different.append((f"{rules}: {line}", real, ours))
    assert not different


def described(reply: object) -> dict[bytes, object]:
    assert isinstance(reply, list)
    fields = dict(zip(reply[::2], reply[1::2], strict=True))
    fields["flags"] = [flag for flag in fields.pop(b"flags") if b"sanitize" not in flag]
    del fields[b"commands"]
    fields[b"selectors"] = [selector[2:] for selector in fields[b"selectors"]]
    return fields


@pytest.mark.parametrize(
    "rules", [*RULES, "on >a >b <a #" + "0" * 64, "off >x resetpass", "nopass >x ~a %R~a %W~b %RW~b"]
)
def test_users_are_described_alike(pair: Pair, rules: str) -> None:
    """GETUSER describes a user as Redis does, except for the order of command rules and a flag of 7.2."""
    for words in ("DELUSER u", f"SETUSER u {rules}"):
        pair.ask("ACL", *words.split(" "))
    real, ours = map(described, pair.ask("ACL", "GETUSER", "u"))
    assert real == ours


@pytest.mark.parametrize("rules", BAD)
def test_bad_rules_are_refused_alike(pair: Pair, rules: str) -> None:
    """An invalid rule is refused with Redis's error, and nothing of its line applies."""
    pair.ask("ACL", "DELUSER", "u")
    real, ours = pair.ask("ACL", "SETUSER", "u", *rules.split(" "))
    assert str(real) == str(ours)
    assert type(real) is type(ours)
    real, ours = pair.ask("ACL", "USERS")
    assert real == ours


@pytest.mark.parametrize(
    "line",
    [
        "USERS",
        "WHOAMI",
        "CAT",
        "CAT nope",
        "DELUSER default",
        "DELUSER nobody",
        "GETUSER nobody",
        "GENPASS 0",
        "GENPASS 4097",
        "GENPASS x",
        "LOAD",
        "SAVE",
        "LOG x",
        "LOG -1",
        "LOG RESET",
        "FOO",
        "GETUSER",
        "SETUSER",
        "DRYRUN default get",
        "DRYRUN nobody get x",
        "DRYRUN default nosuch",
        "DRYRUN default config",
        "DRYRUN default config nosuch",
    ],
)
def test_the_same_replies(pair: Pair, line: str) -> None:
    """ACL's subcommands have the same replies and errors as in Redis."""
    real, ours = pair.ask("ACL", *line.split(" "))
    assert plain(real) == plain(ours)


def test_generated_passwords_have_the_length_asked_for(pair: Pair) -> None:
    """GENPASS returns hexadecimal digits for the given number of bits, rounded up."""
    for bits in ("1", "4", "5", "256", "4096"):
        real, ours = pair.ask("ACL", "GENPASS", bits)
        assert isinstance(real, bytes)
        assert isinstance(ours, bytes)
        assert len(real) == len(ours)
        assert re.fullmatch(rb"[0-9a-f]+", ours)


def known(row: Command, pair: Pair) -> list[object] | None:
    """Return COMMAND INFO of the real server, or None for an unknown command."""
    found = pair.real.ask("COMMAND", "INFO", row.name)[0]
    return found if isinstance(found, list) else None


VARYING = {"set": [(False, True)], "bitfield": [(True, False)], "sort": [(True, False)]}
"""Commands whose keys depend on their arguments, as with GET, SET or STORE; the table above tests them."""


def test_every_command_has_its_categories_and_uses_its_keys(pair: Pair) -> None:
    """Every command of Redis 7.0 has the same categories and the same read and write permissions for its keys."""
    different = []
    for row in every():
        real = known(row, pair)
        if real is None:
            continue
        ours = pair.ours.ask("COMMAND", "INFO", row.name)[0]
        if set(real[6]) != set(ours[6]) and row.name != "wait":  # blocking since 7.2
            different.append((row.name, real[6], ours[6]))
        flags = [set(dict(zip(spec[::2], spec[1::2], strict=True))[b"flags"]) for spec in real[8]]
        needs = [(b"access" in words, bool(words & {b"insert", b"update", b"delete"})) for words in flags]
        if row.name in VARYING:
            needs = VARYING[row.name]
        argv = [row.name.encode(), b"1", b"STREAMS", b"k", b"0"] if row.name.startswith("xread") else [b"1"] * 5
        used = [tuple(use) for _, use in uses_of(row, argv)]
        if set(used) != set(needs) and not row.name.startswith(("eval", "fcall")):
            different.append((row.name, needs, used))
    assert not different


def test_running_is_refused_where_dryrun_says_so(pair: Pair) -> None:
    """Commands are refused exactly if DRYRUN refuses them, on both servers."""
    pair.ask("ACL", "SETUSER", "u", "reset", "on", ">p", "+@all", "-@admin", "+select|0", "%R~s*", "%W~t*", "&c")
    skip = {"AUTH", "MULTI", "SUBSCRIBE", "PSUBSCRIBE", "UNSUBSCRIBE", "BLPOP", "EVAL", "SELECT", "CLIENT", "DBSIZE"}
    try:
        assert pair.ask("AUTH", "u", "p") == (b"OK", b"OK")
        different = []
        for line in COMMANDS:
            if line.split()[0] not in skip:
                real, ours = (str(reply).startswith("NOPERM") for reply in pair.ask(*line.split()))
                if real != ours:
                    different.append((line, real, ours))
        assert not different
    finally:
        pair.ask("AUTH", "default", "")


# Channels of a client, its user's rules, and changes of these or of another's
LISTENING = [
    ("SUBSCRIBE c", "", "+get"),
    ("SUBSCRIBE c", "", "&d"),
    ("SUBSCRIBE c", "", "resetchannels"),
    ("SUBSCRIBE c", "", "&*"),
    ("SUBSCRIBE c", "&*", "resetchannels"),
    ("SUBSCRIBE c", "&*", "resetchannels &c"),
    ("SUBSCRIBE c", "&c &e", "resetchannels &e &c &d"),
    ("SUBSCRIBE c", "&c &e", "resetchannels &c"),
    ("SUBSCRIBE c x", "&c &e", "resetchannels &c"),
    ("SUBSCRIBE c x", "&c &e", "&f"),
    ("SUBSCRIBE c", "&c*", "resetchannels &c"),
    ("SUBSCRIBE c", "&c*", "resetchannels (&c)"),
    ("SUBSCRIBE c", "(&c)", "clearselectors"),
    ("SUBSCRIBE c", "(&c) &d", "clearselectors &c"),
    ("SUBSCRIBE c", "(&*) &d", "clearselectors &d"),
    ("PSUBSCRIBE c*", "&c*", "resetchannels &c"),
    ("PSUBSCRIBE c*", "&c", "resetchannels &c"),
    ("PSUBSCRIBE c*", "", "-@all"),
    ("SUBSCRIBE c", "&c", "off"),
    ("SUBSCRIBE c", "&c", "reset"),
    ("GET s", "&c", "reset"),
]


@pytest.mark.parametrize(("listens", "rules", "change"), LISTENING)
def test_the_same_listeners_are_closed(pair: Pair, listens: str, rules: str, change: str) -> None:
    """ACL SETUSER disconnects the same subscribers as in Redis."""
    pair.ask("ACL", "DELUSER", "u", "v")
    for name in ("u", "v"):
        pair.ask("ACL", "SETUSER", name, *f"on nopass +@all ~* resetchannels {rules}".split())
    found = []
    for admin in (pair.real, pair.ours):
        url = "redis://{}:{}".format(*admin.socket.getpeername())
        with Wire(url, resp=3) as listener, Wire(url, resp=3) as other:
            for each, name in ((listener, "u"), (other, "v")):
                each.send(*listens.split())  # as the default user, who may
                for _ in listens.split()[1:]:
                    each.read()
                assert each.ask("AUTH", name, "") == b"OK"
            assert admin.ask("ACL", "SETUSER", "u", *change.split()) == b"OK"
            assert admin.ask("ACL", "SETUSER", "w", "&c", "resetchannels") == b"OK"
            assert other.ask("PING") == b"PONG"
            listener.send("ECHO", "x")
            try:
                found.append(listener.read() == b"x" or "refused")
            except (EOFError, ConnectionError):
                found.append("closed")
    real, ours = found
    assert ours == real

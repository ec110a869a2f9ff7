"""COMMAND DOCS: the notation of the command table, and the documented arguments beside those of a real Redis.

A server that has only a part of our options is compared with that part: an option that it lacks must be newer than the
server. Its release is read from its replies, so a newer ``redis-server`` on PATH may replace it.
"""

from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

import pytest

from millstream.commands.table.docs import history
from millstream.commands.table.spec import Command
from millstream.commands.table.syntax import Argument, options, parse, shown
from millstream.commands.table.table import TABLE, every
from millstream.node.commands import load_all
from millstream.server.thread import ServerThread
from support.servers import redis_server
from support.wire import Wire

load_all()
STREAMS = [row for row in every() if row.group == "stream"]
# Our name -> what 7.0 called it; 7.2 made the names of arguments uniform
RENAMED = {
    "auto-id": {"auto_id"},
    "consumer": {"consumername"},
    "data": {"field_value"},
    "entriesread": {"entries_read"},
    "entries-added": {"entries_added"},
    "group": {"groupname"},
    "group-block": {"group_consumer"},
    "id-selector": {"id_or_auto", "id"},
    "lastid": {"id"},
    "max-deleted-id": {"max_deleted_entry_id"},
    "new-id": {"new_id"},
}
# Commands whose arguments a server tells otherwise, with the reason
OTHERWISE = {
    "client|kill": "ours are a list of options, Redis's a repeated choice of one",
    "client|list": "7.0 has a block with a single member",
    "psubscribe": "7.0 has a block with a single member",
    "config|get": "7.0 has a block with a single member",
    "command|getkeys": "7.0 tells no arguments",
    "command|getkeysandflags": "7.0 tells no arguments",
    "debug": "no server tells its arguments",
    "geopos": "until 7.0 it took one member at least",
    "geohash": "the same",
    "sort": "ours say of no pattern which key specification is meant",
    "sort_ro": "the same",
}

# Changes of Redis without a word in the command's history
UNTOLD = {("xread", "7.4.0")}


def version(text: str) -> tuple[int, ...]:
    """Return a version as numbers, for comparison."""
    return tuple(int(part) for part in text.split("."))


# ---------------------------------------------------------------------- the notation


def test_notation() -> None:
    """Every mark of the notation is parsed, and removed from the text that is shown."""
    syntax = (
        "key [NEW]@6.2.0 [OLD]@!6.4.0 how=[MANY many=number:integer | ALL@7.0.0] "
        "GROUP both=(a b) <* | id> f v [f v ...]"
    )
    assert shown(syntax) == "key [NEW] [OLD] [MANY number | ALL] GROUP a b <* | id> f v [f v ...]"
    key, new, old, how, group, choice, data = parse(syntax)
    assert key == Argument("key", "key", "key")
    assert new == Argument("new", "pure-token", "new", "NEW", since="6.2.0", optional=True)
    assert old == Argument("old", "pure-token", "old", "OLD", since="6.4.0", optional=True, tells_since=False)
    assert (how.name, how.type, how.optional) == ("how", "oneof", True)
    assert how.parts[0] == Argument("many", "integer", "number", "MANY")
    assert how.parts[1] == Argument("all", "pure-token", "all", "ALL", since="7.0.0")
    assert (group.name, group.type, group.token) == ("both", "block", "GROUP")
    assert [part.name for part in group.parts] == ["a", "b"]
    assert [(part.name, part.type) for part in choice.parts] == [("auto-id", "pure-token"), ("id", "string")]
    assert (data.name, data.type, data.multiple, [part.name for part in data.parts]) == (
        "data",
        "block",
        True,
        ["f", "v"],
    )


@pytest.mark.parametrize(
    ("syntax", "expected"),
    [
        ("", []),
        ("[key [key ...]]", [Argument("key", "key", "key", optional=True, multiple=True)]),
        ("[ID id:integer [id ...]]@6.2.0", [Argument("id", "integer", "id", "ID", "6.2.0", True, True)]),
        ("old=ip:port", [Argument("old", "string", "ip:port")]),
        ("=", [Argument("equal", "pure-token", "equal", "=")]),
    ],
)
def test_single_arguments(syntax: str, expected: list[Argument]) -> None:
    """The notation has repetition, tokens with values, and display names that differ from the argument's name."""
    assert list(parse(syntax)) == expected


@pytest.mark.parametrize("syntax", ["[a", "a]", "<a | b", "(a]", "a@new"])
def test_broken_notation_is_refused(syntax: str) -> None:
    """A mistake in a row's notation is an error, and is not read as something else."""
    with pytest.raises(ValueError, match=r"cannot be read|is due"):
        parse(syntax)


@pytest.mark.parametrize("row", [row for row in every() if row.document.syntax], ids=lambda row: row.name)
def test_every_row_can_be_read(row: Command) -> None:
    """Each row of the command table is parsed whole.

    No option is older than its command or newer than the server's version.
    """
    words = [word for word in shown(row.document.syntax).replace("[", " ").replace("]", " ").split() if word.isupper()]
    found = list(options(row.document.since, parse(row.document.syntax)))
    assert {word.strip("<>|()") for word in words} - {""} <= {word for word, _ in found}
    for since in [*(since for _, since in found), *(since for since, _ in history(row))]:
        assert version(row.document.since) <= version(since) <= (8, 10, 0)


# ---------------------------------------------------------------------- beside a real server


class Both:
    """COMMAND DOCS of a real server and of ours, by command and subcommand, as RESP3 gives them."""

    def __init__(self, real: Wire, ours: Wire) -> None:
        self.real = _flat(real.ask("COMMAND", "DOCS"))
        release = version(_release(real))
        # A build between two releases calls itself 255.255.255; it is as new as the newest it tells of
        self.release = (
            release if release[0] < 255 else max(version(row["since"].decode()) for row in self.real.values())
        )  # type: ignore[attr-defined] # replies are untyped
        self.ours = _flat(ours.ask("COMMAND", "DOCS"))
        self.wires = real, ours


def _release(wire: Wire) -> str:
    lines = wire.ask("INFO", "server").decode().splitlines()
    return next(line for line in lines if line.startswith("redis_version:")).partition(":")[2]


def _flat(docs: dict[bytes, dict[bytes, object]]) -> dict[str, dict[str, object]]:
    found: dict[str, dict[str, object]] = {}
    for name, told in docs.items():
        row = {key.decode(): value for key, value in told.items()}
        found |= _flat(row.pop("subcommands", {}))  # type: ignore[arg-type] # a map of the same kind
        found[name.decode()] = row
    return found


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    """Return the documents of both servers."""
    folder: Path = tmp_path_factory.mktemp("redis")
    with redis_server(folder) as real, ServerThread() as ours, Wire(real.url, 3) as one, Wire(ours.url, 3) as two:
        yield Both(one, two)


def told(arguments: object, release: tuple[int, ...], known: tuple[Argument, ...] = ()) -> list[object]:
    """Return arguments in one form: without display names, and without those newer than ``release``.

    ``known`` are the arguments of the table: it has versions that Redis lists in its history only.
    """
    assert isinstance(arguments, list)
    rows: list[object] = []
    for argument, row in zip_longest(arguments, known):
        fields = {key.decode(): value for key, value in argument.items()}
        since = fields.get("since", b"").decode()
        added = row.since if row else since
        if added and version(added) > release:
            continue
        token = fields.get("token", b"").decode()
        name = fields["name"].decode()
        rows.append(
            {
                "names": {name} | RENAMED.get(name, set()),
                "type": fields["type"],
                "key": fields.get("key_spec_index"),
                "token": token.upper(),
                "since": since,
                "flags": sorted(bytes(flag) for flag in fields.get("flags", ())),
                "parts": told(fields.get("arguments", []), release, row.parts if row else ()),
            }
        )
    return rows


def unlike(real: list[object], ours: list[object]) -> list[object]:
    """Return pairs of arguments that differ. A name may be the older or the newer one."""
    if len(real) != len(ours):
        return [(real, ours)]
    found: list[object] = []
    for one, two in zip(real, ours, strict=True):
        assert isinstance(one, dict)
        assert isinstance(two, dict)
        fields = ("type", "key", "token", "since", "flags")
        if any(one[key] != two[key] for key in fields) or not one["names"] & two["names"]:
            found.append(({key: one[key] for key in ("names", *fields)}, {key: two[key] for key in ("names", *fields)}))
        found += unlike(one["parts"], two["parts"])
    return found


@pytest.mark.realserver
@pytest.mark.parametrize("row", STREAMS, ids=lambda row: row.name)
def test_arguments_of_stream_commands_are_redis_s(both: Both, row: Command) -> None:
    """The arguments of stream commands have the names, types, tokens, versions, flags and order of the real server."""
    if row.name not in both.real:
        assert version(row.document.since) > both.release
        return
    real, ours = both.real[row.name], both.ours[row.name]
    assert (real["since"], real["group"]) == (ours["since"], ours["group"])
    if row.name == "xinfo|stream" and both.release < (7, 2):
        return  # 7.0 had the optional words of FULL in another form
    one = told(real.get("arguments", []), both.release)
    two = told(ours.get("arguments", []), both.release, parse(row.document.syntax))
    assert unlike(one, two) == []


@pytest.mark.realserver
@pytest.mark.parametrize("row", STREAMS, ids=lambda row: row.name)
def test_versions_in_the_history_are_redis_s(both: Both, row: Command) -> None:
    """The history of a stream command lists the versions that Redis lists; the sentences are our own."""
    if row.name not in both.real:
        return
    real = {change[0].decode() for change in both.real[row.name].get("history", ())}  # type: ignore[attr-defined] # replies are untyped
    ours = {since for since, _ in history(row) if version(since) <= both.release and (row.name, since) not in UNTOLD}
    assert real == ours


@pytest.mark.realserver
def test_arguments_of_all_commands_have_the_form_of_redis_s(both: Both) -> None:
    """The arguments of all fully supported commands have the types, tokens, versions and flags of Redis.

    7.0 has other names.
    """
    wrong = []
    for row in every():
        if row.name not in both.real or row.group == "stream" or row.document.limited or row.name in OTHERWISE:
            continue
        one = told(both.real[row.name].get("arguments", []), both.release)
        two = told(both.ours[row.name].get("arguments", []), both.release, parse(row.document.syntax))
        if nameless(one) != nameless(two):
            wrong.append((row.name, one, two))
    assert wrong == []


def nameless(arguments: list[object]) -> list[object]:
    """Arguments without their names."""
    rows: list[object] = []
    for argument in arguments:
        assert isinstance(argument, dict)
        kept = {key: value for key, value in argument.items() if key != "names"}
        rows.append(kept | {"parts": nameless(argument["parts"])})
    return rows


@pytest.mark.realserver
def test_every_other_option_is_named_as_redis_names_it(both: Both) -> None:
    """An option that only Millstream has is newer than the server. One that only Redis has is documented as missing."""
    wrong = []
    for row in every():
        real = both.real.get(row.name)
        if real is None or row.name == "debug":
            continue
        theirs = set(_tokens(real.get("arguments", [])))
        ours = dict(options(row.document.since, parse(row.document.syntax)))
        newer = {word for word, since in ours.items() if version(since) > both.release}
        newer |= {"YES", "NO"}  # of SKIPME; 7.0 says only that something follows it
        newer |= {"AND", "OR", "XOR", "NOT"}  # of BITOP; 7.0 says only that it takes an operation
        if set(ours) - newer - theirs or (theirs - set(ours) and not row.document.limited):
            wrong.append((row.name, theirs, ours))
    assert wrong == []


def _tokens(arguments: object) -> Iterator[str]:
    assert isinstance(arguments, list)
    for argument in arguments:
        fields = {key.decode(): value for key, value in argument.items()}
        if token := fields.get("token"):
            yield token.decode().upper()
        yield from _tokens(fields.get("arguments", []))


@pytest.mark.realserver
@pytest.mark.parametrize("name", ["xdel", "xpending", "xsetid", "xrange", "scan", "copy", "restore", "subscribe"])
def test_shapes_are_redis_s(both: Both, name: str) -> None:
    """COMMAND DOCS has the maps, sets, arrays and field order of Redis in RESP3, except 7.0's missing display texts."""
    real, ours = (skeleton(wire.ask("COMMAND", "DOCS", name)) for wire in both.wires)
    assert real == ours


def skeleton(reply: object, field: str = "") -> object:
    """Return a reply without its texts, and without the two fields that only one of the servers has."""
    if isinstance(reply, dict):
        fields = [(key.decode(), value) for key, value in reply.items()]
        return {key: skeleton(value, key) for key, value in fields if key not in {"complexity", "display_text"}}
    if isinstance(reply, list) and field != "history":
        return [skeleton(item) for item in reply]
    return (type(reply).__name__, sorted(reply) if isinstance(reply, set) else None)


def test_words_newer_than_any_server_here() -> None:
    """The tokens that no server on this machine has are listed with their versions."""
    newer = {
        "xadd": {"KEEPREF": "8.2.0", "DELREF": "8.2.0", "ACKED": "8.2.0", "IDMP": "8.6.0", "IDMPAUTO": "8.6.0"},
        "xtrim": {"KEEPREF": "8.2.0", "DELREF": "8.2.0", "ACKED": "8.2.0"},
        "xread": {"MAXCOUNT": "8.10.0", "MAXSIZE": "8.10.0"},
        "xreadgroup": {"MAXCOUNT": "8.10.0", "MAXSIZE": "8.10.0", "CLAIM": "8.4.0"},
    }
    for name, words in newer.items():
        row = TABLE[name.encode()]
        assert {
            word: since
            for word, since in options(row.document.since, parse(row.document.syntax))
            if version(since) > (8,)
        } == words
    since = {"xdelex": "8.2.0", "xackdel": "8.2.0", "xcfgset": "8.6.0", "xidmprecord": "8.6.2", "xnack": "8.8.0"}
    assert {row.name: row.document.since for row in STREAMS if version(row.document.since) > (8,)} == since


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("xcfgset", "key=key IDMP-DURATION?idmp-duration=integer IDMP-MAXSIZE?idmp-maxsize=integer"),
        ("xidmprecord", "key=key pid=string iid=string stream-id=string"),
        ("xdelex", "key=key ?condition=oneof IDS ids=block"),
        ("xackdel", "key=key group=string ?condition=oneof IDS ids=block"),
        ("xnack", "key=key group=string mode=oneof IDS ids=block RETRYCOUNT?count=integer FORCE?force=pure-token"),
    ],
)
def test_arguments_of_commands_newer_than_any_server_here(name: str, expected: str) -> None:
    """Arguments of the newest commands have the token, name and type that Redis publishes; ``?`` is optional."""
    found = parse(TABLE[name.encode()].document.syntax)
    words = [f"{each.token}{'?' if each.optional else ' '}{each.name}={each.type}".strip() for each in found]
    assert " ".join(words) == expected
    ids = [each for each in found if each.token == "IDS"]
    for block in ids:
        assert [(part.name, part.type, part.multiple) for part in block.parts] == [
            ("numids", "integer", False),
            ("id", "string", True),
        ]

"""Every error of a stream command has Redis's exact text, and a refused command changes nothing."""

import pytest

from millstream.commands.table.table import TABLE
from millstream.replies import Error
from support.inprocess import Client, World
from support.state import snapshot

ID = "ERR Invalid stream ID specified as stream command argument"
INT = "ERR value is not an integer or out of range"
SYNTAX = "ERR syntax error"
TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"
NO_KEY = "ERR no such key"
REQUIRED = (
    "ERR The XGROUP subcommand requires the key to exist. Note that for CREATE you may want to use the MKSTREAM option "
    "to create an empty stream automatically."
)
MEANINGLESS = (
    "ERR The $ ID is meaningless in the context of XREADGROUP: you want to read the history of this consumer by "
    "specifying a proper ID, or use the > ID to get new messages. The $ ID would just return an empty result set."
)
BOTH = "ERR syntax error, MAXLEN and MINID options at the same time are not compatible"
NO_STRATEGY = "ERR syntax error, LIMIT cannot be used without specifying a trimming strategy"
NO_TILDE = "ERR syntax error, LIMIT cannot be used without the special ~ option"
AUTO_ONLY = "ERR syntax error, IDMP/IDMPAUTO can be used only with auto-generated IDs"
TOO_SMALL = "ERR The ID specified in XADD is equal or smaller than the target stream top item"
GROUP_ONLY = "ERR The > ID can be specified only when calling XREADGROUP using the GROUP <group> <consumer> option."
TOO_HIGH = "ERR Insufficient memory, failed allocating transient memory, COUNT too high."
MODE = "ERR mode must be SILENT, FAIL, or FATAL"


def group_line(key: str, group: str) -> str:
    return f"NOGROUP No such key '{key}' or consumer group '{group}'"


def named_line(key: str, group: str) -> str:
    return f"NOGROUP No such consumer group '{group}' for key name '{key}'"


def bad_options(word: str) -> str:
    return f"ERR unknown subcommand or wrong number of arguments for '{word}'. Try XGROUP HELP."


def only(option: str) -> str:
    return f"ERR The {option} option is only supported by XREADGROUP. You called XREAD instead."


# 's' has entries 5-5 and 6-0 (7-0 was deleted) and the group g; 'str' is a string; 'nokey' is missing. A word of two
# quotes is an empty word.
CASES: list[tuple[str, str]] = [
    # XADD: options in the order in which they are met
    ("XADD s BADOPT * f v", ID),
    ("XADD s KEEPREF DELREF * f v", ID),
    ("XADD s IDMP p * f v", ID),
    ("XADD s MAXLEN 5 MINID 5 * f v", BOTH),
    ("XADD s MAXLEN 5 MAXLEN 5 * f v", BOTH),
    ("XADD s MAXLEN -1 * f v", "ERR The MAXLEN argument must be >= 0."),
    ("XADD s MAXLEN x * f v", INT),
    ("XADD s MAXLEN ~ x * f v", INT),
    ("XADD s MINID x * f v", ID),
    ("XADD s MAXLEN ~ 5 LIMIT -1 * f v", "ERR The LIMIT argument must be >= 0."),
    ("XADD s MAXLEN ~ 5 LIMIT x * f v", INT),
    ("XADD s MAXLEN 5 LIMIT 4 * f v", NO_TILDE),
    ("XADD s MAXLEN = 5 LIMIT 4 * f v", NO_TILDE),
    ("XADD s LIMIT 4 * f v", NO_STRATEGY),
    ("XADD s LIMIT 0 * f v", NO_TILDE),
    ("XADD s IDMP p m IDMPAUTO p * f v", "ERR syntax error, IDMP/IDMPAUTO specified multiple times"),
    ("XADD s IDMPAUTO '' * f v", "ERR syntax error, IDMPAUTO requires a non-empty producer ID"),
    ("XADD s IDMP '' m * f v", "ERR syntax error, IDMP requires a non-empty producer ID"),
    ("XADD s IDMP p '' * f v", "ERR syntax error, IDMP requires a non-empty idempotent ID"),
    ("XADD s IDMP p m 9-9 f v", AUTO_ONLY),
    ("XADD s IDMPAUTO p 9-* f v", AUTO_ONLY),
    ("XADD s IDMP p m", "ERR wrong number of arguments for 'xadd' command"),
    ("XADD s IDMPAUTO p MAXLEN 5", "ERR wrong number of arguments for 'xadd' command"),
    ("XADD s IDMP p m x f v", ID),
    ("XADD s * f v g", "ERR wrong number of arguments for 'xadd' command"),
    ("XADD s NOMKSTREAM * f", "ERR wrong number of arguments for 'xadd' command"),
    ("XADD s * f", "ERR wrong number of arguments for 'xadd' command"),
    ("XADD s 0-0 f v", "ERR The ID specified in XADD must be greater than 0-0"),
    ("XADD str 0 f v", "ERR The ID specified in XADD must be greater than 0-0"),
    ("XADD str * f v", TYPE),
    ("XADD s 7-0 f v", TOO_SMALL),
    ("XADD s 6-* f v", TOO_SMALL),
    ("XADD s - f v", ID),
    ("XADD s + f v", ID),
    ("XADD s $ f v", ID),
    # XTRIM
    ("XTRIM s MAXLEN", "ERR wrong number of arguments for 'xtrim' command"),
    ("XTRIM s LIMIT 4", NO_STRATEGY),
    ("XTRIM s LIMIT 0", "ERR syntax error, XTRIM must be called with a trimming strategy"),
    ("XTRIM s KEEPREF DELREF", SYNTAX),
    ("XTRIM s MAXLEN 5 x", SYNTAX),
    ("XTRIM s MAXLEN 5 *", SYNTAX),
    ("XTRIM s MAXLEN -5", "ERR The MAXLEN argument must be >= 0."),
    ("XTRIM s MINID -", ID),
    ("XTRIM nokey MAXLEN x", INT),
    ("XTRIM str MAXLEN 5", TYPE),
    # XDEL and XDELEX
    ("XDEL s abc", ID),
    ("XDEL s 5-5 abc", ID),
    ("XDEL str 1", TYPE),
    ("XDELEX s IDS 0 5-5", "ERR Number of IDs must be a positive integer"),
    ("XDELEX s IDS -1 5-5", "ERR Number of IDs must be a positive integer"),
    ("XDELEX s IDS x 5-5", "ERR Number of IDs must be a positive integer"),
    ("XDELEX s IDS 2 5-5", "ERR The `numids` parameter must match the number of arguments"),
    ("XDELEX s IDS 1 5-5 6-0", SYNTAX),
    ("XDELEX s KEEPREF ACKED IDS 1 5-5", SYNTAX),
    ("XDELEX s KEEPREF 1 5-5", SYNTAX),
    ("XDELEX s IDS 2 5-5 abc", ID),
    ("XDELEX str nonsense 1 1", TYPE),
    # XACK, XACKDEL, XNACK
    ("XACK s g abc", ID),
    ("XACK s g 5-5 abc", ID),
    ("XACK str g 1", TYPE),
    ("XACKDEL s g IDS 0 5-5", "ERR Number of IDs must be a positive integer"),
    ("XACKDEL s g IDS 3 5-5 6-0", "ERR The `numids` parameter must match the number of arguments"),
    ("XACKDEL s g KEEPREF DELREF ACKED", SYNTAX),
    ("XACKDEL str g IDS 1 1", TYPE),
    ("XNACK str g FAIL IDS 1 5-5", TYPE),
    ("XNACK nokey g FAIL IDS 1 5-5", group_line("nokey", "g")),
    ("XNACK s nog BAD IDS 1 5-5", group_line("s", "nog")),
    ("XNACK s g BAD IDS 1 5-5", MODE),
    ("XNACK s g IDS FAIL 1 5-5", MODE),
    ("XNACK s g FAIL IDS 0 5-5", "ERR numids must be a positive integer"),
    ("XNACK s g FAIL IDS x 5-5", "ERR numids must be a positive integer"),
    ("XNACK s g FAIL IDS 2 5-5", "ERR number of IDs doesn't match numids"),
    ("XNACK s g FAIL IDS 1 5-5 6-0", "ERR Unrecognized XNACK option '6-0'"),
    ("XNACK s g FAIL IDS 1 5-5 RETRYCOUNT", "ERR Unrecognized XNACK option 'RETRYCOUNT'"),
    ("XNACK s g FAIL IDS 1 5-5 RETRYCOUNT -1", "ERR Invalid RETRYCOUNT value, must be >= 0"),
    ("XNACK s g FAIL IDS 1 5-5 RETRYCOUNT x", INT),
    ("XNACK s g FAIL FORCE RETRYCOUNT 3", "ERR syntax error, expected IDS keyword"),
    ("XNACK s g FAIL IDS 2 5-5 abc", ID),
    # XSETID, XCFGSET, XIDMPRECORD
    ("XSETID nokey abc", ID),
    ("XSETID nokey 1", NO_KEY),
    ("XSETID str 1", TYPE),
    ("XSETID s 9 ENTRIESADDED -1", "ERR entries_added must be positive"),
    ("XSETID s 9 ENTRIESADDED x", INT),
    ("XSETID s 9 ENTRIESADDED", SYNTAX),
    ("XSETID s 9 nonsense 1", SYNTAX),
    ("XSETID s 9 MAXDELETEDID 9-1", "ERR The ID specified in XSETID is smaller than the provided max_deleted_entry_id"),
    ("XSETID s 6-5", "ERR The ID specified in XSETID is smaller than current max_deleted_entry_id"),
    ("XSETID u 5-1", "ERR The ID specified in XSETID is smaller than the target stream top item"),
    ("XSETID s 9 ENTRIESADDED 1", "ERR The entries_added specified in XSETID is smaller than the target stream length"),
    ("XCFGSET nokey", NO_KEY),
    ("XCFGSET str IDMP-DURATION x", TYPE),
    ("XCFGSET s", "ERR At least one parameter must be specified"),
    ("XCFGSET s IDMP-DURATION 0", "ERR IDMP-DURATION must be between 1 and 86400 seconds"),
    ("XCFGSET s IDMP-DURATION 86401", "ERR IDMP-DURATION must be between 1 and 86400 seconds"),
    ("XCFGSET s IDMP-MAXSIZE 10001", "ERR IDMP-MAXSIZE must be between 1 and 10000 entries"),
    ("XCFGSET s IDMP-MAXSIZE x", INT),
    ("XCFGSET s IDMP-MAXSIZE 5 IDMP-MAXSIZE 5", "ERR IDMP-MAXSIZE specified multiple times"),
    ("XCFGSET s IDMP-DURATION 5 IDMP-DURATION 5", "ERR IDMP-DURATION specified multiple times"),
    ("XCFGSET s IDMP-DURATION", SYNTAX),
    ("XCFGSET s nonsense 5", SYNTAX),
    ("XIDMPRECORD s p m abc", ID),
    ("XIDMPRECORD s '' m 5-5", "ERR producer ID must be non-empty"),
    ("XIDMPRECORD s p '' 5-5", "ERR idempotent ID must be non-empty"),
    ("XIDMPRECORD nokey p m 5-5", NO_KEY),
    ("XIDMPRECORD str p m 5-5", TYPE),
    ("XIDMPRECORD s p m 5-6", "ERR No such message in stream"),
    ("XIDMPRECORD s known m 6-0", "ERR IID already exists for this producer with a different stream ID"),
    # XRANGE and XREVRANGE
    ("XRANGE nokey abc +", ID),
    ("XRANGE s ( +", ID),
    ("XRANGE s (- +", ID),
    ("XRANGE s - (+", ID),
    ("XRANGE s (18446744073709551615-18446744073709551615 +", "ERR invalid start ID for the interval"),
    ("XRANGE s - (0-0", "ERR invalid end ID for the interval"),
    ("XREVRANGE s (0-0 -", "ERR invalid end ID for the interval"),
    ("XRANGE s - + COUNT", SYNTAX),
    ("XRANGE s - + COUNT x", INT),
    ("XRANGE s - + nonsense 1", SYNTAX),
    ("XRANGE str - +", TYPE),
    # XREAD and XREADGROUP
    ("XREAD CLAIM 5 STREAMS s 0", only("CLAIM")),
    ("XREAD GROUP g c STREAMS s 0", only("GROUP")),
    ("XREAD NOACK STREAMS s 0", only("NOACK")),
    ("XREAD COUNT x STREAMS s 0", INT),
    ("XREAD BLOCK x STREAMS s 0", "ERR timeout is not an integer or out of range"),
    ("XREAD BLOCK -1 STREAMS s 0", "ERR timeout is negative"),
    ("XREAD BLOCK 9223372036854775807 STREAMS s 0", "ERR timeout is out of range"),
    ("XREAD MAXCOUNT 0 STREAMS s 0", "ERR MAXCOUNT must be a positive integer"),
    ("XREAD MAXSIZE x STREAMS s 0", "ERR MAXSIZE must be a positive integer"),
    ("XREAD COUNT 5 MAXCOUNT 4 STREAMS s 0", "ERR MAXCOUNT must be greater than or equal to COUNT"),
    (
        "XREAD STREAMS s t 0",
        "ERR Unbalanced 'xread' list of streams: for each stream key an ID, '+', or '$' must be specified.",
    ),
    ("XREAD nonsense STREAMS s 0", SYNTAX),
    ("XREAD COUNT 5 BLOCK 0 COUNT", SYNTAX),
    (
        "XREAD STREAMS s >",
        "ERR The > ID can be specified only when calling XREADGROUP using the GROUP <group> <consumer> option.",
    ),
    ("XREAD STREAMS s -", ID),
    ("XREAD STREAMS s str 0 0", TYPE),
    ("XREADGROUP GROUP g c CLAIM x STREAMS s >", "ERR min-idle-time is not an integer or out of range"),
    ("XREADGROUP GROUP g c CLAIM -1 STREAMS s >", "ERR min-idle-time must be a positive integer"),
    (
        "XREADGROUP GROUP g c STREAMS s t >",
        "ERR Unbalanced 'xreadgroup' list of streams: for each stream key an ID or '>' must be specified.",
    ),
    ("XREADGROUP COUNT 1 COUNT 1 STREAMS s >", "ERR Missing GROUP option for XREADGROUP"),
    ("XREADGROUP GROUP g c COUNT 1 COUNT 1", SYNTAX),
    ("XREADGROUP GROUP g c STREAMS s $", MEANINGLESS),
    ("XREADGROUP GROUP g c STREAMS s +", MEANINGLESS.replace("$", "+")),
    ("XREADGROUP GROUP g c STREAMS s abc", ID),
    ("XREADGROUP GROUP g c STREAMS str >", TYPE),
    ("XREADGROUP GROUP g c STREAMS nokey >", group_line("nokey", "g") + " in XREADGROUP with GROUP option"),
    ("XREADGROUP GROUP nog c STREAMS s >", group_line("s", "nog") + " in XREADGROUP with GROUP option"),
    ("XREADGROUP GROUP g c STREAMS s nokey > >", group_line("nokey", "g") + " in XREADGROUP with GROUP option"),
    # XPENDING
    ("XPENDING s nog", group_line("s", "nog")),
    ("XPENDING nokey g - + 10", group_line("nokey", "g")),
    ("XPENDING str g", TYPE),
    ("XPENDING s g -", SYNTAX),
    ("XPENDING s g - +", SYNTAX),
    ("XPENDING s g - + 5 c d e f", SYNTAX),
    ("XPENDING s g IDLE 5 - +", SYNTAX),
    ("XPENDING s g IDLE x - + 5", INT),
    ("XPENDING s g abc + 5", ID),
    ("XPENDING s g - + x", INT),
    ("XPENDING nokey g x + 5", ID),
    # XINFO
    ("XINFO STREAM nokey", NO_KEY),
    ("XINFO STREAM str", TYPE),
    ("XINFO STREAM s FULL COUNT", "ERR unknown subcommand or wrong number of arguments for 'STREAM'. Try XINFO HELP."),
    ("XINFO stream s nonsense", "ERR unknown subcommand or wrong number of arguments for 'stream'. Try XINFO HELP."),
    ("XINFO STREAM s FULL COUNT x", INT),
    ("XINFO GROUPS nokey", NO_KEY),
    ("XINFO CONSUMERS nokey g", NO_KEY),
    ("XINFO CONSUMERS s nog", named_line("s", "nog")),
    ("XINFO BAD s", "ERR unknown subcommand 'BAD'. Try XINFO HELP."),
    ("XINFO HELP x", "ERR wrong number of arguments for 'xinfo|help' command"),
    # XGROUP
    ("XGROUP CREATE s g 0", "BUSYGROUP Consumer Group name already exists"),
    ("XGROUP CREATE nokey g 0", REQUIRED),
    ("XGROUP CREATE nokey g abc MKSTREAM", ID),
    ("XGROUP CREATE s new +", ID),
    ("XGROUP CREATE str g 0", TYPE),
    ("XGROUP CREATE s new 0 ENTRIESREAD -2", "ERR value for ENTRIESREAD must be positive or -1"),
    ("XGROUP CREATE s new 0 ENTRIESREAD x", INT),
    ("XGROUP Create s new 0 nonsense", bad_options("Create")),
    ("XGROUP SETID s g 0 MKSTREAM", bad_options("SETID")),
    # More words than there are options are counted only once the key and the group were found
    ("XGROUP CREATE s new 0 MKSTREAM MKSTREAM ENTRIESREAD x", INT),
    ("XGROUP CREATE str new 0 MKSTREAM MKSTREAM ENTRIESREAD 1", TYPE),
    ("XGROUP CREATE nokey g 0 ENTRIESREAD 1 ENTRIESREAD 1", REQUIRED),
    ("XGROUP CREATE s new 0 ENTRIESREAD 1 ENTRIESREAD 1", bad_options("CREATE")),
    ("XGROUP CREATE nokey new x MKSTREAM MKSTREAM ENTRIESREAD 1", bad_options("CREATE")),
    ("XGROUP SETID nokey g 0 ENTRIESREAD 1 ENTRIESREAD 1", REQUIRED),
    ("XGROUP SETID s nog 0 ENTRIESREAD 1 ENTRIESREAD 1", named_line("s", "nog")),
    ("XGROUP SETID s g 0 ENTRIESREAD 1 ENTRIESREAD 1", bad_options("SETID")),
    ("XGROUP SETID nokey g 0", REQUIRED),
    ("XGROUP SETID s nog 0", named_line("s", "nog")),
    ("XGROUP SETID s g abc", ID),
    ("XGROUP DESTROY nokey g", REQUIRED),
    ("XGROUP CREATECONSUMER nokey g c", REQUIRED),
    ("XGROUP CREATECONSUMER s nog c", named_line("s", "nog")),
    ("XGROUP DELCONSUMER s nog c", named_line("s", "nog")),
    ("XGROUP DELCONSUMER str g c", TYPE),
    ("XGROUP BAD s g", "ERR unknown subcommand 'BAD'. Try XGROUP HELP."),
    ("XGROUP CREATE s", "ERR wrong number of arguments for 'xgroup|create' command"),
    # XCLAIM and XAUTOCLAIM
    ("XCLAIM str g c 0 5-5", TYPE),
    ("XCLAIM nokey g c x 5-5", group_line("nokey", "g")),
    ("XCLAIM s nog c 0 5-5", group_line("s", "nog")),
    ("XCLAIM s g c x 5-5", "ERR Invalid min-idle-time argument for XCLAIM"),
    ("XCLAIM s g c 0 5-5 abc", "ERR Unrecognized XCLAIM option 'abc'"),
    ("XCLAIM s g c 0 5-5 IDLE", "ERR Unrecognized XCLAIM option 'IDLE'"),
    ("XCLAIM s g c 0 5-5 IDLE x", "ERR Invalid IDLE option argument for XCLAIM"),
    ("XCLAIM s g c 0 5-5 TIME x", "ERR Invalid TIME option argument for XCLAIM"),
    ("XCLAIM s g c 0 5-5 RETRYCOUNT x", "ERR Invalid RETRYCOUNT option argument for XCLAIM"),
    ("XCLAIM s g c 0 5-5 LASTID abc", ID),
    ("XAUTOCLAIM str g c x 0", "ERR Invalid min-idle-time argument for XAUTOCLAIM"),
    ("XAUTOCLAIM str g c 0 abc", ID),
    ("XAUTOCLAIM s g c 0 (18446744073709551615-18446744073709551615", "ERR invalid start ID for the interval"),
    ("XAUTOCLAIM str g c 0 0 COUNT 0", "ERR COUNT must be > 0"),
    ("XAUTOCLAIM s g c 0 0 COUNT x", "ERR COUNT must be > 0"),
    ("XAUTOCLAIM s g c 0 0 COUNT 9223372036854775807", "ERR COUNT must be > 0"),
    ("XAUTOCLAIM s g c 0 0 COUNT 4294967296", TOO_HIGH),
    ("XAUTOCLAIM s g new 0 0 COUNT 576460752303423487 JUSTID", TOO_HIGH),
    ("XAUTOCLAIM nokey g c 0 0 COUNT 4294967296", group_line("nokey", "g")),
    ("XAUTOCLAIM s g c 0 0 COUNT", SYNTAX),
    ("XAUTOCLAIM s g c 0 0 nonsense", SYNTAX),
    ("XAUTOCLAIM str g c 0 0", TYPE),
    ("XAUTOCLAIM nokey g c 0 0", group_line("nokey", "g")),
    # any command
    ("XLEN", "ERR wrong number of arguments for 'xlen' command"),
    ("XLEN str", TYPE),
    ("XNONSENSE", "ERR unknown command 'XNONSENSE', with args beginning with: "),
    ("XNONSENSE a", "ERR unknown command 'XNONSENSE', with args beginning with: 'a' "),
]


@pytest.fixture
def client() -> Client:
    """Return a client of a node that has one of every kind of data."""
    client = World().client()
    for line in (
        "SET str x",
        "XADD s 5-5 f v",
        "XADD s 6-0 f v",
        "XADD s 7-0 f v",
        "XDEL s 7-0",
        "XGROUP CREATE s g 0",
        "XREADGROUP GROUP g c STREAMS s >",
        "XIDMPRECORD s known m 5-5",
        "XADD t 1-1 f v",
        "XGROUP CREATE t g 0",
        "XADD u 5-5 f v",
    ):
        assert not isinstance(client.call(*line.split()), Error), line
    return client


@pytest.mark.parametrize(("line", "error"), CASES)
def test_a_refused_command_says_why_and_changes_nothing(client: Client, line: str, error: str) -> None:
    """A refused command returns Redis's own error line, and leaves the state and the log unchanged."""
    world = client.world
    before, logged = snapshot(world.node), len(world.log.payloads)
    words = ["" if word == "''" else word for word in line.split()]
    answer = client.call(*words)
    assert answer == Error(error)
    assert snapshot(world.node) == before
    assert len(world.log.payloads) == logged


ARITY = {
    "xack": -4,
    "xackdel": -6,
    "xadd": -5,
    "xautoclaim": -6,
    "xcfgset": -2,
    "xclaim": -6,
    "xdel": -3,
    "xdelex": -5,
    "xgroup": -2,
    "xgroup|create": -5,
    "xgroup|createconsumer": 5,
    "xgroup|delconsumer": 5,
    "xgroup|destroy": 4,
    "xgroup|setid": -5,
    "xgroup|help": 2,
    "xidmprecord": 5,
    "xinfo": -2,
    "xinfo|stream": -3,
    "xinfo|groups": 3,
    "xinfo|consumers": 4,
    "xinfo|help": 2,
    "xlen": 2,
    "xnack": -7,
    "xpending": -3,
    "xrange": -4,
    "xread": -4,
    "xreadgroup": -7,
    "xrevrange": -4,
    "xsetid": -3,
    "xtrim": -4,
}


def test_every_stream_command_has_its_arity() -> None:
    """The table has exactly the stream commands that exist, each with Redis's arity."""
    found = {}
    for row in TABLE.values():
        if row.group == "stream":
            found[row.name] = row.arity
            found |= {sub.name: sub.arity for sub in row.subcommands.values()}
    assert found == ARITY


@pytest.mark.parametrize(("name", "arity"), ARITY.items())
def test_arity_is_checked_before_anything_else(client: Client, name: str, arity: int) -> None:
    """A command with one word too few has the arity error, whatever the words are; so has a container command alone."""
    words = name.split("|")
    answer = client.call(*words, *["x"] * (abs(arity) - len(words) - 1))
    if abs(arity) > len(words):
        assert answer == Error(f"ERR wrong number of arguments for '{name}' command")


def test_the_last_possible_id_ends_a_stream(client: Client) -> None:
    """XADD to a stream whose last id is the largest possible is an error and changes nothing."""
    top = "18446744073709551615-18446744073709551615"
    assert client.call("XADD", "v", top, "f", "v") == top.encode()
    for word in ("*", top, "18446744073709551615-*"):
        line = "ERR The stream has exhausted the last possible ID, unable to add more items"
        assert client.call("XADD", "v", word, "f", "v") == Error(line)
    assert client.call("XLEN", "v") == 1


def test_words_behind_the_consumer_are_passed_over(client: Client) -> None:
    """XPENDING accepts up to nine words, with or without IDLE among them, and ignores the surplus, as Redis does."""
    assert client.call("XPENDING", "s", "g", "-", "+", 5, "c", "d", "e") == client.call(
        "XPENDING", "s", "g", "-", "+", 5
    )
    assert client.call("XPENDING", "s", "g", "-", "+", 5, "nobody", "c") == []


def test_missing_keys_answer_before_ids_are_read(client: Client) -> None:
    """A command on a missing key replies before it parses its ids, as in Redis, so a bad id is not an error there."""
    assert client.call("XDEL", "nokey", "abc") == 0
    assert client.call("XACK", "nokey", "g", "abc") == 0
    assert client.call("XACK", "s", "nog", "abc") == 0
    assert client.call("XDELEX", "nokey", "IDS", 2, "abc", "def") == [-1, -1]
    assert client.call("XACKDEL", "s", "nog", "IDS", 1, "abc") == [-1]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([b"XCLAIM", b"s", b"g", b"c", b"0", b"\xff\xfe"], b"-ERR Unrecognized XCLAIM option '\xff\xfe'\r\n"),
        ([b"XNACK", b"s", b"g", b"FAIL", b"IDS", b"1", b"1", b"\xe9"], b"-ERR Unrecognized XNACK option '\xe9'\r\n"),
        ([b"XPENDING", b"\xff", b"g\r\nh"], b"-NOGROUP No such key '\xff' or consumer group 'g  h'\r\n"),
        ([b"XPENDING", b"a\0b", b"\0"], b"-NOGROUP No such key 'a' or consumer group ''\r\n"),
        ([b"XCLAIM", b"s", b"g", b"c", b"0", b"a\0b"], b"-ERR Unrecognized XCLAIM option 'a'\r\n"),
        ([b"XGROUP", b"a\0b", b"s"], b"-ERR unknown subcommand 'a'. Try XGROUP HELP.\r\n"),
        (
            [b"XINFO", b"STREAM", b"s", b"x"],
            b"-ERR unknown subcommand or wrong number of arguments for 'STREAM'. Try XINFO HELP.\r\n",
        ),
        (
            [b"NO\xffSUCH", b"\xff", b"a\0b"],
            b"-ERR unknown command 'NO\xffSUCH', with args beginning with: '\xff' 'a' \r\n",
        ),
        (
            [b"n" * 200, b"\xc3\xa9" * 80, b"more"],
            b"-ERR unknown command '" + b"n" * 128 + b"', with args beginning with: '" + b"\xc3\xa9" * 64 + b"' \r\n",
        ),
        ([b"XGROUP", b"n" * 200], b"-ERR unknown subcommand '" + b"n" * 128 + b"'. Try XGROUP HELP.\r\n"),
    ],
)
def test_an_error_repeats_words_byte_by_byte(client: Client, words: list[bytes], line: bytes) -> None:
    """An error repeats a word's bytes up to a NUL or 128 bytes, where Redis cuts; a line break becomes a blank."""
    world = client.world
    outcome = world.node.execute(client.session, words, world.clock.now())
    assert outcome is not None
    assert b"".join(outcome.buffers) == line


def test_a_missing_stream_is_told_before_bad_options(client: Client) -> None:
    """XINFO STREAM reports a missing key before it checks its options, as Redis does."""
    assert client.call("XINFO", "STREAM", "nokey", "nonsense") == Error(NO_KEY)
    assert client.call("XINFO", "STREAM", "nokey", "FULL", "COUNT", "x") == Error(NO_KEY)
    assert client.call("XINFO", "STREAM", "str", "nonsense") == Error(TYPE)

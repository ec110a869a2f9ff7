"""Users and permissions: checked at each command, in transactions, waits, scripts and messages."""

import hashlib
import logging
import random
from pathlib import Path
from typing import Any

import pytest
import redis

from millstream import glob
from millstream.commands.table.keyspecs import keys_of
from millstream.commands.table.table import TABLE
from millstream.commands.users.accounts import AclFileError
from millstream.server.thread import ServerThread
from support.inprocess import WAITING, Client, World
from support.resp import Incomplete
from support.servers import millstream_server
from support.wire import Wire

NO_KEY = "NOPERM No permissions to access a key"
NO_CHANNEL = "NOPERM No permissions to access a channel"


def no_command(name: str, user: str = "u") -> str:
    return f"NOPERM User {user} has no permissions to run the '{name}' command"


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def admin(world: World) -> Client:
    """Return a session of the default user with all permissions."""
    return world.client()


def user(world: World, rules: str, name: str = "u") -> Client:
    """Return a session of a user with these rules."""
    world.client().call("ACL", "SETUSER", name, "on", ">p", *rules.split())
    found = world.client()
    assert str(found.call("AUTH", name, "p")) in {"OK", "Simple(b'OK')", "b'OK'"}
    return found


def told(reply: object) -> str:
    """Return an error's line, or another reply as text."""
    return getattr(reply, "line", None) or str(reply)


# ---------------------------------------------------------------------- authentication


def test_a_new_user_may_do_nothing(world: World, admin: Client) -> None:
    """A new user is off, and has no password, command, key or channel. AUTH fails until it is on."""
    admin.call("ACL", "SETUSER", "u", ">p")
    assert admin.call("ACL", "LIST")[1].startswith(b"user u off sanitize-payload #")
    stranger = world.client()
    assert told(stranger.call("AUTH", "u", "p")).startswith("WRONGPASS")
    admin.call("ACL", "SETUSER", "u", "on")
    stranger.call("AUTH", "u", "p")
    assert stranger.call("ACL", "WHOAMI") is not None
    assert told(stranger.call("PING")) == no_command("ping")
    assert told(stranger.call("GET", "k")) == no_command("get")
    assert told(stranger.call("NOSUCH")).startswith("ERR unknown command")


@pytest.mark.parametrize("words", [("AUTH", "u", "wrong"), ("AUTH", "nobody", "p"), ("HELLO", 3, "AUTH", "u", "wrong")])
def test_a_wrong_password_changes_nothing(world: World, admin: Client, words: tuple[Any, ...]) -> None:
    """A wrong name and a wrong password get the same error, and the session keeps its user."""
    admin.call("ACL", "SETUSER", "u", "on", ">p", "+@all")
    client = world.client()
    assert told(client.call(*words)) == "WRONGPASS invalid username-password pair or user is disabled."
    assert client.session.user == b"default"
    entry = dict(zip(admin.call("ACL", "LOG")[0][::2], admin.call("ACL", "LOG")[0][1::2], strict=True))
    assert (entry[b"reason"], entry[b"object"]) == (b"auth", words[0].encode())


def test_several_passwords_and_their_removal(world: World, admin: Client) -> None:
    """Each of several passwords is accepted until it is removed. nopass accepts any, and resetpass removes all."""
    admin.call("ACL", "SETUSER", "u", "on", ">one", ">two", "#" + hashlib.sha256(b"three").hexdigest())
    client = world.client()

    def let_in(password: str) -> bool:
        return not told(client.call("AUTH", "u", password)).startswith("WRONGPASS")

    assert [let_in(word) for word in ("one", "two", "three", "four", "")] == [True, True, True, False, False]
    admin.call("ACL", "SETUSER", "u", "<one", "!" + hashlib.sha256(b"three").hexdigest())
    assert [let_in(word) for word in ("one", "two", "three")] == [False, True, False]
    admin.call("ACL", "SETUSER", "u", "nopass")
    assert let_in("anything")
    admin.call("ACL", "SETUSER", "u", "resetpass")
    assert not let_in("anything")
    assert not let_in("two")


def test_requirepass_is_the_default_users_password() -> None:
    """``requirepass`` is the default user's password at the start, by CONFIG SET and in ACL."""
    world = World({"requirepass": "secret"})
    client = world.client()
    assert told(client.call("PING")) == "NOAUTH Authentication required."
    assert told(client.call("ACL", "WHOAMI")) == "NOAUTH Authentication required."
    client.call("AUTH", "secret")
    assert hashlib.sha256(b"secret").hexdigest().encode() in client.call("ACL", "LIST")[0]
    client.call("CONFIG", "SET", "requirepass", "other")
    assert told(world.client().call("AUTH", "secret")).startswith("WRONGPASS")
    assert "WRONGPASS" not in told(world.client().call("AUTH", "default", "other"))
    waiting = world.client()
    client.call("CONFIG", "SET", "requirepass", "")
    assert told(waiting.call("DBSIZE")) == "0"


def test_a_default_user_that_is_off_lets_nobody_in_unasked(world: World, admin: Client) -> None:
    """If the default user is off, new sessions must authenticate, and existing ones stay."""
    other = user(world, "+@all ~* &*")
    admin.call("ACL", "SETUSER", "default", "off")
    assert told(world.client().call("PING")) == "NOAUTH Authentication required."
    assert told(admin.call("DBSIZE")) == "0"
    other.call("RESET")
    assert told(other.call("PING")) == "NOAUTH Authentication required."


def test_passwords_are_shown_nowhere(
    world: World, admin: Client, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """Passwords are not in CLIENT LIST, ACL LIST, ACL LOG, errors, INFO, logs, or the users' memory."""
    caplog.set_level(logging.DEBUG)
    secret = "hunter-2-hunter"
    seen = [admin.call("ACL", "SETUSER", "u", "on", f">{secret}", "+@all")]
    asked: list[tuple[str, ...]] = [
        ("ACL", "SETUSER", "u", f"<{secret}x"),
        ("ACL", "SETUSER", "u", f"#{secret}"),
        ("ACL", "SETUSER", "u", f"!{secret}"),
        ("AUTH", "u", secret + "y"),
        ("AUTH", "u", secret),
        ("CLIENT", "LIST"),
        ("ACL", "LIST"),
        ("ACL", "GETUSER", "u"),
        ("ACL", "LOG"),
        ("INFO", "everything"),
    ]
    seen += [admin.call(*words) for words in asked]
    assert secret not in repr(seen) + caplog.text + repr(world.node.accounts.all()) + "".join(capsys.readouterr())
    assert not any(secret.encode() in record for record in world.log.payloads)


# ---------------------------------------------------------------------- where it is enforced


def test_keys_of_a_group_read_are_found_as_the_handler_finds_them(world: World, admin: Client) -> None:
    """A group or a count named STREAMS does not hide the key of XREADGROUP from the permission check."""
    for key in ("mine", "secret", "c", "STREAMS"):
        admin.call("XADD", key, "1-1", "f", "v")
        admin.call("XGROUP", "CREATE", key, "STREAMS", "0")
    client = user(world, "+@all ~mine ~c ~STREAMS")
    read = ("XREADGROUP", "GROUP", "STREAMS", "c")
    assert told(client.call(*read, "STREAMS", "secret", ">")) == NO_KEY
    assert told(client.call(*read, "COUNT", 1, "NOACK", "streams", "mine", "secret", ">", ">")) == NO_KEY
    assert told(client.call("XREAD", "COUNT", 1, "STREAMS", "secret", 0)) == NO_KEY
    assert b"mine" in repr(client.call(*read, "STREAMS", "mine", ">")).encode()
    words = [b"XREADGROUP", b"COUNT", b"1", b"GROUP", b"STREAMS", b"c", b"STREAMS", b"k", b">"]
    assert keys_of(TABLE[b"xreadgroup"], words) == [b"k"]


_READ_WORDS = ["STREAMS", "streams", "GROUP", "group", "g", "c", "COUNT", "1", "BLOCK", "CLAIM", "0", ">", "$", "0-0"]
_READ_WORDS += ["NOACK", "MAXCOUNT", "MAXSIZE", "a", "xread", ""]


def test_no_order_of_words_reads_a_key_without_permission(world: World, admin: Client) -> None:
    """A user without keys gets an error for any arguments of XREAD, XREADGROUP and EVAL, and nothing waits."""
    for key in ("a", "g", "c", "1", "STREAMS", "0"):
        admin.call("XADD", key, "1-1", "f", "v")
        for group in ("g", "STREAMS", "GROUP"):
            admin.call("XGROUP", "CREATE", key, group, "0")
    client = user(world, "+xread +xreadgroup +eval")
    rng = random.Random(3)
    for _ in range(20_000):
        words = rng.choices(_READ_WORDS, k=rng.randint(0, 8))
        head = rng.choice([["XREAD"], ["XREADGROUP"], ["XREADGROUP", "GROUP", "g", "c"], ["EVAL", "return KEYS"]])
        line = [*head, *words, *rng.choice([[], ["STREAMS", "a", "0"], ["STREAMS", "a", ">"]])]
        reply = client.send(*line)
        assert getattr(reply, "line", None) or line[:3] == ["EVAL", "return KEYS", "0"], (line, reply)


def test_changes_hold_at_once_for_those_who_are_in(world: World, admin: Client) -> None:
    """A change of a user's permissions applies to the next command of its sessions."""
    client = user(world, "+get ~a*")
    assert client.call("GET", "ab") is None
    admin.call("ACL", "SETUSER", "u", "resetkeys", "~b")
    assert told(client.call("GET", "ab")) == NO_KEY
    admin.call("ACL", "SETUSER", "u", "-get", "+set")
    assert told(client.call("GET", "b")) == no_command("get")
    assert "NOPERM" not in told(client.call("SET", "b", "1"))


def test_what_may_not_run_is_not_queued(world: World) -> None:
    """A command without permission is refused when queued, and EXEC runs nothing."""
    client = user(world, "+multi +exec +set ~a")
    client.call("MULTI")
    client.call("SET", "a", 1)
    assert told(client.call("SET", "b", 1)) == NO_KEY
    assert told(client.call("EXEC")).startswith("EXECABORT")
    assert world.client().call("EXISTS", "a", "b") == 0


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        ("-set", "no permission to execute the command or subcommand"),
        ("resetkeys", "no permission to touch the specified keys"),
    ],
)
def test_exec_asks_again(world: World, admin: Client, rule: str, reason: str) -> None:
    """EXEC checks each command again: one that is no longer allowed is refused, and the others run."""
    client = user(world, "+multi +exec +set +ping ~a")
    client.call("MULTI")
    client.call("SET", "a", 1)
    client.call("PING")
    admin.call("ACL", "SETUSER", "u", rule)
    first, second = client.call("EXEC")
    assert told(first) == (
        "NOPERM ACLs rules changed between the moment the transaction was accumulated and the EXEC call. This command "
        f"is no longer allowed for the following reason: {reason}"
    )
    assert "PONG" in told(second)
    assert admin.call("EXISTS", "a") == 0


def test_a_wait_ends_with_a_refusal_when_it_is_not_allowed_any_more(world: World, admin: Client) -> None:
    """A blocked reader that loses its permission gets an error instead of the new entry."""
    admin.call("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM")
    reader, grouped = user(world, "+xread +xreadgroup ~s"), user(world, "+xreadgroup ~s", "v")
    assert reader.send("XREAD", "BLOCK", 0, "STREAMS", "s", "$") is WAITING
    assert grouped.send("XREADGROUP", "GROUP", "g", "c", "BLOCK", 0, "STREAMS", "s", ">") is WAITING
    admin.call("ACL", "SETUSER", "u", "resetkeys")
    admin.call("ACL", "SETUSER", "v", "-xreadgroup")
    admin.call("XADD", "s", "1-1", "f", "v")
    assert [told(reply) for reply in reader.inbox] == [NO_KEY]
    assert [told(reply) for reply in grouped.inbox] == [no_command("xreadgroup", "v")]
    assert admin.call("XPENDING", "s", "g")[0] == 0


def test_sessions_of_a_deleted_user_are_closed(world: World, admin: Client) -> None:
    """Sessions of a deleted user are closed, also waiting ones, even if a new user gets the same name."""
    admin.call("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM")
    idle, waiting = user(world, "+@all ~*"), user(world, "+@all ~*")
    waiting.send("XREADGROUP", "GROUP", "g", "c", "BLOCK", 0, "STREAMS", "s", ">")
    admin.call("MULTI")
    admin.call("ACL", "DELUSER", "u", "nobody")
    admin.call("ACL", "SETUSER", "u", "on", "nopass", "+@all", "~*")
    admin.call("XADD", "s", "1-1", "f", "v")
    assert admin.call("EXEC")[0] == 1
    assert idle.session.closing
    assert waiting.session.closing
    assert not any(b"1-1" in repr(reply).encode() for reply in waiting.inbox)
    assert admin.call("XPENDING", "s", "g")[0] == 0


def test_who_deletes_itself_in_a_transaction_ends_as_the_default_user(world: World, admin: Client) -> None:
    """A user that deletes itself in a transaction runs its later commands as the default user, without replies."""
    client = user(world, "+@all ~*")
    client.call("MULTI")
    client.call("ACL", "DELUSER", "u")
    client.call("SET", "k", 1)
    with pytest.raises(Incomplete):
        client.call("EXEC")
    assert client.session.closing
    assert admin.call("EXISTS", "k") == 1


def test_channels(world: World, admin: Client) -> None:
    """Channels are matched by pattern, and patterns literally. Subscribers that lose a channel are disconnected."""
    client, other = user(world, "+@pubsub &news.*"), user(world, "+@pubsub &news.*", "v")
    assert told(client.call("PUBLISH", "secret", "m")) == NO_CHANNEL
    assert client.call("PUBLISH", "news.a", "m") == 0
    assert told(client.call("SUBSCRIBE", "news.a", "secret")) == NO_CHANNEL
    assert told(client.call("PSUBSCRIBE", "news.a*")) == NO_CHANNEL
    assert told(client.call("PSUBSCRIBE", "*")) == NO_CHANNEL
    client.call("PSUBSCRIBE", "news.*")
    other.call("SUBSCRIBE", "news.a")
    admin.call("ACL", "SETUSER", "u", "resetchannels", "&news.a")
    admin.call("ACL", "SETUSER", "v", "resetchannels", "&news.a")
    assert client.session.closing
    assert not other.session.closing


def test_scripts_may_not_do_more_than_their_user(world: World, admin: Client) -> None:
    """Commands, keys and channels in a script are checked, declared keys before it runs. ACL LOG shows "lua"."""
    client = user(world, "+eval +set +publish ~a &c")
    assert told(client.call("EVAL", "return 1", 1, "b")) == NO_KEY
    for call in ("'get', 'a'", "'set', 'b', '1'", "'publish', 'd', 'm'"):
        assert told(client.call("EVAL", f"return redis.call({call})", 0)).startswith("ERR ACL failure in script: ")
    assert "ERR" not in told(client.call("EVAL", "return redis.call('set', KEYS[1], '1')", 1, "a"))
    assert admin.call("EXISTS", "a", "b") == 1
    assert [row[5] for row in admin.call("ACL", "LOG")] == [b"lua", b"lua", b"lua", b"toplevel"]
    assert all(b" cmd=eval " in row[13] for row in admin.call("ACL", "LOG"))


def test_log_of_refusals_shows_exec_for_what_was_queued(world: World, admin: Client) -> None:
    """In ACL LOG, ``cmd`` of a refusal at EXEC is ``exec``, the last command that the client sent, as in Redis."""
    client = user(world, "+multi +exec +get ~a")
    client.call("MULTI")
    client.call("GET", "a")
    admin.call("ACL", "SETUSER", "u", "-get")
    client.call("EXEC")
    client.call("GET", "a")
    rows = admin.call("ACL", "LOG")
    assert [row[13].split(b" cmd=")[1].split()[0] for row in rows] == [b"get", b"exec"]


def test_a_waiting_command_that_may_no_longer_run_counts_as_rejected(world: World, admin: Client) -> None:
    """A blocked command that is refused when served counts as rejected in INFO commandstats, as in Redis."""
    client = user(world, "+blpop ~a")
    client.send("BLPOP", "a", 0)
    admin.call("ACL", "SETUSER", "u", "resetkeys")
    admin.call("RPUSH", "a", "x")
    assert told(client.inbox.pop()).startswith("NOPERM")
    line = next(line for line in admin.call("INFO", "commandstats").split(b"\r\n") if b"blpop" in line)
    assert b"calls=0," in line
    assert line.endswith(b"rejected_calls=1,failed_calls=0")


def test_client_list_shows_null_after_an_unknown_command(world: World, admin: Client) -> None:
    """CLIENT LIST shows NULL as the last command after an unknown one, as in Redis."""
    admin.call("PING")
    admin.call("NOSUCH")
    row = next(
        row
        for row in world.client().call("CLIENT", "LIST").split(b"\n")
        if row.startswith(b"id=%d " % admin.session.id)
    )
    assert b" cmd=NULL " in row


def test_log_of_refusals(world: World, admin: Client) -> None:
    """ACL LOG merges equal refusals within a minute, lists the newest first, is reset by RESET, and has a limit."""
    client = user(world, "+get +multi ~a")
    for _ in range(3):
        client.call("GET", "b")
    client.call("MULTI")
    client.call("GET", "b")
    client.call("FLUSHALL")

    def entries() -> list[tuple[Any, ...]]:
        fields = (b"count", b"reason", b"context", b"object", b"username")
        rows = [dict(zip(row[::2], row[1::2], strict=True)) for row in admin.call("ACL", "LOG")]
        assert all(b"user=u" in row[b"client-info"] for row in rows)
        return [tuple(row[field] for field in fields) for row in rows]

    assert entries() == [
        (1, b"command", b"multi", b"flushall", b"u"),
        (1, b"key", b"multi", b"b", b"u"),
        (3, b"key", b"toplevel", b"b", b"u"),
    ]
    world.clock.advance(61_000)
    client.session.queue = None
    client.call("GET", "b")
    assert len(entries()) == 4
    admin.call("CONFIG", "SET", "acllog-max-len", 2)
    client.call("GET", "c")
    assert [row[3] for row in entries()] == [b"c", b"b"]
    admin.call("ACL", "LOG", "RESET")
    assert entries() == []
    told = [b"acl_access_denied_auth:0", b"acl_access_denied_cmd:1", b"acl_access_denied_key:6"]
    assert all(line in bytes(admin.call("INFO", "stats")) for line in told)
    admin.call("CONFIG", "RESETSTAT")
    assert b"acl_access_denied_key:0" in bytes(admin.call("INFO", "stats"))


def test_command_rules_are_told_as_they_were_given(admin: Client) -> None:
    """ACL GETUSER shows command rules in their order, without those that a later one makes void, as in Redis 7.2."""
    rules = "+get +@stream -xadd +config|get +select|0"
    admin.call("ACL", "SETUSER", "u", *rules.split())
    assert admin.call("ACL", "GETUSER", "u")[5] == b"-@all " + rules.encode()
    rules = "+@read -@stream -@read +xadd +@all -get -config +config|get +config"
    admin.call("ACL", "SETUSER", "v", *rules.split())
    assert admin.call("ACL", "GETUSER", "v")[5] == b"+@all -get +config"


# ---------------------------------------------------------------------- the file


def test_users_survive_a_restart_by_the_acl_file(tmp_path: Path) -> None:
    """ACL SAVE writes the users to a file that only its owner can read, and the next start loads them."""
    file = tmp_path / "users.acl"
    file.touch()
    with ServerThread(aclfile=file) as server, Wire(server.url) as wire:
        rules = ["on", ">p", "~a*", "%R~b", "&c", "+@read", "-get", "(+set ~x)"]
        assert wire.ask("ACL", "SETUSER", "u", *rules) == b"OK"
        assert wire.ask("ACL", "SETUSER", "default", "off") == b"OK"
        assert wire.ask("ACL", "SAVE") == b"OK"
        before = wire.ask("ACL", "LIST")
    assert file.stat().st_mode & 0o077 == 0
    assert [path.name for path in tmp_path.iterdir()] == ["users.acl"]
    with ServerThread(aclfile=file) as server, Wire(server.url) as wire:
        assert str(wire.ask("PING")).startswith("NOAUTH")
        assert wire.ask("AUTH", "u", "p") == b"OK"
        assert str(wire.ask("GET", "a")).startswith("NOPERM")
        assert [str(user) for user in server.server.node.accounts.all()]
        assert [bytes(user) for user in server.server.node.accounts.all()] == before


def test_acl_load_is_all_or_nothing(tmp_path: Path) -> None:
    """ACL LOAD names each invalid line and then loads nothing. A valid file ends the sessions of missing users."""
    file = tmp_path / "users.acl"
    file.write_text("user u on >p +@all ~*\n")
    with ServerThread(aclfile=file) as server, Wire(server.url) as wire, Wire(server.url) as other:
        assert other.ask("AUTH", "u", "p") == b"OK"
        file.write_text("user v on\n# a comment\nuser u +nosuch\nuser v\n")
        refused = str(wire.ask("ACL", "LOAD"))
        assert all(f"users.acl:{number}:" in refused for number in (2, 3, 4))
        assert wire.ask("ACL", "USERS") == [b"default", b"u"]
        assert other.ask("PING") == b"PONG"
        file.write_text("user v on nopass +ping\n\n")
        assert wire.ask("ACL", "LOAD") == b"OK"
        assert wire.ask("ACL", "USERS") == [b"default", b"v"]
        assert other.is_closed()


@pytest.mark.parametrize("text", [None, "user u +nosuch\n", "nonsense\n"])
def test_a_wrong_acl_file_ends_the_start(tmp_path: Path, text: str | None) -> None:
    """An invalid ACL file prevents the server's start."""
    file = tmp_path / "users.acl"
    if text is not None:
        file.write_text(text)
    with pytest.raises(AclFileError, match=r"users\.acl"):
        ServerThread(aclfile=file).start()


def test_a_file_without_the_default_user_does_not_open_the_server(tmp_path: Path) -> None:
    """An ACL file without the default user keeps the password of ``requirepass``, unlike in Redis."""
    file = tmp_path / "users.acl"
    file.write_text("user u on >p +ping\n")
    with ServerThread(aclfile=file, parameters={"requirepass": "secret"}) as server, Wire(server.url) as wire:
        assert str(wire.ask("PING")).startswith("NOAUTH")
        assert wire.ask("AUTH", "secret") == b"OK"


# ---------------------------------------------------------------------- through a process and redis-py


def test_through_redis_py(tmp_path: Path) -> None:
    """redis-py's ACL calls and errors work with ``millstream serve``."""
    file = tmp_path / "users.acl"
    file.touch()
    with millstream_server(tmp_path, "--memory", "--aclfile", str(file)) as server, server.client() as admin:
        admin.acl_setuser("u", enabled=True, passwords=["+p"], commands=["+xadd", "+xlen"], keys=["s*"])
        assert admin.acl_whoami() == "default"
        assert admin.acl_getuser("u")["commands"] == ["+xadd", "+xlen"]
        with server.client(username="u", password="p") as client:
            assert client.xadd("s1", {"a": "b"})
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.xadd("t", {"a": "b"})
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.delete("s1")
            assert "password" not in repr(admin.client_list())
            assert admin.acl_deluser("u") == 1
            with pytest.raises(redis.exceptions.ConnectionError):
                client.xlen("s1")
        assert {row["reason"] for row in admin.acl_log()} >= {"command", "key"}
        assert admin.acl_save()
        assert file.read_text().startswith("user default on nopass")


@pytest.mark.parametrize(("line", "what"), [(("set", "s\0x", "1"), "key"), (("publish", "c\0d", "1"), "channel")])
def test_a_refused_word_is_shown_to_its_last_byte(
    world: World, admin: Client, line: tuple[str, ...], what: str
) -> None:
    """ACL DRYRUN shows a refused key or channel completely, also after a NUL byte."""
    user(world, "on +@all ~nothing resetchannels")
    expected = f"User u has no permissions to access the '{line[1]}' {what}"
    assert admin.call("ACL", "DRYRUN", "u", *line) == expected.encode()


def test_a_rule_fits_for_ever(world: World, admin: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound on the cost of matching a rule applies to each name, not to all names together."""
    monkeypatch.setattr(glob, "MOST_EFFORT", 100_000)
    reader = user(world, "+get +publish ~*[0-9]* &*[0-9]*")
    long = b"a" * 3000 + b"1"
    for _ in range(20):
        assert reader.call("GET", long) is None
        assert reader.call("PUBLISH", long, "x") == 0

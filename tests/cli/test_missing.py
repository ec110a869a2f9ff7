"""A missing stream or group, in the subcommands without a test of their own for it."""

from pathlib import Path

import pytest
import redis
from click.testing import CliRunner

from millstream.cli.main import main
from support.ports import free_port
from support.servers import ServerProcess

MISSING = [
    (["dead", "ls", "nowhere", "--url", "URL"], 4),
    (["dead", "ls", "nowhere:text", "--url", "URL"], 4),
    (["dead", "export", "nowhere:text", "--url", "URL"], 4),
    (["stream", "gaps", "nowhere:text", "--url", "URL"], 4),
    (["dead", "show", "nowhere", "1-1", "--url", "URL"], 4),
    (["dead", "export", "nowhere", "--url", "URL"], 4),
    (["stream", "gaps", "nowhere", "--url", "URL"], 4),
    (["pending", "ls", "nowhere", "g", "--url", "URL"], 4),
    (["group", "show", "nowhere", "g", "--url", "URL"], 4),
    (["group", "show", "there", "nobody", "--url", "URL"], 4),
    (["recover", "nowhere", "--group", "g", "--min-idle", "1m", "--verdict", "release", "--url", "URL"], 4),
    (["recover", "there", "--group", "nobody", "--min-idle", "1m", "--verdict", "release", "--url", "URL"], 4),
    (["archive", "URL", "nowhere", "--to", "DIR", "--once", "--dry-run"], 4),
    (["replay", "URL", "nowhere", "--to", "URL", "--as", "again"], 4),
    (["replay", "DIR", "nowhere", "--to", "URL", "--as", "again"], 4),
    (["export", "URL", "DIR.resp", "--stream", "nowhere"], 1),
]


@pytest.mark.parametrize(("words", "code"), MISSING, ids=lambda found: found if isinstance(found, int) else found[0])
def test_what_is_not_there_is_named(
    server: ServerProcess, client: redis.Redis, tmp_path: Path, words: list[str], code: int
) -> None:
    """A missing name is one sentence, without a traceback or success."""
    client.xadd("there", {"n": 1})
    client.set("nowhere:text", 1)  # a key, but not a stream
    client.xgroup_create("there", "billing", 0)
    place = str(tmp_path / "place")
    done = CliRunner().invoke(main, [word.replace("URL", server.url).replace("DIR", place) for word in words])
    assert done.exit_code == code, done.output
    assert not isinstance(done.exception, Exception)
    assert "nowhere" in done.stderr or "nobody" in done.stderr or place in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["dead", "ls"],
        ["dead", "retry", "s", "1-1"],
        ["worker", "ls"],
        ["worker", "reap", "s"],
        ["stream", "ls"],
        ["audit", "ls"],
    ],
)
def test_a_server_that_is_not_there_is_named(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """An unreachable server is named by its URL without the password, with the ways to give another."""
    nowhere = f"redis://:secret@127.0.0.1:{free_port()}/3"
    monkeypatch.setenv("MILLSTREAM_URL", nowhere)
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 3
    assert f"cannot connect to {nowhere.replace('secret', '***')}: connection refused. Start" in done.stderr
    assert done.stderr.endswith(". Start the server, or give another URL with --url, MILLSTREAM_URL or REDIS_URL.\n")


@pytest.mark.parametrize(
    "words",
    [
        ["stream", "add", "orders", "--from", "/nowhere/x.jsonl"],
        ["export", "URL", "/nowhere/x.resp", "--stream", "orders"],
        ["import", "/nowhere/x.resp", "--to", "URL"],
        ["import", "/nowhere/x.rdb", "--to", "URL"],
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_a_file_that_is_not_there_is_named_without_the_number_of_an_error(
    server: ServerProcess, client: redis.Redis, words: list[str]
) -> None:
    """A missing file is an error with its name and the reason in words."""
    client.xadd("orders", {"n": 1})
    given = [word.replace("URL", server.url) for word in words]
    done = CliRunner().invoke(main, given, env={"MILLSTREAM_URL": server.url})
    assert (done.exit_code, "Errno" in done.stderr) == (1, False), done.output
    assert "/nowhere/x" in done.stderr
    assert "No such file or directory" in done.stderr


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["pending", "claim", "orders", "g", "1-0"], "--to CONSUMER is missing. Give it a value."),
        (["stream", "tail", "-n"], "If it is a name, write -- before it."),
        (["stream", "gaps", "-x"], "If it is a name, write -- before it."),
    ],
    ids=lambda found: found if isinstance(found, str) else found[-1],
)
def test_a_word_that_is_missing_or_taken_for_an_option_is_named(
    server: ServerProcess, client: redis.Redis, words: list[str], reason: str
) -> None:
    """A missing option value, or a name taken for an option, is an error with the correct form."""
    client.xadd("orders", {"n": 1}, id="1-0")
    client.xgroup_create("orders", "g", 0)
    client.xreadgroup("g", "c", {"orders": ">"})
    done = CliRunner().invoke(main, words, env={"MILLSTREAM_URL": server.url})
    assert done.exit_code == 2
    assert reason in done.stderr

"""All subcommands with a server share exit codes: 3 unreachable, 4 no such name, 5 refused."""

from pathlib import Path
from urllib.parse import urlsplit

import pytest
import redis
from click.testing import CliRunner

from millstream.cli.main import main
from support.ports import free_port
from support.servers import ServerProcess

NOBODY = [
    ("stream", "show", "nowhere"),
    ("stream", "get", "nowhere", "1-1"),
    ("stream", "tail", "nowhere"),
    ("stream", "gaps", "nowhere"),
    ("stream", "trim", "nowhere", "--minid", "5"),
    ("stream", "rm", "nowhere", "--yes"),
    ("group", "ls", "nowhere"),
    ("group", "show", "orders", "nobody"),
    ("group", "rewind", "orders", "nobody", "--to", "end", "--yes"),
    ("group", "rm", "orders", "nobody", "--yes"),
    ("pending", "ls", "orders", "nobody"),
    ("pending", "ack", "orders", "nobody", "--all", "--yes"),
    ("consumer", "ls", "orders", "nobody"),
    ("consumer", "rm", "orders", "nobody", "c", "--yes"),
    ("worker", "pause", "orders", "nobody", "--reason", "r"),
    ("audit", "undo", "nothing", "--yes"),
]


def code(url: str, *words: str) -> int:
    """Return the exit code of a subcommand."""
    done = CliRunner().invoke(main, [*words, "--url", url])
    assert not isinstance(done.exception, Exception), done.output
    assert (done.stdout, done.stderr.startswith("millstream ")) == ("", True), done.output
    return done.exit_code


@pytest.mark.parametrize("words", NOBODY, ids=" ".join)
def test_what_nothing_is_called_is_four(memory_server: ServerProcess, words: tuple[str, ...]) -> None:
    """A missing stream, group or change ends with 4, and an unreachable server with 3."""
    with memory_server.client() as client:
        client.flushall()
        client.xadd("orders", {"n": 1})
    assert code(memory_server.url, *words) == 4
    assert code(f"redis://127.0.0.1:{free_port()}/0", *words) == 3


@pytest.mark.parametrize("words", [("limit", "ls"), ("spark", "ls"), ("spark", "show", "q")], ids=" ".join)
def test_a_cluster_without_nodes_is_three(words: tuple[str, ...]) -> None:
    """A cluster without reachable nodes ends every command with code 3 and the same sentence."""
    url = f"redis+cluster://127.0.0.1:{free_port()}"
    done = CliRunner().invoke(main, [*words, "--url", url])
    assert done.exit_code == 3
    why = f"cannot connect to {url}: no node of the cluster answers: connection refused. Start the server"
    assert done.stderr.startswith(f"millstream {' '.join(words[:2])}: {why}")


def ended(*words: str) -> int:
    """Return the exit code of a subcommand with servers as arguments."""
    done = CliRunner().invoke(main, words)
    assert not isinstance(done.exception, Exception), (words, done.exception)
    assert done.stderr.startswith("millstream "), done.output
    return done.exit_code


BETWEEN = [
    ("import", "URL", "--to", "memory://"),
    ("export", "URL", "FILE"),
    ("archive", "URL", "orders", "--to", "DIR", "--dry-run"),
    ("replay", "URL", "orders", "--to", "URL", "--as", "copy"),
    ("recover", "orders", "--group", "g", "--min-idle", "1h", "--verdict", "release", "--url", "URL"),
    ("stream", "add", "orders", "n=1", "--url", "URL"),
    ("report", "-o", "FILE", "--url", "URL"),
]


@pytest.mark.parametrize("words", BETWEEN, ids=lambda words: words[0])
def test_commands_between_servers_end_alike(
    memory_server: ServerProcess, tmp_path: Path, words: tuple[str, ...]
) -> None:
    """Commands between servers end with 3 for an unreachable server and 5 for a refused login."""
    place = urlsplit(memory_server.url)
    files = {"FILE": str(tmp_path / "file"), "DIR": str(tmp_path / "dir")}
    nobody = f"redis://127.0.0.1:{free_port()}/0"
    stranger = f"redis://nobody:pw@{place.hostname}:{place.port}/0"
    for url, code_ in ((nobody, 3), (stranger, 5)):
        assert ended(*({**files, "URL": url}.get(word, word) for word in words)) == code_


@pytest.mark.parametrize(
    "words",
    [
        ("stream", "show", "orders"),
        ("stream", "tail", "orders"),
        ("group", "show", "orders", "billing"),
        ("pending", "ls", "orders", "billing"),
        ("group", "rm", "orders", "billing", "--yes"),
        ("worker", "pause", "orders", "billing", "--reason", "r"),
    ],
    ids=" ".join,
)
def test_what_the_user_may_not_do_is_five(server: ServerProcess, client: redis.Redis, words: tuple[str, ...]) -> None:
    """Missing rights and a wrong password end with code 5."""
    client.xadd("orders", {"n": 1})
    client.xgroup_create("orders", "billing", id="0")
    client.execute_command("ACL", "SETUSER", "guest", "on", ">pw", "~other", "+@all")
    place = urlsplit(server.url)
    try:
        assert code(f"redis://guest:pw@{place.hostname}:{place.port}/0", *words) == 5
        assert code(f"redis://guest:wrong@{place.hostname}:{place.port}/0", *words) == 5
    finally:
        client.execute_command("ACL", "DELUSER", "guest")

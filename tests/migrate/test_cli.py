"""``millstream import`` and ``millstream export`` from the command line."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from millstream.cli.main import main
from millstream.client.connect import sync_client
from millstream.migrate import command_file
from support.ports import free_port
from support.servers import ServerProcess, millstream_server


def typed(*words: str) -> Result:
    """Run the command line."""
    return CliRunner().invoke(main, words)


@pytest.fixture
def filled(real_redis: ServerProcess) -> ServerProcess:
    """Return a server with a stream in database 2."""
    with real_redis.client() as client:
        client.select(2)
        client.xadd("orders:1", {"item": "tea"}, id="1-1")
        client.xgroup_create("orders:1", "g", "0")
        client.xreadgroup("g", "ann", {"orders:1": ">"})
        client.set("text", "1")
    return real_redis


def test_in_and_out_again(filled: ServerProcess, tmp_path: Path) -> None:
    """Streams are imported from Redis and exported to a file and a Millstream server, compared, and reported."""
    home = f"file://{tmp_path}/data"
    result = typed("import", filled.url, "--db", "2", "--to", home, "--way", "commands")
    assert result.exit_code == 0, result.output
    assert "orders:1" in result.stdout
    assert "1 of 1 stream is at the target, with 1 entry." in result.stderr
    assert "1 string" in result.stderr
    assert "last seen" in result.stderr
    path = tmp_path / "streams.txt.gz"
    result = typed("export", home, str(path), "--text", "--stream", "orders:*", "-o", "json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)[0]["pending"] == 1
    with millstream_server(tmp_path / "other") as ours:
        assert typed("import", str(path), "--to", ours.url).exit_code == 0
        assert typed("export", home, ours.url).exit_code == 0
        with ours.client() as client:
            assert client.xlen("orders:1") == 1
            client.xadd("orders:1", {"item": "more"})
        result = typed("export", home, ours.url)
        assert result.exit_code == 1
        assert "--replace" in result.stderr
        assert typed("export", home, ours.url, "--replace").exit_code == 0


def test_what_cannot_be_meant(filled: ServerProcess, tmp_path: Path) -> None:
    """Invalid options end ``import`` and ``export`` with exit code 2 and one sentence."""
    for words, said in (
        (("import", filled.url, "--to", filled.url), "same database"),
        (("import", filled.url, "--to", "memory://x", "--replace", "--skip-existing"), "one of them"),
        (("export", "file.resp", str(tmp_path / "x")), "only `millstream import`"),
        (("export", filled.url, "memory://x", "--text"), "--text is for a file"),
        (("import", "http://x", "--to", filled.url), "cannot use the http:// URL"),
    ):
        result = typed(*words)
        assert result.exit_code == 2, result.output
        assert said in result.stderr
    with filled.client() as client:
        assert not client.keys("millstream:*")


def test_what_cannot_be_done(filled: ServerProcess, tmp_path: Path) -> None:
    """The exit code is 3 for a missing server and 1 for a missing file."""
    gone = f"redis://127.0.0.1:{free_port()}"
    for source, code in ((gone, 3), (str(tmp_path / "none"), 1)):
        result = typed("import", source, "--to", "memory://x")
        assert result.exit_code == code
        assert source in result.stderr


def test_nothing_to_copy(filled: ServerProcess) -> None:
    """An import from an empty source succeeds and reports that there are no streams."""
    result = typed("import", filled.url, "--to", "memory://x")
    assert result.exit_code == 0
    assert "no streams" in result.stdout


@pytest.mark.parametrize("words", [("import", "--to", "memory://x"), ("export", "memory://x"), ("export", "out")])
def test_a_pattern_that_matches_no_stream(
    filled: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    """A pattern that matches no stream is reported and fails, unless allowed. A key of another type does not match."""
    monkeypatch.chdir(tmp_path)
    name, *rest = words
    asked = (name, filled.url, *rest, "--db", "2", "--stream", "orders:*", "--skip-existing")
    for more, missing in ((["ordres"], "'ordres'"), (["text", "*1"], "'text'"), (["a", "b"], "'a', 'b'")):
        result = typed(*asked, *(word for each in more for word in ("--stream", each)))
        assert result.exit_code == 1, result.output
        assert f"No stream of the source matches {missing}:" in result.stderr
    result = typed(*asked, "--stream", "ordres", "--allow-none")
    assert result.exit_code == 0, result.output
    assert "No stream" not in result.stderr


def test_a_file_that_differs_is_said(filled: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If an exported file differs from its source, the error names where it is kept and the next step."""
    monkeypatch.setattr(command_file.build, "adding", lambda key, page: [])
    result = typed("export", filled.url, str(tmp_path / "out"), "--db", "2")
    assert result.exit_code == 1
    assert f"is kept as {tmp_path}/out.differs" in result.stderr


def test_help_teaches() -> None:
    """The help of ``import`` and ``export`` has examples and exit codes."""
    for name in ("import", "export"):
        said = typed(name, "--help").stdout
        assert "Examples" in said
        assert "Exit code" in said


def test_a_database_of_the_url_is_kept(filled: ServerProcess) -> None:
    """Without --db, the database of the URL is used."""
    with sync_client("memory://kept") as client:
        client.flushall()
        assert typed("import", filled.url.replace("/0", "/2"), "--to", "memory://kept").exit_code == 0
        assert client.keys() == [b"orders:1"]


@pytest.mark.parametrize("words", [("import", "{}", "--to", "memory://"), ("export", "{}", "out.resp")])
def test_a_source_that_is_not_there_is_not_made(tmp_path: Path, words: tuple[str, ...]) -> None:
    """A source directory that does not exist is an error, not a new store."""
    wrong = tmp_path / "wrong"
    result = typed(*(word.format(f"file://{wrong}") for word in words))
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"{wrong} has no log" in result.stderr
    assert not wrong.exists()


def test_other_databases_are_named(filled: ServerProcess, tmp_path: Path) -> None:
    """One database is copied at a time, and the output names other databases with keys."""
    home = f"file://{tmp_path}/data"
    result = typed("import", filled.url, "--to", home)
    assert result.exit_code == 0, result.output
    assert "Not read: databases 2 (2 keys) of the source. --db N" in result.stderr
    assert "Not read" not in typed("import", filled.url, "--db", "2", "--to", home).stderr
    assert "Not read" not in typed("export", home, str(tmp_path / "out.resp")).stderr


@pytest.mark.parametrize("way", ["dump", "commands"])
def test_a_last_id_behind_a_deleted_one(filled: ServerProcess, way: str) -> None:
    """A stream whose last id is below a deleted one, as Redis 7.0 allows, is copied."""
    with filled.client() as client:
        for at in (3, 5):
            client.xadd("back", {"f": "v"}, id=f"{at}-1")
        client.xgroup_create("back", "g", "0")
        client.xreadgroup("g", "c", {"back": ">"})
        client.xdel("back", "5-1")
        client.execute_command("XSETID", "back", "4-0")
    with sync_client("memory://back") as client:
        result = typed("import", filled.url, "--to", "memory://back", "--way", way, "--replace")
        assert result.exit_code == 0, result.output
        assert client.xadd("back", {"f": "v"}, id="4-1") == b"4-1"
        assert client.xpending("back", "g")["pending"] == 2

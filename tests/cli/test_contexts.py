"""``millstream context`` and ``config``: the server of a command. No secret is shown, and unsafe files are not used."""

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
import redis
from click.testing import CliRunner, Result

from millstream.cli.main import main
from millstream.client.dead_letter.letter import DeadLetter, pack
from millstream.ops.watching.servers import ConsoleServer
from support.servers import ServerProcess

SECRET = "se:cr@t /%?"
Run = Callable[..., Result]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory without settings, and a working directory outside any project."""
    for name in ("MILLSTREAM_URL", "REDIS_URL", "MILLSTREAM_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path


@pytest.fixture
def file(home: Path) -> Path:
    """The path of the user's settings file, with its directory made."""
    path = home / "xdg/millstream/config.toml"
    path.parent.mkdir(parents=True)
    return path


def run(*words: str, code: int = 0, **environment: str) -> Result:
    """Run ``millstream`` in this process."""
    done = CliRunner().invoke(main, words, env=environment, prog_name="millstream")
    assert not isinstance(done.exception, Exception), done.exception
    assert done.exit_code == code, done.output
    return done


def write(path: Path, text: str, mode: int = 0o600) -> None:
    path.write_text(text)
    path.chmod(mode)


def shown(*words: str, **environment: str) -> list[dict[str, object]]:
    """Return the rows of ``config show --origin``."""
    found: list[dict[str, object]] = json.loads(
        run("config", "show", "--origin", "-o", "json", *words, **environment).stdout
    )
    return found


def test_a_context_is_added_used_and_removed(home: Path) -> None:
    """Contexts are added, used and removed in a file that only its owner can read. The user's other text stays."""
    run("context", "add", "local", "redis://127.0.0.1:1/0", "--use")
    file = home / "xdg/millstream/config.toml"
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    write(file, file.read_text() + "\n# mine\n")
    assert "there is a context local already" in run("context", "add", "local", "redis://h/0", code=2).stderr
    run("context", "add", "prod", "rediss://h:6380/2?ssl_cert_reqs=none", "--user", "ops", "--production")
    rows = json.loads(run("context", "ls", "-o", "json").stdout)
    assert [(row["context"], row["used"], row["user"], row["production"]) for row in rows] == [
        ("local", True, None, False),
        ("prod", False, "ops", True),
    ]
    run("context", "use", "prod")
    assert "prod" in run("context", "show").stdout
    assert "No context is used now" in run("context", "rm", "prod", "--yes").stderr
    assert "# mine" in file.read_text()
    for words in (["rm", "prod", "--yes"], ["use", "prod"], ["show", "prod"]):
        assert "has no context 'prod'; these are: local" in run("context", *words, code=4).stderr
    assert "no context is used" in run("context", "show", code=4).stderr
    assert [path.name for path in file.parent.iterdir()] == ["config.toml"]


def test_the_first_that_names_a_server_decides(home: Path, file: Path) -> None:
    """The server comes from option, environment, project, user settings, or default, in this order.

    ``config show --origin`` shows each with its place, used or not.
    """
    write(
        file, 'context = "mine"\n[contexts.mine]\nurl = "redis://mine/0"\n[contexts.other]\nurl = "redis://other/0"\n'
    )
    project = home / "millstream.toml"
    write(project, 'url = "redis://project/0"\n', 0o644)
    rows = [(row["value"], row["origin"]) for row in shown()]
    assert rows == [("redis://project/0", str(project)), ("mine", str(file)), ("redis://127.0.0.1:6379/0", "default")]
    used = [
        (["--url", "redis://given/0"], {"MILLSTREAM_URL": "redis://e/0"}, "redis://given/0", "--url"),
        (["--context", "other"], {"MILLSTREAM_URL": "redis://e/0"}, "other", "--context"),
        ([], {"MILLSTREAM_URL": "redis://u:pw@e/0", "REDIS_URL": "redis://r/0"}, "redis://u:***@e/0", "MILLSTREAM_URL"),
        ([], {"MILLSTREAM_CONTEXT": "other", "REDIS_URL": "redis://r/0"}, "other", "MILLSTREAM_CONTEXT"),
        ([], {"REDIS_URL": "redis://r/0"}, "redis://r/0", "REDIS_URL"),
    ]
    for words, environment, value, origin in used:
        first = shown(*words, **environment)[0]
        assert (first["value"], first["origin"], first["used"]) == (value, origin, True)
    write(project, 'context = "other"\n', 0o644)
    assert shown()[0]["value"] == "other"
    project.unlink()
    assert shown()[0]["value"] == "mine"
    file.unlink()
    assert [row["origin"] for row in shown()] == ["default"]


def test_two_that_name_a_server_alike_are_refused(home: Path) -> None:
    """Two settings of the same rank that both name a server are refused."""
    run("context", "add", "a", "redis://a/0")
    both = run("stream", "ls", "--url", "redis://h/0", "--context", "a", code=2)
    assert both.stderr == "millstream stream ls: --url and --context both name a server: leave one out\n"
    assert "unset one" in run("stream", "ls", code=2, MILLSTREAM_URL="redis://h/0", MILLSTREAM_CONTEXT="a").stderr
    assert "unset one" in run("check", code=3, MILLSTREAM_URL="redis://h/0", MILLSTREAM_CONTEXT="a").stderr


@pytest.fixture
def guarded(memory_server: ServerProcess, home: Path) -> Iterator[str]:
    """A server with a user whose password has every special character; returns its URL without them."""
    with memory_server.client() as client:
        client.flushall()
        client.xadd("orders", {"n": 1})
        client.execute_command("ACL", "SETUSER", "ops", "reset", "on", f">{SECRET}", "~*", "+@all")
        place = urlsplit(memory_server.url)
        yield f"redis://{place.hostname}:{place.port}/0"
        client.execute_command("ACL", "DELUSER", "ops")


def test_a_password_comes_from_where_the_context_says(guarded: str, home: Path) -> None:
    """A context's password comes from the environment or a file. No output shows it, also if the server refuses it."""
    secret = home / "secret"
    write(secret, f"{SECRET}\nsecond line\n")
    run("context", "add", "env", guarded, "--user", "ops", "--password-env", "PW")
    run("context", "add", "file", guarded, "--user", "ops", "--password-file", str(secret))
    assert "orders" in run("stream", "ls", "--context", "env", PW=SECRET).stdout
    assert "orders" in run("stream", "ls", "--context", "file").stdout
    assert "orders" in run("stream", "ls", MILLSTREAM_CONTEXT="file").stdout
    outputs = [
        run("stream", "ls", "--context", "env", code=5, PW="wrong" + SECRET).output,
        run("config", "show", "--context", "env", "--origin", PW=SECRET).output,
        run("context", "ls", PW=SECRET).output,
        (home / "xdg/millstream/config.toml").read_text(),
    ]
    assert not any(SECRET in text or "se%3A" in text for text in outputs)
    unset = run("stream", "ls", "--context", "env", code=2).stderr
    assert unset.startswith("millstream stream ls: the context 'env' has its password in the environment variable PW")
    secret.write_text("\n")
    assert "first line" in run("stream", "ls", "--context", "file", code=2).stderr
    secret.unlink()
    assert "cannot be read: No such file" in run("stream", "ls", "--context", "file", code=2).stderr
    run("context", "add", "ask", guarded, "--user", "ops", "--password-prompt")
    assert "there is no terminal to prompt at" in run("stream", "ls", "--context", "ask", code=2).stderr


class Terminal:
    """A process of ``millstream`` with a terminal of its own."""

    def __init__(self, *words: str) -> None:
        ours, theirs = pty.openpty()
        self._ours = ours
        self._process = subprocess.Popen(
            [sys.executable, "-c", MAIN, *words], stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
        )
        os.close(theirs)
        self.text = ""

    def until(self, text: str) -> None:
        """Read until a text is shown."""
        while text not in self.text:
            self.text += os.read(self._ours, 4096).decode()

    def type(self, text: str) -> None:
        os.write(self._ours, f"{text}\n".encode())

    def end(self) -> int:
        """Read to the end and return the exit code."""
        try:
            while piece := os.read(self._ours, 4096):
                self.text += piece.decode()
        except OSError:  # how the other end of a terminal goes away on Linux
            pass
        os.close(self._ours)
        return self._process.wait()


MAIN = "from millstream.cli.main import main; main(prog_name='millstream')"


def test_a_password_is_typed_unseen(guarded: str) -> None:
    """A context can prompt for its password at the terminal, without echo, each time."""
    run("context", "add", "ask", guarded, "--user", "ops", "--password-prompt")
    terminal = Terminal("stream", "ls", "--context", "ask")
    terminal.until("Password of ask")
    terminal.type(SECRET)
    assert terminal.end() == 0
    assert "orders" in terminal.text
    assert SECRET not in terminal.text


def test_a_production_context_is_named_before_it_is_changed(guarded: str, home: Path) -> None:
    """A production context must be confirmed by name before a change, also with --yes, or be given by --context.

    Reads need none.
    """
    write(home / "pw", SECRET)
    options = ["--user", "ops", "--password-file", str(home / "pw")]
    run("context", "add", "prod", guarded, *options, "--production", "--use")
    letter: Any = DeadLetter(("a", "b"), "orders", "1-0", "g", "c", 5, "error", "E: x", "T", 1, 1001)
    with redis.Redis.from_url(guarded) as client:
        client.execute_command("XADD", "orders:dead", "5-0", *pack(letter))
    assert "orders" in run("stream", "ls").stdout
    for words in (
        ["stream", "rm", "orders", "--yes"],
        ["stream", "add", "orders", "n=2"],
        ["worker", "pause", "orders", "g", "--reason", "r", "--ahead"],
        ["worker", "quiet", "--all"],
        ["worker", "reap", "orders"],
        ["dead", "rm", "orders", "5-0", "--yes"],
        ["dead", "retry", "orders", "5-0"],
        ["recover", "orders", "--group", "g", "--min-idle", "1h", "--verdict", "release"],
        ["console", "--allow-changes"],
    ):
        refused = run(*words, code=2).stderr
        assert "use --context prod to" in refused, words
    assert "Nothing was changed" in run("stream", "rm", "orders", "--dry-run").stderr
    terminal = Terminal("stream", "rm", "orders", "--yes")
    terminal.until("type its name to do it")
    terminal.type("yes")
    assert terminal.end() == 2
    with redis.Redis.from_url(guarded) as client:
        assert client.exists("orders")
        terminal = Terminal("stream", "rm", "orders", "--yes")
        terminal.until("type its name to do it")
        terminal.type("prod")
        assert terminal.end() == 0
        assert not client.exists("orders")
    assert "added" in run("stream", "add", "orders", "n=2", "--context", "prod").stdout


SENTENCES = {
    "not TOML": ("context = ", "is not TOML"),
    "nested": ("a = " + "[" * 20_000, "is not TOML"),
    "unknown": ('colour = "red"\n', "'colour' is unknown"),
    "type": ("context = 3\n", "context must be text in quotes"),
    "no url": ("[contexts.a]\n", "it has no url"),
    "password": ('[contexts.a]\nurl = "redis://h/0"\npassword = "hunter2"\n', "a password must not be in this file"),
    "in url": ('[contexts.a]\nurl = "redis://u:hunter2@h/0"\n', "the url has a password"),
    "scheme": ('[contexts.a]\nurl = "http://h/0"\n', "a server URL starts with one of"),
    "name": ('[contexts."a b"]\nurl = "redis://h/0"\n', "is not a context"),
    "two": ('[contexts.a]\nurl = "redis://h/0"\npassword-env = "A"\npassword-prompt = true\n', "Give one of"),
    "users": ('[contexts.a]\nurl = "redis://u@h/0"\nuser = "v"\n', "Leave one of them out"),
    "dangling": ('context = "b"\n[contexts.a]\nurl = "redis://h/0"\n', "has no context 'b'; these are: a"),
    "escapes": ('"\\u001b[2J" = 1\n', "is unknown"),
}


@pytest.mark.parametrize("case", SENTENCES)
def test_a_broken_file_is_one_sentence(file: Path, case: str) -> None:
    """A broken settings file is one sentence with fault, place and expected value, and without secrets."""
    text, says = SENTENCES[case]
    write(file, text)
    said = run("stream", "ls", code=4 if case == "dangling" else 2).stderr
    assert says in said
    assert str(file) in said
    assert (said.count("\n"), "hunter2" in said, "\x1b" in said) == (1, False, False)
    before = file.read_bytes()
    if case != "dangling":  # which `context use` mends
        run("context", "use", "a", code=2)
        assert file.read_bytes() == before


def test_a_file_that_others_may_write_or_read_is_not_used(home: Path, file: Path) -> None:
    """A settings file that others can read or write, or that is irregular or huge, is not used.

    A pipe does not block.
    """
    good = '[contexts.a]\nurl = "redis://h/0"\n'
    for mode in (0o644, 0o660, 0o602):
        write(file, good, mode)
        assert f"chmod 600 {file}" in run("context", "ls", code=2).stderr
    write(file, good + "#" * (1 << 20))
    assert "is larger than 1 MiB" in run("context", "ls", code=2).stderr
    file.write_bytes(b"a = '\xff'")
    assert "it is not UTF-8" in run("context", "ls", code=2).stderr
    file.unlink()
    os.mkfifo(file, 0o600)
    assert "is not a file" in run("context", "ls", code=2).stderr
    file.unlink()
    file.mkdir(0o700)
    assert "is not a file" in run("context", "ls", code=2).stderr
    file.rmdir()
    project = home / "work/millstream.toml"
    write(project, 'url = "redis://h/0"\n', 0o646)
    assert (
        f"is not used, since other users may write it. Run chmod go-w {project}" in run("stream", "ls", code=2).stderr
    )
    write(project, 'url = "redis://u:hunter2@h/0"\n', 0o644)
    assert "hunter2" not in run("stream", "ls", code=2).stderr
    write(project, 'url = "redis://h/0"\ncontext = "a"\n', 0o644)
    assert "either url or context" in run("stream", "ls", code=2).stderr
    write(project, '[contexts.a]\nurl = "redis://h/0"\npassword-file = "/etc/shadow"\n', 0o644)
    assert "'contexts' is unknown" in run("stream", "ls", code=2).stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to other groups")
def test_a_file_that_another_group_may_write_is_not_used(home: Path) -> None:
    """A file that another group can write is not used. The owner's own group is allowed."""
    project = home / "work/millstream.toml"
    write(project, 'url = "redis://project/0"\n', 0o664)
    assert shown()[0]["value"] == "redis://project/0"
    for group in (1, 12345):  # another group; a group without a name
        os.chown(project, 0, group)
        assert "is not used, since other users may write it" in run("stream", "ls", code=2).stderr
    project.chmod(0o644)
    assert shown()[0]["value"] == "redis://project/0"


def test_a_password_that_others_can_read_is_not_sent(home: Path) -> None:
    """A password file that others can read is refused with the remedy and without the secret."""
    secret, urls = home / "pw", home / "urls"
    run("context", "add", "a", "redis://h/0", "--password-file", str(secret))
    commands = (
        (secret, ("stream", "ls", "--context", "a")),
        (secret, ("console", "--host", "0.0.0.0", "--password-file", str(secret))),
        (urls, ("console", f"@{urls}")),
    )
    for file, words in commands:
        for mode in (0o644, 0o640, 0o620):
            write(file, "http://:hunter2@h/0\n", mode)
            said = run(*words, code=2).stderr
            assert (f"chmod 600 {file}" in said, "hunter2" in said) == (True, False), said
    write(urls, "http://:hunter2@h/0\n")
    assert "chmod" not in run("console", f"@{urls}", code=2).stderr
    write(urls, "http://h/0\n", 0o644)
    assert "a server URL starts with" in run("console", f"@{urls}", code=2).stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files of other users")
def test_a_file_of_another_user_is_not_used(home: Path, file: Path) -> None:
    """A settings file of another user is not used."""
    write(file, '[contexts.a]\nurl = "redis://h/0"\n')
    os.chown(file, 12345, 12345)
    assert "belongs to another user (uid 12345)" in run("context", "ls", code=2).stderr
    file.unlink()
    write(home / "work/millstream.toml", 'url = "redis://h/0"\n', 0o644)
    os.chown(home / "work/millstream.toml", 12345, 12345)
    assert "belongs to another user (uid 12345)" in run("stream", "ls", code=2).stderr


def test_what_cannot_be_a_context_is_refused(home: Path) -> None:
    """An invalid context is refused and not written. A password on the command line is refused without repeating it."""
    for name, url, says in (
        ("a b", "redis://h/0", "is not a valid name"),
        ("-x", "redis://h/0", "o such option"),
        ("a", "redis://u:hunter2@h/0", "the url has a password"),
        ("a", "nonsense", "a server URL starts with"),
        ("a", "redis://h/x", "number of a database"),
    ):
        said = run("context", "add", name, url, code=2).stderr
        assert says in said
        assert "hunter2" not in said
    assert not (home / "xdg").exists()


def test_contexts_that_are_added_at_once_are_all_there(home: Path) -> None:
    """Contexts added at the same time by several commands are all kept."""

    def add(number: int) -> int:
        words = ["context", "add", f"c{number}", f"redis://h/{number}"]
        return subprocess.run([sys.executable, "-c", MAIN, *words], capture_output=True, check=False).returncode

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(add, range(4))) == [0] * 4
    assert len(json.loads(run("context", "ls", "-o", "json").stdout)) == 4


def test_a_link_to_the_file_stays_one(home: Path, file: Path) -> None:
    """A settings file that is a symbolic link stays one."""
    write(home / "real.toml", "# kept\n")
    file.symlink_to(home / "real.toml")
    run("context", "add", "a", "redis://h/0")
    assert file.is_symlink()
    assert "# kept" in (home / "real.toml").read_text()


def test_a_context_stands_for_a_url_where_several_are_named(guarded: str, home: Path) -> None:
    """``context:NAME`` stands for a server's URL with its password in commands with several servers."""
    write(home / "pw", SECRET)
    run("context", "add", "here", guarded, "--user", "ops", "--password-file", str(home / "pw"))
    done = run("export", "context:here", str(home / "streams.resp"))
    assert "1 of 1 stream" in done.stderr
    assert SECRET not in done.output
    assert "has no context 'there'" in run("export", "context:there", "x", code=4).stderr


NO_SUCH_CONTEXT = [
    ["stream", "ls", "--context", "there"],
    ["console", "--context", "there"],
    ["console", "context:there"],
    ["doctor", "context:there"],
    ["context", "show", "there"],
    ["config", "show", "--context", "there"],
    ["archive", "--context", "there", "orders", "--to", "x"],
    ["archive", "context:there", "orders", "--to", "x"],
    ["replay", "x", "orders", "--context", "there"],
    ["replay", "x", "orders", "--to", "context:there"],
    ["recover", "orders", "--group", "g", "--min-idle", "1m", "--verdict", "release", "--context", "there"],
    ["backup", "--context", "there", "x"],
    ["backup", "context:there", "x"],
]


@pytest.mark.parametrize("words", NO_SUCH_CONTEXT, ids=" ".join)
def test_a_name_that_no_context_has_ends_alike(home: Path, words: list[str]) -> None:
    """An unknown context is one sentence with the existing names and exit code 4, wherever it is given."""
    run("context", "add", "here", "redis://127.0.0.1:1/0")
    said = run(*words, code=4).stderr
    assert (said.count("\n"), "has no context 'there'; these are: here" in said) == (1, True)


def test_a_context_is_for_every_command_that_asks_a_server(guarded: str, home: Path) -> None:
    """``--context`` replaces the server argument, or --to, in every command. Giving both is refused."""
    write(home / "pw", SECRET)
    run("context", "add", "here", guarded, "--user", "ops", "--password-file", str(home / "pw"))
    words = ["archive", "orders", "--to", str(home / "archive"), "--dry-run", "-o", "json"]
    (row,) = json.loads(run(*words, "--context", "here").stdout)
    assert (row["stream"], row["archive"]) == ("orders", 1)
    replayed = ["replay", "context:here", "orders", "--as", "again", "-o", "json"]
    assert json.loads(run(*replayed, "--context", "here").stdout)["written"] == 1
    assert "keeps its data in memory" in run("backup", "--context", "here", str(home / "b"), code=2).stderr
    for both in (
        ["archive", "redis://h/0", "orders", "--to", "x", "--context", "here"],
        ["replay", "x", "orders", "--to", "redis://h/0", "--context", "here"],
        ["backup", "redis://h/0", "x", "--context", "here"],
    ):
        assert "--context and a URL both name a server" in run(*both, code=2).stderr
    for neither in (["archive", "--to", "x"], ["replay", "x", "orders"]):
        assert "the server is missing: give its URL, or --context NAME" in run(*neither, code=2).stderr


def test_a_line_that_is_shown_of_a_server_with_a_password_can_be_run(guarded: str, home: Path) -> None:
    """A printed command line for a server with a password uses --context, never the masked URL."""
    write(home / "pw", SECRET)
    run("context", "add", "here", guarded, "--user", "ops", "--password-file", str(home / "pw"))
    url = guarded.replace("://", f"://ops:{quote(SECRET, safe='')}@")
    words = ConsoleServer(url, "here").command_line("stream", "show", "orders")[1:]
    assert words[-2:] == ["--context", "here"]
    assert "orders" in run(*words).stdout
    words = ConsoleServer(url).command_line("stream", "show", "orders")[1:]
    assert words[-2:] == ["--context", "NAME"]
    assert "has no context 'NAME'; these are: here; `millstream context add` adds one" in run(*words, code=4).stderr

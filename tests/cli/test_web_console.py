"""``millstream console``: its refusals with remedies. No password is shown."""

import socket
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from millstream.cli.main import main
from millstream.cli.server.doctor import doctor
from millstream.client.url import DEFAULT_URL
from millstream.ops.watching.servers import ConsoleServer
from support.ports import free_port


def console(*words: str, **environment: str) -> Result:
    """Run the command in this process without the caller's environment."""
    bare = dict.fromkeys(["MILLSTREAM_URL", "REDIS_URL", "MILLSTREAM_CONSOLE_PASSWORD"])
    return CliRunner().invoke(main, ["console", *words], env=bare | environment)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "console.example.org"])
def test_others_reach_it_only_if_it_asks_who_they_are(host: str) -> None:
    """The console refuses to listen beyond this machine without a login. The error names the ways to log in."""
    found = console("--host", host)
    assert found.exit_code == 2
    for word in ("--password-file", "--user-header", "ssh -L"):
        assert word in found.stderr


def test_a_password_is_not_for_the_command_line() -> None:
    """A password on the command line is refused and not shown."""
    found = console("redis://anna:s3cret@127.0.0.1:6379/0")
    assert (found.exit_code, "s3cret" in found.stderr) == (2, False)
    assert "MILLSTREAM_URL" in found.stderr
    assert "@FILE" in found.stderr


def test_urls_are_taken_from_a_file(tmp_path: Path) -> None:
    """``@FILE`` gives URLs, one a line. An empty or missing file is an error."""
    file = tmp_path / "servers"
    file.write_text("# ours\n\n")
    assert "has no URL in it" in console(f"@{file}").stderr
    assert "cannot be read" in console(f"@{file}.not").stderr
    file.write_text("http://:s3cret@example.org\n")
    file.chmod(0o600)
    found = console(f"@{file}")
    assert (found.exit_code, "s3cret" in found.stderr, "a server URL starts with" in found.stderr) == (2, False, True)


def test_the_doctor_of_a_page_takes_its_command_line() -> None:
    """A page's ``doctor`` command line has the server as its argument."""
    for url in ("redis://127.0.0.1:1", DEFAULT_URL):
        words = ConsoleServer(url).command_line("doctor")[1:]
        assert words == ["doctor", url]
        with doctor.make_context("doctor", words[1:]) as parsed:
            assert parsed.params["target"] == url
    assert ConsoleServer("report:x.json").command_line("doctor")[1:] == ["doctor", "SERVER"]


def test_no_command_line_of_a_page_has_a_password_or_its_stars() -> None:
    """A page's command lines never contain a password or a masked one, but ``--context`` or ``context:NAME``."""
    for url in ("redis://:s3cret@10.0.0.1:6379/0", "unix:///run/m.sock?password=s3cret"):
        named, unnamed = ConsoleServer(url, "prod"), ConsoleServer(url)
        assert named.command_line("doctor")[1:] == ["doctor", "context:prod"]
        assert named.command_line("stream", "ls")[1:] == ["stream", "ls", "--context", "prod"]
        assert unnamed.command_line("doctor")[1:] == ["doctor", "context:NAME"]
        assert unnamed.command_line("group", "rm", "a", "b")[1:] == ["group", "rm", "a", "b", "--context", "NAME"]
    assert ConsoleServer("redis://h:1/0", "prod").command_line("stream", "ls")[-2:] == ["--url", "redis://h:1/0"]


def test_an_empty_password_is_none(tmp_path: Path) -> None:
    """An empty first line in a password file is refused."""
    file = tmp_path / "password"
    file.write_text("\nsecret")
    file.chmod(0o600)
    assert "its first line must be the password" in console("--host", "0.0.0.0", "--password-file", str(file)).stderr


def test_a_port_that_is_taken_is_said_so() -> None:
    """A port in use is an error with a remedy."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", free_port()))
        taken.listen()
        found = console("--port", str(taken.getsockname()[1]))
    assert (found.exit_code, "another --port" in found.stderr) == (2, True)


def test_its_help_says_what_it_does() -> None:
    """The help of ``console`` has examples and loads no web packages."""
    found = console("--help")
    assert (found.exit_code, found.stdout.count("millstream console")) == (0, 7)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--user-header", "X-User", "--proxy", "proxy.example.org"), "an address or a network"),
        (("--user-header", "X-User", "--proxy", ""), "an address or a network"),
        (("--user-header", "X-User", "--proxy", "10.0.0.1/8"), "an address or a network"),
        (("--user-header", "X User"), "a header's name"),
        (("--user-header", ""), "a header's name"),
        (("--proxy", "10.0.0.1"), "--user-header"),
    ],
)
def test_what_would_let_nobody_in_is_refused(words: tuple[str, ...], said: str) -> None:
    """A proxy setting that would let no user in is refused at the start."""
    found = console("--port", "0", *words, "redis://127.0.0.1:1/0")
    assert (found.exit_code, said in found.stderr) == (2, True)

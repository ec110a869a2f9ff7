"""``millstream console``: what it refuses, and what to do then; nothing of a password is said."""

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
    """The command in this process, with nothing of the caller's environment that counts."""
    bare = dict.fromkeys(["MILLSTREAM_URL", "REDIS_URL", "MILLSTREAM_CONSOLE_PASSWORD"])
    return CliRunner().invoke(main, ["console", *words], env=bare | environment)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "console.example.org"])
def test_others_reach_it_only_if_it_asks_who_they_are(host: str) -> None:
    """The message names the three ways out, and the tunnel that needs none."""
    found = console("--host", host)
    assert found.exit_code == 2
    for word in ("--password-file", "--user-header", "ssh -L"):
        assert word in found.stderr


def test_a_password_is_not_for_the_command_line() -> None:
    """Everybody on the machine would see it; the message does not show it either."""
    found = console("redis://anna:s3cret@127.0.0.1:6379/0")
    assert (found.exit_code, "s3cret" in found.stderr) == (2, False)
    assert "MILLSTREAM_URL" in found.stderr
    assert "@FILE" in found.stderr


def test_urls_are_taken_from_a_file(tmp_path: Path) -> None:
    """One a line; a file without any, and one that is not there, are said so."""
    file = tmp_path / "servers"
    file.write_text("# ours\n\n")
    assert "has no URL in it" in console(f"@{file}").stderr
    assert "cannot be read" in console(f"@{file}.not").stderr
    file.write_text("http://:s3cret@example.org\n")
    file.chmod(0o600)
    found = console(f"@{file}")
    assert (found.exit_code, "s3cret" in found.stderr, "a server URL starts with" in found.stderr) == (2, False, True)


def test_the_doctor_of_a_page_takes_its_command_line() -> None:
    """Its server is an argument, not an option; without one it looks at the machine instead."""
    for url in ("redis://127.0.0.1:1", DEFAULT_URL):
        words = ConsoleServer(url).command_line("doctor")[1:]
        assert words == ["doctor", url]
        with doctor.make_context("doctor", words[1:]) as parsed:
            assert parsed.params["target"] == url
    assert ConsoleServer("report:x.json").command_line("doctor")[1:] == ["doctor", "SERVER"]


def test_no_command_line_of_a_page_has_a_password_or_its_stars() -> None:
    """Neither would be taken: a context stands for both, and for one that is to be made where there is none."""
    for url in ("redis://:s3cret@10.0.0.1:6379/0", "unix:///run/m.sock?password=s3cret"):
        named, unnamed = ConsoleServer(url, "prod"), ConsoleServer(url)
        assert named.command_line("doctor")[1:] == ["doctor", "context:prod"]
        assert named.command_line("stream", "ls")[1:] == ["stream", "ls", "--context", "prod"]
        assert unnamed.command_line("doctor")[1:] == ["doctor", "context:NAME"]
        assert unnamed.command_line("group", "rm", "a", "b")[1:] == ["group", "rm", "a", "b", "--context", "NAME"]
    assert ConsoleServer("redis://h:1/0", "prod").command_line("stream", "ls")[-2:] == ["--url", "redis://h:1/0"]


def test_an_empty_password_is_none(tmp_path: Path) -> None:
    """A file whose first line is empty would let everybody in."""
    file = tmp_path / "password"
    file.write_text("\nsecret")
    file.chmod(0o600)
    assert "its first line must be the password" in console("--host", "0.0.0.0", "--password-file", str(file)).stderr


def test_a_port_that_is_taken_is_said_so() -> None:
    """With what to do about it."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", free_port()))
        taken.listen()
        found = console("--port", str(taken.getsockname()[1]))
    assert (found.exit_code, "another --port" in found.stderr) == (2, True)


def test_its_help_says_what_it_does() -> None:
    """With examples; without loading the web's packages."""
    found = console("--help")
    assert (found.exit_code, found.stdout.count("millstream console")) == (0, 6)


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
    """A proxy whose word would never count is said so at the start, and not to each who comes."""
    found = console("--port", "0", *words, "redis://127.0.0.1:1/0")
    assert (found.exit_code, said in found.stderr) == (2, True)

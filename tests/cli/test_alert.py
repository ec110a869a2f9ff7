"""``millstream alert``: the list, the test message, and the watcher as a process."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import redis
from click.testing import CliRunner

from millstream.cli.main import main
from millstream.client.alerts import store
from millstream.ops.history.model import LEASE, TEN
from support.ports import free_port
from support.servers import ServerProcess
from support.waiting import eventually

MILLSTREAM = str(Path(sys.executable).with_name("millstream"))
NOTIFY = """
import os, sys
open(sys.argv[1], "a").write(sys.stdin.read() + "\\n")
assert not [name for name in os.environ if name.startswith("MILLSTREAM_")]
"""


@pytest.fixture
def notify(tmp_path: Path) -> str:
    """A command that appends each message to the file ``got``."""
    (tmp_path / "notify.py").write_text(NOTIFY)
    return f"{sys.executable} {tmp_path / 'notify.py'} {tmp_path / 'got'}"


def test_a_test_message_reaches_a_command(tmp_path: Path, notify: str) -> None:
    """A test message says that it is one, and a hook that fails ends the command with 1."""
    done = CliRunner().invoke(main, ["alert", "test", "--command", notify])
    assert (done.exit_code, done.output) == (0, f"command: sent to {sys.executable}\n")
    note = json.loads((tmp_path / "got").read_text())
    assert (note["event"], note["alert"]["code"]) == ("test", "test")
    failed = CliRunner().invoke(main, ["alert", "test", "--command", "false"])
    assert (failed.exit_code, failed.output) == (1, "command: failed: false ended with status 1\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["test"], "there is no hook to test"),
        (["test", "--webhook", "https://example.org/token"], "needs a secret"),
        (["test", "--command", "'"], "--command is invalid"),
        (["watch", "--quiet", "late"], "--quiet 'late' is invalid"),
        (["watch", "--quiet", "22:00-07:00", "--time-zone", "Nowhere"], "no such time zone"),
        (["watch", "--every", "1ms"], "at least one second"),
    ],
)
def test_a_wrong_command_line_is_refused(words: list[str], said: str) -> None:
    """A wrong option is refused with its remedy."""
    done = CliRunner().invoke(main, ["alert", *words], env={"MILLSTREAM_ALERT_SECRET": ""})
    assert (done.exit_code, said in done.output) == (2, True), done.output


def test_a_webhook_that_is_down_is_reported_without_its_token(tmp_path: Path) -> None:
    """The URL may be in a file. A message names its host, not its path."""
    (tmp_path / "url").write_text(f"http://127.0.0.1:{free_port()}/a-token\n")
    (tmp_path / "secret").write_text("hunter2\n")
    for name in ("url", "secret"):
        (tmp_path / name).chmod(0o600)
    words = ["--webhook", f"@{tmp_path / 'url'}", "--secret-file", str(tmp_path / "secret")]
    done = CliRunner().invoke(main, ["alert", "test", *words])
    assert (done.exit_code, "webhook: failed: http://127.0.0.1:" in done.output) == (1, True), done.output
    assert not [word for word in ("a-token", "hunter2") if word in done.output]


@pytest.mark.realserver
def test_a_watcher_keeps_and_sends_alerts_until_it_is_stopped(
    server: ServerProcess, client: redis.Redis, tmp_path: Path, notify: str
) -> None:
    """A group without readers opens an alert, the command gets it, the list shows it, and SIGTERM ends with 0.

    With ``--history`` it also writes the history, and gives its lease back.
    """
    client.xadd("orders", {"card": "4111-secret"})
    client.xgroup_create("orders", "billing", id="0")
    words = ["alert", "watch", "--every", "1s", "--history", "--command", notify, "--url", server.url]
    with subprocess.Popen([MILLSTREAM, *words]) as watcher:
        try:
            note = json.loads(eventually(lambda: (tmp_path / "got").read_text().partition("\n")[0], what="a message"))
            assert note["alert"]["affects"] == ["billing on orders: 1 not delivered"]
            assert "4111-secret" not in str(note)
            eventually(lambda: client.hget(store.SENT, "command"), what="the message is noted")
            eventually(lambda: client.exists(TEN), what="the history has an entry")
        finally:
            watcher.send_signal(signal.SIGTERM)
        assert watcher.wait(60) == 0
    assert client.exists("millstream:{millstream:alerts}:owner:watch", LEASE) == 0
    listed = CliRunner().invoke(main, ["alert", "ls", "-o", "json", "--url", server.url])
    (row,) = json.loads(listed.stdout)
    assert (row["state"], row["code"], row["closed_ms"]) == ("open", "nobody-reads", None)
    assert "entries wait" in CliRunner().invoke(main, ["alert", "ls", "--url", server.url]).stdout

"""Failpoints set by environment: what is set happens, and an impossible setting is refused."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from millstream import failpoints
from millstream.errors import ConfigError


@pytest.fixture(autouse=True)
def none_is_left():
    """Failpoints that one test sets do not reach another test."""
    yield
    failpoints.clear()


@pytest.mark.parametrize(
    ("text", "wrong", "accepted"),
    [
        ("before_akc=kill", "before_akc", "before_ack"),
        ("before_ack=kil", "kil", "kill, pause"),
        ("before_ack=mark", "mark", "absolute path"),  # it wrote a file into whatever directory the process was in
        ("before_ack", "", "kill, pause"),
        ("before_ack:third=kill", "third", "from 1"),
        ("before_ack:0=kill", "0", "from 1"),
        ("after_ack=kill,before_ack:-1=kill", "-1", "from 1"),
    ],
)
def test_a_failpoint_that_could_never_do_what_was_meant_is_refused(text: str, wrong: str, accepted: str) -> None:
    """A failpoint setting with a misspelt or impossible part is refused, with the wrong and the accepted words."""
    with pytest.raises(ConfigError) as refused:
        failpoints.load(text)
    assert "MILLSTREAM_FAILPOINTS" in str(refused.value)
    assert repr(wrong) in str(refused.value)
    assert accepted in str(refused.value)


def test_nothing_is_set_when_a_part_is_refused() -> None:
    """If one part of a failpoint setting is refused, none of it is set."""
    with pytest.raises(ConfigError):
        failpoints.load("before_ack=kill,after_akc=kill")
    failpoints.reach("before_ack")


def test_an_action_for_a_point_that_does_not_exist_is_refused() -> None:
    """An action for an unknown failpoint is refused in the process too, with or without assertions."""
    with pytest.raises(ConfigError, match="before_ack"):
        failpoints.on("before_akc", failpoints.clear)


def test_the_command_says_what_failpoints_there_are() -> None:
    """An invalid failpoint setting ends the command with code 2 and the list of failpoints, without a traceback."""
    done = subprocess.run(
        [Path(sys.executable).parent / "millstream", "run", "nowhere:app"],
        env=os.environ | {"MILLSTREAM_FAILPOINTS": "before_akc=kill"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "before_ack, " in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert done.returncode == 2

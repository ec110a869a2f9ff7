"""Signals to a process that ends in order: some count as one request, others end it at once."""

import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from millstream.ending import Ending

TERM, CTRL_C = signal.SIGTERM, signal.SIGINT


@pytest.mark.parametrize(
    ("heard", "at_once"),
    [
        ([(TERM, 0.0), (TERM, 0.05), (TERM, 1.9)], [False, False, False]),
        ([(TERM, 0.0), (TERM, 2.1)], [False, True]),
        ([(CTRL_C, 0.0), (TERM, 0.05)], [False, False]),
        ([(CTRL_C, 0.0), (CTRL_C, 0.05)], [False, True]),
        ([(TERM, 0.0), (CTRL_C, 0.05)], [False, True]),
        ([(TERM, 0.0), (TERM, 1.5), (TERM, 3.0)], [False, False, True]),
    ],
)
def test_terminations_within_two_seconds_are_one(heard: list[tuple[int, float]], at_once: list[bool]) -> None:
    """SIGTERMs within two seconds count as one. A later one ends the process at once."""
    now = [0.0]
    ending = Ending(lambda: now[0])
    assert not ending.asked
    found = []
    for number, second in heard:
        now[0] = 100 + second
        found.append(ending.at_once(number))
        assert ending.asked
    assert found == at_once


COMMAND = """
import sys
from millstream.cli.shared.signals import ended_by_signal
with ended_by_signal() as ended:
    print("began", flush=True)
    sys.stdin.readline()
    print("asked" if ended() else "not asked", flush=True)
"""


@pytest.mark.parametrize(("second", "code"), [(TERM, 0), (CTRL_C, 128 + CTRL_C)])
def test_a_long_command_ends_in_order(second: signal.Signals, code: int) -> None:
    """After two SIGTERMs in a row a long command ends in order. A Ctrl-C after the first ends it at once."""
    pipe: Any = subprocess.PIPE
    words = [sys.executable, "-c", COMMAND]
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "began\n"
        os.kill(process.pid, TERM)
        assert "ending after the present work" in process.stderr.readline()
        os.kill(process.pid, second)
        rest, _ = process.communicate("\n", timeout=30)
        assert process.returncode == code
        assert rest == ("asked\n" if code == 0 else "")

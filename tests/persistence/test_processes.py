"""Real processes on the real disk: killed while they write, locked out, and stopped by a disk that takes no more."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from millstream.errors import LogLockedError
from millstream.persistence.log import Log
from persistence.writer import payload
from support import campaign

WRITER = Path(__file__).with_name("writer.py")


@contextmanager
def writer(home: Path, *arguments: int) -> Iterator["subprocess.Popen[str]"]:
    """Run a writer; it is dead at the end, in any case."""
    command = [sys.executable, str(WRITER), str(home), *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def durable_when_killed(home: Path, batch: int, lines: int) -> int:
    """Kill a writer after it printed ``lines`` lines; return the last position that it printed before it died."""
    with writer(home, batch) as process:
        last = 0
        for _ in range(lines):
            last = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        rest = process.stdout.read().splitlines()
        if rest and rest[-1].isdigit():
            last = max(last, *(int(line) for line in rest))
        assert process.wait() == -signal.SIGKILL
    return last


def recovered(home: Path) -> tuple[list[bytes], int]:
    log, recovery = Log.open(home)
    payloads = list(recovery.payloads())
    log.close()
    return payloads, recovery.report.torn_bytes


@pytest.mark.parametrize(("cycles", "batch"), [(8, 1), (8, 40), (4, 5000)])
def test_a_killed_process_loses_nothing_that_was_durable(tmp_path: Path, cycles: int, batch: int) -> None:
    """A process that writes the log and is killed again and again loses no durable record, over several log files."""
    for cycle in range(cycles):
        durable = durable_when_killed(tmp_path, batch, lines=2 + 3 * cycle)
        payloads, _ = recovered(tmp_path)
        assert len(payloads) >= durable > 0
        assert payloads == [payload(number) for number in range(1, len(payloads) + 1)]


def killed_ten_times(home: Path, seed: int) -> int:
    """Kill a writer ten times, in a directory of its own: a piece of the campaign."""
    for cycle in range(seed * 10, seed * 10 + 10):
        durable = durable_when_killed(home, (1, 7, 300)[cycle % 3], lines=2 + cycle % 11)
        payloads, _ = recovered(home)
        assert len(payloads) >= durable > 0
        assert payloads == [payload(number) for number in range(1, len(payloads) + 1)]
    return 10


@pytest.mark.long
@pytest.mark.timeout(campaign.LIMIT)
def test_a_process_killed_many_times_loses_nothing_that_was_durable(tmp_path: Path) -> None:
    """A process killed 500 times while it writes the log loses no durable record."""
    campaign.run("killed", lambda seed: killed_ten_times(tmp_path / str(seed), seed), range(50), unit="kills")


def test_another_process_is_locked_out_until_the_owner_dies(tmp_path: Path) -> None:
    """A second process is locked out while the owner lives. The kernel ends the lock when the owner is killed."""
    with writer(tmp_path, 1) as process:
        process.stdout.readline()
        with pytest.raises(LogLockedError) as caught:
            Log.open(tmp_path)
        assert (caught.value.pid, caught.value.address) == (process.pid, "test:0")
        process.kill()
        process.communicate()
    log, _ = Log.open(tmp_path)
    log.close()


def test_a_write_that_the_system_refuses_ends_the_writer_and_loses_nothing(tmp_path: Path) -> None:
    """A real write that fails halfway, at the file size limit, ends the log; the next start loses no durable record."""
    with writer(tmp_path, 3, 20_000) as process:
        output, errors = process.communicate(timeout=60)
        assert process.returncode == 3
    assert "may or may not be on disk" in errors
    durable = int(output.splitlines()[-1])
    payloads, torn = recovered(tmp_path)
    assert len(payloads) >= durable > 0
    assert payloads == [payload(number) for number in range(1, len(payloads) + 1)]
    (segment,) = tmp_path.glob("*.seg")
    assert segment.stat().st_size + torn >= 20_000
    assert (torn == 0) == (not list(tmp_path.glob("torn-*")))

"""A process reports to its supervisor the uncatchable signals that it or its children sent to it."""

import asyncio
import platform
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from millstream.worker.process.senders import OwnSignals
from support.waiting import aeventually

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"), reason="needs seccomp"
)

#: Without an administrator's rights, as most containers run.
PLAIN = "os.getuid() or (os.setgid(65534), os.setuid(65534))"
BEGIN = """
import ctypes, os, resource, signal, subprocess, sys, threading, time
from millstream.worker.process import senders
{}
assert senders.report_to({})
{}
"""


@asynccontextmanager
async def reporting(code: str, first: str = "") -> AsyncIterator[tuple[asyncio.subprocess.Process, list[int]]]:
    """A process that runs the given code, and the signals that it reported."""
    signals = OwnSignals()
    found: list[int] = []
    theirs = signals.theirs.fileno()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", BEGIN.format(first, theirs, code)),
        pass_fds=(theirs,),
        start_new_session=True,
        stdout=asyncio.subprocess.PIPE,
    )
    signals.start(process.pid, found.append)
    try:
        yield process, found
    finally:
        signals.close()
        await process.wait()
        await aeventually(lambda: not signals.hears, what="its last child has ended")


OWN = {
    "python": "os.kill(os.getpid(), 9)",
    "group": "os.kill(0, 9)",
    "named group": "os.killpg(os.getpgrp(), 9)",
    "raise": "signal.raise_signal(9)",
    "thread": "threading.Thread(target=lambda: signal.pthread_kill(threading.get_ident(), 9)).start(); time.sleep(60)",
    "libc": "ctypes.CDLL(None).kill(os.getpid(), 9)",
    "queue": "ctypes.CDLL(None).sigqueue(os.getpid(), 9, 0)",
    "descriptor": "signal.pidfd_send_signal(os.pidfd_open(os.getpid()), 9)",
    "program": "subprocess.run(['kill', '-9', str(os.getpid())]); time.sleep(60)",
    "shell": "os.system('kill -9 $PPID'); time.sleep(60)",
    "time": "resource.setrlimit(resource.RLIMIT_CPU, (1, 1)); sum(iter(int, 1))",
}


@pytest.mark.parametrize("way", OWN)
@pytest.mark.parametrize("first", ["", PLAIN], ids=["root", "plain"])
async def test_a_kill_by_its_own_code_is_reported(way: str, first: str) -> None:
    """A process that kills itself in any way is reported as the sender, and still ends by that signal."""
    async with reporting(OWN[way], first) as (process, found):
        assert await process.wait() == -signal.SIGKILL
        assert found == [signal.SIGKILL]


FOREIGN = {
    "its child": "one = subprocess.Popen(['sleep', '60']); one.kill(); one.wait()",
    "another group": "subprocess.run([sys.executable, '-c', 'import os; os.kill(0, 9)'], start_new_session=True)",
    "a child's descriptor": "one = subprocess.Popen(['sleep', '60'])\n"
    "signal.pidfd_send_signal(os.pidfd_open(one.pid), 9); one.wait()",
    "a look at the limit": "resource.getrlimit(resource.RLIMIT_CPU)",
    "a child's limit": "subprocess.run([sys.executable, '-c', "
    "'import resource; resource.setrlimit(resource.RLIMIT_CPU, (5, 5))'], check=True)",
    "a signal that it may catch": "signal.signal(15, lambda *_: None); signal.raise_signal(15)",
    "a child that it leaves": "os.fork() or (time.sleep(0.3), resource.setrlimit(resource.RLIMIT_CPU, (5, 5)))",
}


@pytest.mark.parametrize("way", FOREIGN)
async def test_a_signal_to_another_is_not_reported(way: str) -> None:
    """A signal sent to another process is delivered and not reported."""
    async with reporting(FOREIGN[way]) as (process, found):
        assert await process.wait() == 0
    assert found == []


async def test_a_signal_by_another_is_not_reported() -> None:
    """A kill from outside is not reported."""
    async with reporting("print('up', flush=True); time.sleep(60)") as (process, found):
        assert process.stdout is not None
        assert await process.stdout.readline() == b"up\n"
        process.kill()
        assert await process.wait() == -signal.SIGKILL
        assert found == []


async def test_a_stop_by_its_own_code_is_reported() -> None:
    """A SIGSTOP sent by the process's own code is reported, like SIGKILL."""
    async with reporting("signal.raise_signal(19)") as (process, found):
        await aeventually(lambda: found == [signal.SIGSTOP])
        stat = Path(f"/proc/{process.pid}/stat")
        await aeventually(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T")
        process.send_signal(signal.SIGCONT)
        assert await process.wait() == 0

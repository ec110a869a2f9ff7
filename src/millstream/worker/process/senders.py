"""Senders of SIGKILL and SIGSTOP. No process can catch these signals, and they do not show their sender.

An entry whose handler kills its own process must not run again; an entry whose process an operator killed must. So the
kernel reports to the supervisor each such signal that the spare process, or a child of it, sends to the spare. That is
a seccomp filter with a listener (Linux from 5.5). It sees every way: Python, libc, and the program ``kill``.

The kernel itself sends SIGKILL in two cases. The first is a limit of CPU time, so a process that sets one for itself is
reported too. The second is a lack of memory, and the kernel counts these kills. On a machine without these features the
sender stays unknown.
"""

import asyncio
import ctypes
import errno
import fcntl
import os
import platform
import select
import signal
import socket
import struct
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

#: Signals that stop or kill a process, and that it cannot catch.
_UNCAUGHT = (signal.SIGKILL, signal.SIGSTOP)
#: RLIMIT_CPU and RLIMIT_RTTIME: at their hard limits, the kernel sends SIGKILL.
_TIMES = (0, 15)


class _Machine(NamedTuple):
    """Linux numbers of one processor architecture."""

    audit: int
    seccomp: int
    kill: int
    tkill: int
    tgkill: int
    queue: int
    queue_thread: int
    limit: int


_PIDFD_SEND = 424  # number of pidfd_send_signal, on every processor
_MACHINES = {
    "x86_64": _Machine(0xC000003E, 317, 62, 200, 234, 129, 297, 302),
    "aarch64": _Machine(0xC00000B7, 277, 129, 130, 131, 138, 240, 261),
}

_LOAD, _IF_EQUAL, _RETURN = 0x20, 0x15, 0x06  # instructions of a filter
_ALLOW, _NOTIFY = 0x7FFF0000, 0x7FC00000  # results of a filter
_NUMBER, _ARCH = 0, 4  # offsets in a filter's data; the arguments follow
_LISTENER = 1 << 3 | 1 << 2  # flags NEW_LISTENER and SPEC_ALLOW, which keeps the processor fast
_NO_NEW_PRIVS = 38
_RECEIVE, _ANSWER = 0xC0502100, 0xC0182101
_CALL = struct.Struct("=QIIiIQ6Q")  # id, pid, flags; number, architecture, address, arguments
_GO_ON = 1

_GROUPS = "/sys/fs/cgroup"

_Instruction = tuple[int, int, int, int]


def report_to(listening: int) -> bool:
    """Report the SIGKILL and SIGSTOP that this process sends to itself, over a socket; return False on failure."""
    machine = _MACHINES.get(platform.machine())
    with socket.socket(fileno=listening) as reports:
        if machine is None or sys.platform != "linux":
            return False
        code = b"".join(struct.pack("=HBBI", *one) for one in _filter(machine, os.getpid()))
        held = ctypes.create_string_buffer(code, len(code))
        program = struct.pack("@HP", len(code) // 8, ctypes.addressof(held))
        libc = ctypes.CDLL(None, use_errno=True)

        def install() -> int:
            found: int = libc.syscall(machine.seccomp, 1, _LISTENER, program)
            return found

        listener = install()
        if listener < 0 and ctypes.get_errno() == errno.EACCES:
            # Without administrator rights, a filter is allowed only in a process that cannot gain rights by running a
            # program
            libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0)
            listener = install()
        if listener < 0:
            return False
        try:
            socket.send_fds(reports, [b"."], [listener])
        finally:
            os.close(listener)
        return True


def _filter(machine: _Machine, pid: int) -> list[_Instruction]:
    """Return a filter that notifies the listener of such calls to this process, or to a target they do not show."""
    itself = (_argument(0), (pid, -pid, 0, -1))
    calls = [
        [(_NUMBER, (machine.kill, machine.tkill, machine.queue)), (_argument(1), _UNCAUGHT), itself],
        [(_NUMBER, (machine.tgkill, machine.queue_thread)), (_argument(2), _UNCAUGHT), itself],
        [(_NUMBER, (_PIDFD_SEND,)), (_argument(1), _UNCAUGHT)],
        [(_NUMBER, (machine.limit,)), (_argument(1), _TIMES), itself],
    ]
    blocks = [line for tests in calls for line in _block(tests)]
    foreign = [(_LOAD, 0, 0, _ARCH), (_IF_EQUAL, 1, 0, machine.audit), (_RETURN, 0, 0, _ALLOW)]
    return [*foreign, *blocks, (_RETURN, 0, 0, _ALLOW)]


def _argument(index: int) -> int:
    return 16 + 8 * index


def _block(tests: Sequence[tuple[int, Sequence[int]]]) -> list[_Instruction]:
    """Return instructions that notify if each tested argument of the call has one of its values, or else go on."""
    code: list[_Instruction] = [(_RETURN, 0, 0, _NOTIFY)]
    for offset, values in reversed(tests):
        jumps = [(_IF_EQUAL, len(values) - 1 - at, 0, value & 0xFFFFFFFF) for at, value in enumerate(values)]
        jumps[-1] = (_IF_EQUAL, 0, len(code), values[-1] & 0xFFFFFFFF)
        code = [(_LOAD, 0, 0, offset), *jumps, *code]
    return code


class OwnSignals:
    """Receives, in the supervisor, the signals that one process sends to itself."""

    def __init__(self) -> None:
        self._reports, self.theirs = socket.socketpair()
        self._reports.setblocking(False)
        self._calls = -1
        self._pid = 0
        self._found: Callable[[int], None]

    @property
    def hears(self) -> bool:
        """True if every such signal that the process sends to itself is reported."""
        return self._calls >= 0

    def start(self, pid: int, found: Callable[[int], None]) -> None:
        """Listen to the process of this id, which has the socket ``theirs``; a CPU limit is reported as SIGKILL."""
        self._pid, self._found = pid, found
        self.theirs.close()
        asyncio.get_running_loop().add_reader(self._reports, self._connect)

    def close(self) -> None:
        """Stop reporting, since the process has ended.

        Calls of a child that it left are still answered until the child ends.
        """
        self._pid = 0
        self.theirs.close()  # if no process was started for it
        if self._reports.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._reports)
            self._reports.close()

    def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._reports)
        with suppress(OSError):
            _, found, _, _ = socket.recv_fds(self._reports, 1, 1)
            if found:
                self._calls = found[0]
                loop.add_reader(self._calls, self._hear)

    def _hear(self) -> None:
        looked = select.poll()
        looked.register(self._calls, select.POLLIN)
        events = dict(looked.poll(0)).get(self._calls, 0)
        if not events & select.POLLIN:
            if events:  # no process is left that could make a call
                asyncio.get_running_loop().remove_reader(self._calls)
                os.close(self._calls)
                self._calls = -1
            return
        call = bytearray(_CALL.size)
        with suppress(OSError):  # the caller has ended meanwhile
            fcntl.ioctl(self._calls, _RECEIVE, call)
            ident, sender, _, number, _, _, *words = _CALL.unpack(call)
            try:
                if self._pid:
                    self._examine(sender, number, words)
            finally:
                fcntl.ioctl(self._calls, _ANSWER, struct.pack("=QqiI", ident, 0, 0, _GO_ON))

    def _examine(self, sender: int, number: int, words: Sequence[int]) -> None:
        """Report a call if its target is the process; the filter also passes calls for other targets."""
        machine = _MACHINES[platform.machine()]
        whom = ctypes.c_int(words[0] & 0xFFFFFFFF).value
        own = sender == self._pid or Path(f"/proc/{self._pid}/task/{sender}").exists()
        if number == machine.limit:
            if words[2] and (own or whom == self._pid):  # None sets nothing
                self._found(signal.SIGKILL)
            return
        if number == _PIDFD_SEND:
            with suppress(OSError):
                lines = Path(f"/proc/{sender}/fdinfo/{whom}").read_text().split("\n")
                whom = next((int(line[4:]) for line in lines if line.startswith("Pid:")), 0)
            meant = whom == self._pid
        else:
            meant = whom != 0 or os.getpgid(sender) == self._pid
        if meant:
            self._found(words[2 if number in (machine.tgkill, machine.queue_thread) else 1])


def oom_kills() -> int:
    """Return the number of processes that the kernel killed for lack of memory; 0 if it does not count them.

    The number is that of the own control group if readable, else that of the machine.
    """
    files = []
    with suppress(OSError):
        for _, kinds, place in (line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()):
            if kinds == "memory":  # version 1; a container sees its own group at the top
                files += [f"{_GROUPS}/memory{place}/memory.oom_control", f"{_GROUPS}/memory/memory.oom_control"]
            elif not kinds:
                files.append(f"{_GROUPS}{place}/memory.events")
    for file in (*files, "/proc/vmstat"):
        with suppress(OSError, ValueError):
            return count(Path(file))
    return 0


def count(file: Path) -> int:
    """Return the number of these kills in a file of the kernel."""
    for line in file.read_text().splitlines():
        name, _, number = line.partition(" ")
        if name == "oom_kill":
            return int(number)
    raise ValueError(file)

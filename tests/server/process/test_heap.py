"""The heaps of a server's process."""

import re
from pathlib import Path

import pytest

from millstream import core
from support.servers import millstream_server

HEAP = 64 << 20
"""Bytes that glibc reserves for the heap of a thread, at a multiple of them."""


def thread_heaps(maps: str) -> list[str]:
    """Return the mappings of a process that begin the heap of a thread: a used part, and behind it the reserved one."""
    found = re.findall(
        r"^(\w+)-(\w+) rw-p 00000000 00:00 0 *\n(\w+)-(\w+) ---p 00000000 00:00 0 *$", maps, re.MULTILINE
    )
    places = [[int(each, 16) for each in one] for one in found]
    return [f"{at:x}" for at, end, rest, last in places if at % HEAP == 0 and end == rest and last - at == HEAP]


@pytest.mark.skipif(
    not hasattr(core.native, "share_heap"), reason="the native core of another C library has no such call"
)
def test_threads_have_no_heaps_of_their_own(tmp_path: Path) -> None:
    """The thread that syncs the log allocates, and no heap is made for it, which would keep what it frees."""
    with millstream_server(tmp_path, "--fsync", "always") as server, server.client() as client:
        for number in range(50):
            client.xadd("s", {"f": "x" * 1000 * number})
        assert server.process is not None
        assert thread_heaps(Path(f"/proc/{server.process.pid}/maps").read_text()) == []

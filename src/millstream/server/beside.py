"""A companion program of the server: it starts when the server accepts clients, and ends with it.

It is a separate process, so it cannot block the event loop or use the server's memory. It exits when its standard input
ends; the system closes that in every case when the server ends.
"""

import asyncio
import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote

from millstream.logs import logger

log = logger("millstream.server")

_GRACE = 3.0  # seconds in which it must end by itself


@dataclass(frozen=True, slots=True)
class Companion:
    """The companion program to run."""

    name: str  # Name for people
    argv: Sequence[str]  # Program and arguments; the server's URL is in ``MILLSTREAM_URL``, since others see arguments
    alone: str  # Command line that starts it separately
    password: str = ""  # Password of the server's default user; empty for none

    def environment(self, url: str) -> dict[str, str]:
        """Return the server's environment, with its URL and password added."""
        if self.password and url.startswith("unix://"):
            url = f"{url}?password={quote(self.password, safe='')}"
        elif self.password:
            url = url.replace("://", f"://:{quote(self.password, safe='')}@", 1)
        # Without the context, which could name another server and would contradict the URL
        ours = {name: value for name, value in os.environ.items() if name != "MILLSTREAM_CONTEXT"}
        return {**ours, "MILLSTREAM_URL": url}


class Beside:
    """The running companion program."""

    def __init__(self, companion: Companion) -> None:
        self._companion = companion
        self._process: asyncio.subprocess.Process | None = None
        self._watching: asyncio.Task[None] | None = None
        self._is_ending = False

    async def start(self, url: str) -> None:
        """Start the program; a failure is logged, and the server continues."""
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._companion.argv,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env=self._companion.environment(url),
                start_new_session=True,  # Ctrl-C must reach only the server, which then ends the other process
            )
        except OSError as error:
            log.warning("the %s cannot be started (%s): the server continues without it", self._companion.name, error)
            return
        self._watching = asyncio.create_task(self._watch(self._process), name="millstream-beside")

    async def stop(self) -> None:
        """Stop the program."""
        self._is_ending = True
        if self._process is None or self._watching is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        done, _ = await asyncio.wait([self._watching], timeout=_GRACE)
        if not done:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._watching

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        """Log the program's address, and its end."""
        assert process.stdout is not None
        async for line in process.stdout:
            word, _, address = line.decode(errors="replace").strip().partition(" ")
            if word == "ready":
                log.info("%s at %s", self._companion.name, address)
        code = await process.wait()
        if not self._is_ending:
            log.warning(
                "the %s ended by itself (exit code %d): the server continues without it; start it again by: %s",
                self._companion.name,
                code,
                self._companion.alone,
            )

"""Entries as they are added: from a position on, through restarts of the server, with a notice for every gap.

A blocking read waits for at most a share of the connection's time limit for a reply. If the server goes away, this says
so, tries again, and continues after the last entry it had. If a stream begins again (the server lost it, or a client
deleted it), its ids may be lower than that. Then this says so too, and continues from the stream's start.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass

from millstream.client.line import Command, Line, Reply, passes
from millstream.console.model import replies
from millstream.console.model.entries import EntryView
from millstream.console.model.names import NEVER, order, text_of
from millstream.console.reading.asking import checked
from millstream.console.reading.entries import last_id_of
from millstream.errors import Disconnected

#: Seconds that a read waits for entries, if the connection waits that long; entries of a reply.
_BLOCK = 5.0
_COUNT = 100
#: Seconds between two tries to reach a server that is away.
_PAUSE = 0.5


@dataclass(frozen=True, slots=True)
class Arrived:
    """Entries that arrived, or a notice."""

    entries: tuple[EntryView, ...] = ()  # Added since, in the order of their stream
    said: str = ""  # A notice for a person, for example that the server is away; empty with entries


async def follow(line: Line, positions: Mapping[str, str]) -> AsyncGenerator[Arrived, None]:
    """The entries that are added after these positions; never ends by itself.

    An item arrives at least every few seconds, even an empty one, so that a caller can check if it is still wanted.
    """
    places: dict[Line, dict[str, str]] = {}
    for stream, position in positions.items():  # one read for all streams of a server, one for each slot of a cluster
        places.setdefault(line.near(stream), {})[stream] = position
    arrived: asyncio.Queue[Arrived | Exception] = asyncio.Queue(maxsize=1)
    tasks = [asyncio.create_task(_Follower(near, at, arrived).run()) for near, at in places.items()]
    try:
        while True:
            found = await arrived.get()
            if isinstance(found, Exception):
                raise found
            yield found
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Follower:
    """Reads streams that one server has."""

    def __init__(self, line: Line, at: dict[str, str], arrived: "asyncio.Queue[Arrived | Exception]") -> None:
        self._line = line
        self._at = at
        self._arrived = arrived
        self._away = False

    async def run(self) -> None:
        """Read until cancelled; an error goes the way of what came."""
        try:
            while True:
                try:
                    came = await self._read()
                except Disconnected as error:
                    await self._went_away(str(error))
                else:
                    await self._arrived.put(came)
        except Exception as error:  # noqa: BLE001 - whoever follows raises it
            await self._arrived.put(error)

    async def _read(self) -> Arrived:
        if self._away:
            began_anew = await self._look()
            self._away = False
            return Arrived(said=began_anew or "the server is back; going on behind the last entry")
        seconds = min(_BLOCK, self._line.patience / 2)
        words = ("XREAD", "COUNT", _COUNT, "BLOCK", max(int(seconds * 1000), 1), "STREAMS")
        (reply,) = await self._ask([(*words, *self._at, *self._at.values())])
        found = []
        for key, rows in checked(reply, ", ".join(self._at)) or ():
            stream = text_of(key)
            found += [replies.entry_view(stream, row) for row in rows]
            self._at[stream] = found[-1].id
        return Arrived(tuple(found)) if found else Arrived(said=await self._look())

    async def _ask(self, commands: list[Command]) -> list[Reply]:
        """The replies; a server that cannot serve for now, since it loads its data, say, is as good as away."""
        answers = await self._line.calls(commands)
        for reply in answers:
            if isinstance(reply, Exception) and passes(reply):
                raise Disconnected(str(reply))
        return list(answers)

    async def _went_away(self, why: str) -> None:
        if not self._away:
            self._away = True
            await self._arrived.put(Arrived(said=f"the server went away ({why}); trying again"))
        await asyncio.sleep(_PAUSE)
        await self._arrived.put(Arrived())

    async def _look(self) -> str:
        """Set back the position in streams that began again; returns the notice of that."""
        said = []
        streams = list(self._at)
        answers = await self._ask([("XINFO", "STREAM", stream) for stream in streams])
        for stream, reply in zip(streams, answers, strict=True):
            if order(last_id_of(stream, reply, missing_ok=True)) < order(self._at[stream]):
                said.append(f"{stream} begins anew: it was deleted or lost; going on from its start")
                self._at[stream] = NEVER
        return "; ".join(said)

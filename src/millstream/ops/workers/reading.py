"""Reading a server's workers from ``worker/registry``; a refusal is reported with its reason."""

import asyncio
from dataclasses import dataclass

from millstream.client.line import Line
from millstream.errors import Disconnected, MillstreamError
from millstream.ops.asking import calls, checked, refusal
from millstream.ops.plan import ChangeRefusedError, FactCheck, Words, value_check
from millstream.ops.words import text_of
from millstream.ops.workers.status import EndedWorker, VanishedWorker, WorkersSeen, worker_status
from millstream.texts import said
from millstream.times import score_ms
from millstream.worker.model.pause import HandlerPause
from millstream.worker.registry import protocol


async def read_workers(line: Line) -> WorkersSeen:
    """Read all workers, those that vanished lately, and the pauses."""
    at_ms = line.wall_time()
    try:
        (found, strange), (ordered, pauses), beats = await asyncio.gather(
            protocol.read_workers(line),
            protocol.orders_and_pauses(line),
            calls(
                line,
                [
                    ("ZREVRANGE", protocol.INDEX, 0, -1, "WITHSCORES"),
                    ("ZREVRANGE", protocol.ENDED, 0, protocol.ENDS - 1, "WITHSCORES"),
                ],
            ),
        )
        flat = checked(beats[0], protocol.INDEX)
    except Disconnected:
        raise
    except MillstreamError as error:
        return WorkersSeen(at_ms, why=str(error))
    known = {facts["id"] for facts in found}
    index = [(text_of(name), score_ms(score)) for name, score in zip(flat[::2], flat[1::2], strict=True)]
    gone = [VanishedWorker(*row) for row in index if row[0] not in known and at_ms - row[1] > protocol.TTL_MS]
    alive = tuple(worker_status(facts, ordered.get(facts["id"])) for facts in found)
    ends = beats[1] if refusal(beats[1]) is None else []
    ended = tuple(
        EndedWorker(end[0], score_ms(score), *end[1:])
        for text, score in zip(ends[::2], ends[1::2], strict=True)
        if (end := protocol.parse_end(text)) is not None
    )
    return WorkersSeen(at_ms, alive, tuple(gone), tuple(pauses), tuple(strange), ended=ended)


async def living_workers(line: Line) -> WorkersSeen:
    """Read the workers; raise an error if the server refuses."""
    seen = await read_workers(line)
    if seen.why is not None:
        raise ChangeRefusedError(seen.why)
    return seen


@dataclass(frozen=True, slots=True)
class PauseField:
    """The field that stores a group's pause, with its present value."""

    field: str  # Field of the registry's hash
    value: bytes | None  # Present value of the field; None if it is missing
    pause: HandlerPause | None  # The parsed value; None if there is no pause

    @property
    def removal(self) -> Words:
        """The command that ends the pause."""
        return ("HDEL", protocol.CONTROL, self.field)

    def check(self) -> FactCheck:
        """Return a check that the pause is unchanged."""
        return value_check("the pause", ("HGET", protocol.CONTROL, self.field), self.value)


async def pause_field(line: Line, stream: str, group: str) -> PauseField:
    """Read the field that stores the pause of a group."""
    field = protocol.pause_field(stream, group)
    (value,) = await line.near(protocol.CONTROL).calls([("HGET", protocol.CONTROL, field)])
    if isinstance(value, Exception):
        raise ChangeRefusedError(f"{protocol.CONTROL}: {said(value)}")
    return PauseField(field, value, protocol.parse_pause(stream, group, value))

"""Declare recurring schedules in code, and store or change them on the server while programs run."""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

from millstream.client.later import recurring, timetable
from millstream.client.later.recurring import STREAM, Recurring, checked_name
from millstream.client.later.timetable import CatchUp, Overlap
from millstream.client.line import Line
from millstream.client.partitions.declared import find_layout
from millstream.client.partitions.layout import key_bytes
from millstream.client.slots import tag_of
from millstream.clock import SystemClock
from millstream.errors import ConfigError
from millstream.worker.handlers.calling import name_of
from millstream.worker.handlers.publish import checked_stream, fields_of, key_in
from millstream.worker.handlers.subscription import StreamSub
from millstream.worker.registering import Registering

Handler = TypeVar("Handler", bound=Callable[..., Any])

#: Returns the server's present time in milliseconds since 1970, as far as the running app knows it.
SERVER_TIME: ContextVar[Callable[[], int]] = ContextVar("SERVER_TIME", default=SystemClock().wall_time)

_KEEP = 1_000  # approximate number of entries kept in the stream of a schedule with a handler


@dataclass(frozen=True)
class Fire:
    """One firing of a schedule, passed to its handler.

    Attributes:
        name: name of the schedule.
        scheduled: time in the timetable, in milliseconds since 1970.
    """

    name: str
    scheduled: int

    @property
    def at(self) -> datetime:
        """The time in the timetable, as a ``datetime`` in UTC."""
        return datetime.fromtimestamp(self.scheduled / 1000, UTC)

    @property
    def late(self) -> float:
        """Seconds that have passed since the time in the timetable, by the server's clock."""
        return max(SERVER_TIME.get()() - self.scheduled, 0) / 1000


class Declaring(Registering):
    """The part of an app that declares recurring schedules."""

    def schedule(
        self,
        cron: str | None = None,
        *,
        every: float | str | None = None,
        offset: float | str = 0,
        tz: str = "UTC",
        jitter: float | str = 0,
        catch_up: CatchUp = "latest",
        grace: float | str = 60,
        overlap: Overlap = "queue",
        name: str | None = None,
        stream: str | None = None,
        content: Any = None,
        key: str | bytes | float | None = None,
        **options: Any,
    ) -> Callable[[Handler], Handler]:
        """Run a function at the times of a cron line or an interval, once in the whole fleet.

        Args:
            cron: minute, hour, day of the month, month and day of the week, such as ``"0 3 * * *"``.
            every: interval instead of a cron line, in seconds or as a text such as ``"6h"``. It counts from 1970.
            offset: shift of the interval's times, in seconds or as a text.
            tz: the time zone of the cron line, such as ``"Europe/Berlin"``.
            jitter: longest delay of a firing, in seconds or as a text, so that many do not start together.
            catch_up: firings to make up for after a time in which no worker ran. ``"latest"``: one for all missed
                firings. ``"none"``: only firings late by ``grace`` at most. ``"all"``: each firing, at most a thousand.
            grace: seconds, or a text.
            overlap: ``"skip"`` drops a firing while an earlier firing is not handled yet; only for a function.
            name: name of the schedule, unique on the server; the function's name by default.
            stream: publish to this stream at these times, and run no function.
            content: content of the entry in that stream.
            key: partition key of the entry, if that stream is partitioned; see :meth:`millstream.App.publish`.
            options: options of the subscriber, such as ``retry=``; see :meth:`subscriber`.

        Returns:
            A decorator. The function may take a :class:`Fire`.

        Raises:
            ConfigError: an option is invalid, or the name is taken.
        """
        if callable(cron):
            raise ConfigError(
                f'{name_of(cron)}: @app.schedule needs times. Write @app.schedule("0 3 * * *") or '
                '@app.schedule(every="6h") above it.'
            )

        def declare(name: str, stream: str, words: list[Any], group: str) -> None:
            table = timetable.timetable(
                name,
                cron,
                every=every,
                offset=offset,
                tz=tz,
                jitter=jitter,
                catch_up=catch_up,
                grace=grace,
                overlap=overlap,
            )
            packed = tuple(word if isinstance(word, bytes) else str(word).encode() for word in words)
            chosen = None if key is None else key_bytes(key)
            made = Recurring(name, table, stream, packed, True, group, key=chosen)
            self._add_recurring(made.prefixed(self._prefix))

        if stream is not None:
            checked_stream("schedule", stream)
            if options:
                raise ConfigError(f"schedule(stream=) is invalid with {next(iter(options))}=: there is no handler.")
            if overlap == "skip":
                raise ConfigError(
                    f'schedule(stream={stream!r}, overlap="skip") is invalid: no handler shows which firings are '
                    "handled. Leave overlap= out, or write @app.schedule(...) above a function."
                )
            declare(
                checked_name("schedule", stream if name is None else name), stream, ["*", *fields_of(content, None)], ""
            )

        def register(handler: Handler) -> Handler:
            if key is not None:
                raise ConfigError(f"{name_of(handler)}: schedule(key=) is invalid without stream=. Leave key= out.")
            if stream is not None:
                raise ConfigError(f"{name_of(handler)}: schedule(stream=) runs no function. Leave stream= out.")
            own = checked_name("schedule", name_of(handler) if name is None else name)
            declare(own, STREAM + own, ["MAXLEN", "~", _KEEP, "*", "name", own], own)
            if tag_of(STREAM + own) == STREAM + own:  # puts the dead-letter stream in the same cluster slot
                options.setdefault("dead", f"{{{STREAM + own}}}:dead")
            return self.subscriber(StreamSub(STREAM + own, group=own), **options)(handler)

        return register


class RecurringSchedules:
    """The recurring schedules stored on an app's server."""

    def __init__(self, line: Callable[[], Line]) -> None:
        self._line = line

    async def put(
        self,
        name: str,
        cron: str | None = None,
        *,
        stream: str,
        content: Any,
        every: float | str | None = None,
        offset: float | str = 0,
        tz: str = "UTC",
        jitter: float | str = 0,
        catch_up: CatchUp = "latest",
        grace: float | str = 60,
        key: str | bytes | float | None = None,
    ) -> None:
        """Publish entries at the times of a cron line or an interval, until the schedule is removed.

        Args:
            name: name of the schedule; it replaces a schedule of the same name.
            cron: as for :meth:`millstream.App.schedule`, like the other options of the timetable.
            stream: key of the stream.
            content: content of the entries.
            every: interval instead of ``cron``.
            offset: shift of the times of ``every``.
            tz: time zone of the cron line.
            jitter: longest delay of a firing, different for each.
            catch_up: firings to make up for after a time in which no worker ran.
            grace: largest delay of a firing with ``catch_up="none"``.
            key: partition key of each entry, if the stream is partitioned.

        Raises:
            ConfigError: an option is invalid, or code declares a schedule of that name.
            UsageError: the stream is partitioned, and the content has no key.
            PayloadError: the content cannot be written as an entry.
        """
        checked_name("put", name)
        checked_stream("put", stream)
        table = timetable.timetable(
            name, cron, every=every, offset=offset, tz=tz, jitter=jitter, catch_up=catch_up, grace=grace
        )
        fields, chosen = fields_of(content, None), None if key is None else key_bytes(key)
        if (layout := await find_layout(self._line(), stream)) is not None:
            key_in(layout, fields, chosen)
        await recurring.put(self._line(), Recurring(name, table, stream, (b"*", *fields), key=chosen))

    async def remove(self, name: str) -> bool:
        """Remove a schedule and its pending firing; return False if there is no such schedule.

        A schedule that the code of a running worker declares comes back within a minute: pause it instead.

        Args:
            name: name of the schedule.
        """
        return await recurring.remove(self._line(), name)

    async def pause(self, name: str) -> bool:
        """Stop the firings until the schedule is resumed; return False if there is no such schedule.

        Args:
            name: name of the schedule.
        """
        return await recurring.pause(self._line(), name, paused=True)

    async def resume(self, name: str) -> bool:
        """Resume a schedule; return False if there is no such schedule.

        Its option ``catch_up`` decides about the missed firings.

        Args:
            name: name of the schedule.
        """
        return await recurring.pause(self._line(), name, paused=False)

    async def list(self) -> list[Recurring]:
        """Return every recurring schedule on the server."""
        return await recurring.listed(self._line())

"""``millstream dead``: dead letters looked at, put back where they came from, removed, exported."""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

import click

from millstream.cli.output import FAILED, Column, Output, Table, exits, output_option
from millstream.clock import parse_time
from millstream.errors import UsageError

if TYPE_CHECKING:
    from millstream.client.line import Line
    from millstream.worker.graveyard import Choice, Grave, Graveyard, Outcome

T = TypeVar("T")
Command = TypeVar("Command", bound=Callable[..., Any])

_WIDE = {"max_content_width": 110}

HELP = """Dead letters: entries that workers gave up on.

They are in <stream>:dead, each with its error, traceback and times. STREAM is the stream or its dead-letter stream: a
name that ends in :dead is taken as it is, and --key names any other. ID is the letter's own id, as `ls` shows it.

\b
Examples:
  millstream dead ls                                       which dead-letter streams there are
  millstream dead ls orders --since 1h                     what died in the last hour
  millstream dead show orders 1763721600000-0              all of one, with traceback and payload
  millstream dead retry orders 1763721600000-0             put one back
  millstream dead retry orders --error timeout --rate 20   put back many, at most 20 a second
  millstream dead rm orders --until 30d --yes              forget what died more than thirty days ago
  millstream dead export orders > dead.jsonl               everything, one JSON object a line

Exit code: 0 done, 1 some or all of it could not be done, 2 the command line cannot be meant so, 130 interrupted.
"""

LS = """List the letters of one dead-letter stream, oldest first; without STREAM, the dead-letter streams themselves.

\b
Examples:
  millstream dead ls
  millstream dead ls orders --reason overdue
  millstream dead ls orders --error KeyError -o jsonl | jq .id
"""

SHOW = """Show one letter whole: fields, error, traceback, times, and its earlier deaths.

\b
Example:
  millstream dead show orders 1763721600000-0
"""

RETRY = """Put entries back on the streams they came from, and remove their letters.

Both happen in one transaction that looks first, so a letter is put back once, whoever else tries. The entry's fields
are unchanged; its history goes with it (in a field _dead.history, which our workers take off before the handler) and
is in the letter again if it dies again. It is a new entry: every group of that stream reads it, not only the one that
gave up.

Name letters by ID, or choose them by options, or say --all.

\b
Examples:
  millstream dead retry orders 1763721600000-0
  millstream dead retry orders --reason error --since 2026-03-01T12:00:00 --yes
  millstream dead retry orders --all --rate 10
"""

RM = """Delete letters for good. It asks first; `millstream dead export` keeps a copy.

\b
Examples:
  millstream dead rm orders 1763721600000-0
  millstream dead rm orders --reason invalid
"""

EXPORT = """Write letters as JSON lines, with everything in them.

Each line has the fields as they are (a list of [name, value], what is not UTF-8 as {"base64": ...}), the error, the
traceback, the times in milliseconds since 1970 and the earlier deaths.

\b
Examples:
  millstream dead export orders > dead.jsonl
  millstream dead export orders --since 1d --to dead.jsonl
"""

_LIST = (
    Column("id"),
    Column("died_ms", "time", "died", rank=5),
    Column("group", rank=2),
    Column("reason", rank=1),
    Column("deliveries", "count", rank=3),
    Column("returned", "count", "put back", rank=4),
    Column("entry", rank=6),
    Column("error", "prose"),
)
_STREAMS = (Column("key"), Column("letters", "count"), Column("first_ms", "time"), Column("last_ms", "time"))
_FACTS = (
    "id",
    "stream",
    "entry",
    "group",
    "consumer",
    "reason",
    "deliveries",
    "error",
    "published_ms",
    "died_ms",
    "returned",
    "traceback",
)
_KINDS = (
    Column("published_ms", "time", "published"),
    Column("died_ms", "time", "died"),
    Column("returned", "count", "put back"),
)
_HISTORY = ("id", "group", "consumer", "deliveries", "reason", "error", "died_ms", "returned_ms")


def _where(command: Command) -> Command:
    """The options that say which dead-letter stream."""
    for option in (
        click.option("--key", metavar="KEY", help="The dead-letter stream, if it is not <stream>:dead."),
        click.option("--url", help="Server. Default: MILLSTREAM_URL, REDIS_URL, redis://127.0.0.1:6379/0."),
    ):
        command = option(command)
    return command


def _choice(command: Command) -> Command:
    """The options that choose among the letters; they come as one ``Choice``."""
    for option in (
        click.option("--until", metavar="TIME", help="Buried before: a time, milliseconds, or 10m (s, m, h, d) ago."),
        click.option("--since", metavar="TIME", help="Buried at this time or later."),
        click.option("--group", help="Given up by this group."),
        click.option("--error", metavar="TEXT", help="With this in the error's text, in any case."),
        click.option("--reason", help="Of this reason: error, nack, reject, invalid, overdue."),
    ):
        command = option(command)
    return command


@click.group(help=HELP, context_settings=_WIDE)
def dead() -> None:
    """See ``HELP``."""


@dead.command(help=LS, context_settings=_WIDE)
@click.argument("stream", required=False)
@_choice
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="Most letters shown.")
@_where
@output_option
def ls(stream: str | None, limit: int, url: str | None, key: str | None, form: str, **chosen: str | None) -> None:
    """See ``LS``."""
    with exits("millstream dead ls"):
        output = Output(form)
        if stream is None and key is None:
            output.table(_streams(_run(url, _overview)))
            return
        found = _run(url, lambda line: _graves(line, stream, key, _chosen(chosen), limit + 1))
        rows = [_row(grave) for grave in found[:limit]]
        output.table(Table("letters", _LIST, rows, empty="No dead letters."))
        if len(found) > limit:
            output.say(f"There are more; --limit {limit * 10} shows more of them.")


@dead.command(help=SHOW, context_settings=_WIDE)
@click.argument("stream")
@click.argument("id", metavar="ID")
@_where
@output_option
def show(stream: str, id: str, url: str | None, key: str | None, form: str) -> None:  # noqa: A002 - click's argument
    """See ``SHOW``."""
    with exits("millstream dead show"):
        found, _ = _run(url, lambda line: _yard(line, stream, key).find([id]))
        if not found:
            raise UsageError(f"there is no letter {id} in {_key(stream, key)}; `millstream dead ls` lists them")
        whole = _whole(found[0])
        pairs, history = whole.pop("fields"), whole.pop("history")
        assert isinstance(pairs, list)
        assert isinstance(history, list)
        fields = Table("fields", (Column("name"), Column("value")), pairs)
        kinds = {"died_ms": "time", "returned_ms": "time"}
        columns = tuple(Column(name, "time" if name in kinds else "text") for name in _HISTORY)
        rows = [[death.get(name) for name in _HISTORY] for death in history]
        deaths = [Table("history", columns, rows)] if rows or form != "table" else []
        Output(form).report(whole, (fields, *deaths), _KINDS)


@dead.command(help=RETRY, context_settings=_WIDE)
@click.argument("stream")
@click.argument("ids", metavar="[ID]...", nargs=-1)
@_choice
@click.option("--all", "everything", is_flag=True, help="All letters of this dead-letter stream.")
@click.option("--rate", type=click.FloatRange(0.1), default=100, show_default=True, help="Most entries a second.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@_where
@output_option
def retry(  # noqa: PLR0917 - click passes every option by name
    stream: str,
    ids: tuple[str, ...],
    everything: bool,
    rate: float,
    yes: bool,
    url: str | None,
    key: str | None,
    form: str,
    **chosen: str | None,
) -> None:
    """See ``RETRY``."""
    with exits("millstream dead retry"):
        output = Output(form)
        wanted = _wanted(url, stream, key, ids, _chosen(chosen), everything)
        if not ids:
            _agree("retry", f"Put back {len(wanted)} entries of {_key(stream, key)}?", len(wanted), yes)
        with output.progress({"retry": "Putting back"}, unit="letters") as tell:
            outcome = _run(
                url,
                lambda line: _yard(line, stream, key).put_back(
                    wanted, rate=rate, told=lambda done: tell("retry", done, len(wanted))
                ),
            )
        _report(output, outcome)
    sys.exit(0 if not outcome.refused and not (ids and outcome.gone) else FAILED)


@dead.command(help=RM, context_settings=_WIDE)
@click.argument("stream")
@click.argument("ids", metavar="[ID]...", nargs=-1)
@_choice
@click.option("--all", "everything", is_flag=True, help="All letters of this dead-letter stream.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@_where
@output_option
def rm(  # noqa: PLR0917 - as above
    stream: str,
    ids: tuple[str, ...],
    everything: bool,
    yes: bool,
    url: str | None,
    key: str | None,
    form: str,
    **chosen: str | None,
) -> None:
    """See ``RM``."""
    with exits("millstream dead rm"):
        wanted = _wanted(url, stream, key, ids, _chosen(chosen), everything)
        _agree("rm", f"Delete {len(wanted)} dead letters of {_key(stream, key)} for good?", len(wanted), yes)
        removed = _run(url, lambda line: _yard(line, stream, key).remove(wanted))
        Output(form).report({"removed": removed, "gone": len(wanted) - removed})
    sys.exit(0 if removed == len(wanted) or not ids else FAILED)


@dead.command(help=EXPORT, context_settings=_WIDE)
@click.argument("stream")
@_choice
@click.option("--to", "file", type=click.Path(path_type=Path), help="A new file; standard output unless given.")
@_where
def export(stream: str, file: Path | None, url: str | None, key: str | None, **chosen: str | None) -> None:
    """See ``EXPORT``."""
    with exits("millstream dead export"):
        choice = _chosen(chosen)
        if file is None:
            _run(url, lambda line: _export(line, stream, key, choice, sys.stdout))
            return
        with file.open("x", encoding="utf-8") as out:
            count = _run(url, lambda line: _export(line, stream, key, choice, out))
        Output().say(f"{count} letters are in {file}.")


def _run(url: str | None, work: "Callable[[Line], Awaitable[T]]") -> T:
    """Do something with a line to the server."""
    from millstream.client.line import open_line  # noqa: PLC0415 - help does not need it
    from millstream.client.url import check_shared, find_url  # noqa: PLC0415 - as above

    async def main() -> T:
        line = open_line(check_shared(find_url(url)))
        try:
            return await work(line)
        finally:
            await line.close()

    return asyncio.run(main())


def _key(stream: str | None, key: str | None) -> str:
    from millstream.client.deadletter import dead_key  # noqa: PLC0415 - as above

    return key or dead_key(stream or "")


def _yard(line: "Line", stream: str | None, key: str | None) -> "Graveyard":
    from millstream.worker.graveyard import Graveyard  # noqa: PLC0415 - as above

    return Graveyard(line.near(_key(stream, key)), _key(stream, key))


def _chosen(options: dict[str, str | None]) -> "Choice":
    from millstream.worker.graveyard import Choice  # noqa: PLC0415 - as above

    now = time.time_ns() // 1_000_000
    since, until = (parse_time(word, now) if word else None for word in (options.get("since"), options.get("until")))
    return Choice(options.get("reason"), options.get("error"), options.get("group"), since, until)


async def _overview(line: "Line") -> list[tuple[str, int, str, str]]:
    from millstream.worker.graveyard import graveyards  # noqa: PLC0415 - as above

    return await graveyards(line)


def _streams(rows: list[tuple[str, int, str, str]]) -> Table:
    shown = [(key, length, _time(first), _time(last)) for key, length, first, last in rows]
    return Table("streams", _STREAMS, shown, empty="No dead-letter streams.")


def _time(entry: str) -> int:
    return int(entry.partition("-")[0])


async def _graves(
    line: "Line", stream: str | None, key: str | None, choice: "Choice", limit: int | None = None
) -> "list[Grave]":
    found: list[Grave] = []
    async with aclosing(_yard(line, stream, key).graves(choice)) as graves:
        async for grave in graves:
            found.append(grave)
            if len(found) == limit:
                break
    return found


def _wanted(
    url: str | None, stream: str, key: str | None, ids: tuple[str, ...], choice: "Choice", everything: bool
) -> list[str]:
    """Ids of the letters that are meant."""
    if ids and (everything or not choice.everything):
        raise UsageError("name letters by ID or choose them by options, not both")
    if ids:
        return list(dict.fromkeys(ids))
    if choice.everything and not everything:
        raise UsageError("which letters? give their IDs, options such as --reason, or --all")
    return [grave.id for grave in _run(url, lambda line: _graves(line, stream, key, choice))]


def _agree(command: str, question: str, count: int, yes: bool) -> None:
    if yes or not count:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"{question} Nobody can be asked here; say --yes to {command}")
    if not click.confirm(question, err=True):
        raise UsageError("nothing was done")


def _row(grave: "Grave") -> tuple[object, ...]:
    letter = grave.letter
    if letter is None:
        return (grave.id, _time(grave.id), None, None, None, None, None, "not a dead letter")
    error = letter.error.partition("\n")[0][:200]
    returned = len(letter.history)
    return (grave.id, letter.died_ms, letter.group, letter.reason, letter.deliveries, returned, letter.id, error)


def _whole(grave: "Grave") -> dict[str, object]:
    """Everything in a letter; of an entry that is none, its fields."""
    letter = grave.letter
    flat = grave.flat if letter is None else letter.fields
    whole: dict[str, object] = dict.fromkeys(_FACTS)
    whole["id"] = grave.id
    if letter is not None:
        whole |= {
            "stream": letter.stream,
            "entry": letter.id,
            "group": letter.group,
            "consumer": letter.consumer,
            "reason": letter.reason,
            "deliveries": letter.deliveries,
            "error": letter.error,
            "published_ms": letter.published_ms,
            "died_ms": letter.died_ms,
            "returned": len(letter.history),
            "traceback": letter.traceback,
        }
    whole["fields"] = [[name, value] for name, value in zip(flat[::2], flat[1::2], strict=True)]
    whole["history"] = [] if letter is None else [dict(death) for death in letter.history]
    return whole


async def _export(line: "Line", stream: str, key: str | None, choice: "Choice", out: IO[str]) -> int:
    count = 0
    names = (*_FACTS, "fields", "history")
    output = Output("jsonl", out)
    async with aclosing(_yard(line, stream, key).graves(choice)) as graves:
        async for grave in graves:
            whole = _whole(grave)
            output.table(Table("letters", [Column(name) for name in names], [[whole[name] for name in names]]))
            count += 1
    return count


def _report(output: Output, outcome: "Outcome") -> None:
    facts = {"returned": len(outcome.returned), "gone": len(outcome.gone), "refused": len(outcome.refused)}
    rows: list[tuple[object, ...]] = [(grave, "returned", stream, entry) for grave, stream, entry in outcome.returned]
    rows += [(grave, "gone", None, None) for grave in outcome.gone]
    rows += [(grave, "refused", None, why) for grave, why in outcome.refused]
    columns = (Column("id"), Column("outcome"), Column("stream"), Column("entry", title="entry, or why not"))
    titles = (Column("returned", title="put back"), Column("gone", title="not there"), Column("refused"))
    output.report(facts, (Table("letters", columns, rows),), titles)

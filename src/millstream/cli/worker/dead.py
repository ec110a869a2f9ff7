"""``millstream dead``: show, retry, remove and export dead letters."""

import sys
from collections.abc import Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import IO, Any, TypeVar, cast

import click

from millstream.cli.changes.options import with_words
from millstream.cli.shared.asking import ask
from millstream.cli.shared.output import Column, Output, Table, exits, output_option, url_option
from millstream.cli.worker.letters import readable, users_part
from millstream.client.dead_letter.admin import DeadLetterStream, LetterFilter, dead_letter_streams, locate
from millstream.client.dead_letter.put_back import StoredLetter
from millstream.client.line import Line
from millstream.ops.letters.changes import FITTING, fitting
from millstream.ops.letters.reading import admin_of, parts_of_letters, place_in_parts
from millstream.ops.parameters import entry_id
from millstream.ops.words import command_words, order, shell_line
from millstream.texts import plural
from millstream.worker.registry.lookup import NotThereError

Command = TypeVar("Command", bound=Callable[..., Any])


_LIST = (
    Column("id"),
    Column("stream", rank=7),
    Column("died_ms", "time", "died", rank=5),
    Column("group", rank=2),
    Column("reason", rank=1),
    Column("deliveries", "count", rank=3),
    Column("returned", "count", "put back", rank=4),
    Column("entry", rank=6),
    Column("error", "prose"),
)
_STREAMS = (
    Column("key"),
    Column("letters", "count"),
    Column("streams", "prose", "letters of", rank=1),
    Column("first_ms", "time", rank=3),
    Column("last_ms", "time", rank=2),
)
_FIELDS = (Column("name"), Column("value", "prose"))
_DEATHS = (
    Column("id"),
    Column("group", rank=2),
    Column("consumer", rank=6),
    Column("deliveries", rank=4),
    Column("reason"),
    Column("error", "prose"),
    Column("died_ms", "time", rank=3),
    Column("returned_ms", "time", rank=5),
)
_TRIES = (Column("at_ms", "time", "failed"), Column("consumer"), Column("error", "prose"))
_FACTS = (
    *("id", "stream", "entry", "group", "consumer", "reason", "deliveries", "error", "published_ms", "died_ms"),
    *("returned", "traceback"),
)
_KINDS = (
    Column("published_ms", "time", "published"),
    Column("died_ms", "time", "died"),
    Column("returned", "count", "put back"),
)


def _where(command: Command) -> Command:
    """Add the options that select the dead-letter stream."""
    key = click.option("--key", metavar="KEY", help="Key of the dead-letter stream. Default: <stream>:dead.")
    return url_option(key(command))


@with_words(*FITTING)
@click.command()
@click.argument("stream", required=False)
@click.option("--limit", type=click.IntRange(1), default=100, help="Maximum number of letters shown.")
@_where
@output_option
def ls(stream: str | None, limit: int, url: str | None, key: str | None, form: str, **chosen: str | None) -> None:
    """List the letters of one dead-letter stream, oldest first; without STREAM, the dead-letter streams themselves.

    The name of a partitioned stream includes the dead-letter streams of all its partitions.

    \b
    Examples:
      millstream dead ls
      millstream dead ls orders --reason overdue
      millstream dead ls orders --error KeyError -o jsonl | jq .id
    """
    with exits("millstream dead ls"):
        output = Output(form)
        if stream is None and key is None:
            output.table(_streams(ask(url, dead_letter_streams)))
            return
        choice, places = _chosen(chosen), places_of(url, stream or "", key)
        found = ask(url, lambda line: _letters(line, places, choice, limit + 1))
        hidden = () if len(places) > 1 else ("stream",)
        output.table(Table("letters", _LIST, [_row(one) for one in found[:limit]], "No dead letters.", hidden))
        if len(found) > limit:
            output.say(f"There are more; use --limit {limit * 10}.")


@click.command()
@click.argument("stream")
@click.argument("id", metavar="ID")
@_where
@output_option
def show(stream: str, id: str, url: str | None, key: str | None, form: str) -> None:  # noqa: A002 - click's argument
    """Show one letter in full: fields, error, traceback, times, and its earlier deaths.

    STREAM is the stream or its dead-letter stream, ID the letter's own id from `ls`.

    \b
    Example:
      millstream dead show orders 1763721600000-0
    """
    with exits("millstream dead show"):
        id = entry_id(id)  # noqa: A001 - click's argument
        place = place_of(url, stream, key, id)
        found, _ = ask(url, lambda line: admin_of(line, place).find([id]))
        if not found:
            lists = shell_line(command_words("dead ls", stream))
            raise NotThereError(f"there is no letter {id} in {place}; `{lists}` lists them")
        output = Output(form)
        _show(output, _whole(found[0]))
        if why := found[0].strange:
            output.say(f"{id} in {place} is {why}")


@with_words(*FITTING)
@click.command()
@click.argument("stream")
@click.option(
    "--to", "file", type=click.Path(path_type=Path), help="New file for the letters. Default: standard output."
)
@_where
def export(stream: str, file: Path | None, url: str | None, key: str | None, **chosen: str | None) -> None:
    """Export the letters of STREAM, or of a dead-letter stream, as JSON lines with all details.

    Each line has the fields as they are (a list of [name, value], or {"base64": ...} if not UTF-8). It also has the
    error, the traceback, the times in milliseconds since 1970 and the earlier deaths.

    \b
    Examples:
      millstream dead export orders > dead.jsonl
      millstream dead export orders --since 1d --to dead.jsonl
    """
    with exits("millstream dead export"):
        choice, places = _chosen(chosen), places_of(url, stream, key)
        if file is None:
            ask(url, lambda line: _export(line, places, choice, sys.stdout))
            return
        try:
            opened = file.open("x", encoding="utf-8")
        except FileExistsError:
            raise FileExistsError(
                f"{file} exists already and is not overwritten. Give another name with --to."
            ) from None
        with opened as out:
            count = ask(url, lambda line: _export(line, places, choice, out))
        Output().say(f"{plural(count, 'letter is', 'letters are')} in {file}.")


def places_of(url: str | None, stream: str, key: str | None) -> tuple[str, ...]:
    """Return the keys of the dead-letter streams: several for a partitioned stream."""

    async def found(line: Line) -> tuple[str, ...]:
        if key is None:
            return await parts_of_letters(line, stream) or (await locate(line, stream),)
        if await line.near(key).calls([("TYPE", key)]) == [b"none"]:
            raise NotThereError(f"there is no stream {key!r} (--key): `millstream dead ls` lists them")
        return (key,)

    return ask(url, found)


def place_of(url: str | None, stream: str, key: str | None, ident: str) -> str:
    """Return the key of the dead-letter stream that has a letter.

    For a stream without partitions, the letter need not exist.
    """
    part = None if key is not None else ask(url, lambda line: place_in_parts(line, stream, ident))
    return part or places_of(url, stream, key)[0]


def _chosen(typed: dict[str, str | None]) -> LetterFilter:
    """Return the filter for letters; without any option, it matches all."""
    texts = {name: text for name, text in typed.items() if text is not None}
    return fitting({word.name: word.value(texts, None) for word in FITTING})


def _streams(places: list[DeadLetterStream]) -> Table:
    rows = [(one.key, one.letters, one.streams, _time(one.first), _time(one.last)) for one in places]
    return Table("streams", _STREAMS, rows, empty="No dead-letter streams.")


def _time(entry: str) -> int:
    """Return the time of a letter in milliseconds since 1970. Its own id has the time at which it was written."""
    return int(entry.partition("-")[0])


async def _letters(line: Line, places: Sequence[str], choice: LetterFilter, limit: int) -> list[StoredLetter]:
    """Return the chosen letters, oldest first, at most ``limit``. Reading stops there."""
    found: list[StoredLetter] = []
    for place in places:
        most = len(found) + limit
        async with aclosing(admin_of(line, place).letters(choice)) as letters:
            async for one in letters:
                found.append(one)
                if len(found) == most:
                    break
    return sorted(found, key=lambda one: order(one.id))[:limit]


def _row(one: StoredLetter) -> dict[str, object]:
    """Return a letter as a table row, with only the first line of its error; ``show`` has the whole."""
    if one.letter is None:
        return dict.fromkeys(column.name for column in _LIST) | {
            "id": one.id, "died_ms": _time(one.id), "error": "not a dead letter"
        }  # fmt: skip
    whole = _whole(one)
    return {**whole, "error": one.letter.error.partition("\n")[0][:200]}


def _whole(one: StoredLetter) -> dict[str, object]:
    """Return all facts of a letter; for an entry that is not a dead letter, its fields."""
    letter = one.letter
    flat = one.flat if letter is None else letter.fields
    whole: dict[str, object] = dict.fromkeys(_FACTS) | {"id": one.id}
    if letter is not None:
        whole = {name: getattr(letter, name, None) for name in _FACTS}
        whole |= {"id": one.id, "entry": letter.id, "returned": len(letter.history)}
    whole["fields"] = [[name, value] for name, value in zip(flat[::2], flat[1::2], strict=True)]
    whole["history"] = [] if letter is None else [dict(death) for death in letter.history]
    whole["tries"] = [] if letter is None else [one._asdict() for one in letter.tries]
    return whole


def _show(output: Output, whole: dict[str, object]) -> None:
    """Show one letter: facts, payload and tables. People see decoded fields, and the traceback of their own code."""
    pairs, history = cast("list[list[bytes]]", whole.pop("fields")), cast("list[dict[str, Any]]", whole.pop("history"))
    failed = Table("tries", _TRIES, [list(one.values()) for one in cast("list[dict[str, Any]]", whole.pop("tries"))])
    headers, payload = readable(pairs)
    opened = Table("headers", _FIELDS, list(headers.items()))
    deaths = Table("history", _DEATHS, [[death.get(column.name) for column in _DEATHS] for death in history])
    tables = [Table("fields", _FIELDS, pairs), opened, failed, deaths]
    if output.form != "table":
        output.report({**whole, "payload": payload}, tables)
        return
    if isinstance(whole["traceback"], str):
        whole["traceback"] = users_part(whole["traceback"])
    if headers or payload is not None:
        whole["payload"] = payload
        tables[0] = Table("fields", _FIELDS, [pair for pair in pairs if pair[0] != b"__data__"])
    output.report(whole, tables, _KINDS)


async def _export(line: Line, places: Sequence[str], choice: LetterFilter, out: IO[str]) -> int:
    """Write letters as they are read, so that memory does not grow with the stream; return their number."""
    count = 0
    output = Output("jsonl", out)
    for place in places:
        async with aclosing(admin_of(line, place).letters(choice)) as letters:
            async for one in letters:
                export_one(output, one)
                count += 1
    return count


def export_one(output: Output, one: StoredLetter) -> None:
    """Write a letter with all its facts."""
    whole = _whole(one)
    output.table(Table("letters", [Column(name) for name in whole], [list(whole.values())]))

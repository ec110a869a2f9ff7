"""``millstream stream add``: add one entry from the command line, or many from a file with one JSON object a line."""

import base64
import binascii
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import IO, Any

import click

from millstream.cli.changes.changing import write_down
from millstream.cli.entries.shown import value_text
from millstream.cli.shared.asking import ask
from millstream.cli.shared.confirm import confirm
from millstream.cli.shared.output import FAILED, Column, Output, Table, exits, show_options
from millstream.client.capabilities import find
from millstream.client.jsontext import fault, parse_record
from millstream.client.line import Command, Line, Reply
from millstream.client.partitions.declared import find_layout
from millstream.client.partitions.layout import is_sealed, key_bytes, logical
from millstream.errors import Disconnected, MillstreamError, UsageError
from millstream.ops.parameters import entry_id
from millstream.ops.payloads.entry import EntryPayload
from millstream.ops.plan import ChangePlan, ChangeRefusedError, TargetMissingError, Undo
from millstream.ops.words import command_words, raw_line
from millstream.texts import in_one_line, plural, said
from millstream.worker.handlers.publish import fields_of, producer_of
from millstream.worker.model.answers import PayloadError

_BATCH = 100  # entries of one round trip
_LONGEST = 64 << 20  # bytes of a line in a file
_SHOWN = 10  # entries shown in a preview
_QUOTED = 40  # characters of an invalid entry in an error
_CUT = 500  # characters of a raw command in a preview

_PREVIEW = (Column("line", "count"), Column("field"), Column("value", "prose"))


class NotAddedError(MillstreamError):
    """The server refused an entry after it had added some; the message has their number.

    What to do: read the last entries of the stream (`millstream stream tail`) before you add the others again.
    """


@click.command()
@click.argument("stream")
@click.argument("fields", metavar="[NAME=VALUE]...", nargs=-1)
@click.option("--json", "text", metavar="OBJECT", help="Entry as a JSON object, stored as an app publishes it.")
@click.option(
    "--from", "file", type=click.Path(allow_dash=True), help="File of JSON objects, one a line; - is standard input."
)
@click.option(
    "--header",
    "headers",
    multiple=True,
    metavar="NAME=VALUE",
    help="Header of the entry, which is then stored in the workers' envelope; repeatable.",
)
@click.option("--id", "ident", default="*", help="Id of the entry; MS-* numbers it within its millisecond.")
@click.option("--no-create", is_flag=True, help="Add only if the stream exists (NOMKSTREAM).")
@click.option("--maxlen", type=click.IntRange(0), help="Trim the stream to about this number of entries.")
@click.option("--minid", metavar="ID", help="Trim entries older than this id, approximately.")
@click.option("--exact", is_flag=True, help="Trim exactly, which costs the server more.")
@click.option("--idempotent", metavar="KEY", help="Add nothing if this key was used before (Redis 8.6).")
@click.option("--idempotent-by", metavar="NAME", help="Use this field of each entry as its --idempotent key.")
@click.option("--key", help="Key that chooses the partition of a partitioned stream.")
@click.option("--dry-run", is_flag=True, help="Read and check all entries, show the first ones, add nothing.")
@show_options
def add(
    stream: str,
    *,
    fields: tuple[str, ...],
    text: str | None,
    file: str | None,
    headers: tuple[str, ...],
    ident: str,
    no_create: bool,
    maxlen: int | None,
    minid: str | None,
    exact: bool,
    idempotent: str | None,
    idempotent_by: str | None,
    key: str | None,
    dry_run: bool,
    url: str | None,
    form: str,
) -> None:
    """Add entries to STREAM: fields as NAME=VALUE, a JSON object, or a file of JSON objects, one a line.

    Values of a JSON object are stored as by an app's publish(): text unchanged, objects and lists as JSON, {"base64":
    "..."} as bytes; null is left out. Reading a file stops at the first invalid line, after the lines before it were
    added: find it with --dry-run first. With --idempotent or --idempotent-by (Redis 8.6) you can run an interrupted
    command again. Nothing is added twice while the server remembers the keys (100 seconds by default).

    A partitioned stream needs --key: all entries go to the partition of that key, and trimming is for it alone.

    \b
    Examples:
      millstream stream add orders item=tea amount=3
      millstream stream add orders --json '{"item": "tea", "user": {"id": 7}}' --header correlation_id=c-1
      millstream stream add orders item=tea customer=c1 --key c1
      millstream stream add orders --from orders.jsonl --idempotent-by order_id
      millstream stream tail orders -n 100 -o jsonl | jq -c .fields | millstream stream add copy --from -
      millstream stream add orders item=tea --no-create --maxlen 100000 --dry-run
    """
    with exits("millstream stream add"), ExitStack() as stack:
        trim = _trimming(maxlen, minid, exact=exact)
        for one in (ident, minid):
            if one is not None and one != "*":
                entry_id(one.removesuffix("-*") if one is ident else one)
        how = AddOptions(stream, ident, no_create, trim, idempotent, idempotent_by, _headers(headers))
        if sum(map(bool, (fields, text is not None, file is not None))) != 1:
            raise UsageError("The fields are missing. Give NAME=VALUE, --json or --from.")
        if file is not None and ident != "*" and not ident.endswith("-*"):
            raise UsageError("--id is for one entry, and --from reads many: leave it out, or use MS-*")
        if idempotent is not None and (file is not None or idempotent_by is not None):
            raise UsageError(
                "--idempotent is for one entry: use --idempotent-by, which reads the key of each entry from a field"
            )
        if fields:
            entries: Iterable[list[bytes]] = [_plain(fields, how.headers)]
        elif text is not None:
            entries = [_entry(text, "--json", how.headers)]
        else:
            entries = _lines(_opened(file or "-", stack), how.headers)
        output = Output(form)
        if key is not None:
            found = key
            how = ask(url, lambda line: _placed(line, how, found))
        if dry_run:
            _preview(output, how, entries)
            return
        confirm(in_one_line(f"Add entries to {stream}?"), "add them", yes=True)
        added = AddedEntries()
        given = (*(("--json", text) if text is not None else ()), *(("--from", file) if file else ()))
        given = (*given, *(("--key", key) if key is not None else ()))
        typed = command_words("stream add", stream, *fields, options=given)

        async def work(line: Line) -> None:
            try:
                await _add(line, how, entries, added)
            finally:  # also runs if an invalid line of the file ended the loop
                await _write_down(line, how, typed, added, output)

        try:
            ask(url, work)
        finally:
            if added.count or file is not None:
                output.report(
                    {"stream": how.stream, "added": added.count, "first_id": added.first, "last_id": added.last}
                )
        if not added.count and file is None:
            raise TargetMissingError(f"nothing was added: there is no stream {stream!r} (--no-create)")
    sys.exit(0 if not added.missing else FAILED)


@dataclass(frozen=True, slots=True)
class AddOptions:
    """Options for adding entries."""

    stream: str  # Key of the stream
    ident: str  # Id of the entries; ``*`` lets the server choose
    no_create: bool  # Add nothing if the stream does not exist
    trim: tuple[str | int, ...]  # Trimming arguments
    idempotent: str | None  # Key by which the server recognises a repetition
    idempotent_by: str | None  # Field whose value is the idempotency key
    headers: dict[str, str] | None  # Headers of the envelope; None for plain fields
    others: tuple[str, ...] = ()  # Partitions that take the entry if the stream is sealed meanwhile

    def command(self, flat: list[bytes]) -> Command:
        """Return the XADD command of an entry."""
        words: list[str | int] = ["NOMKSTREAM"] if self.no_create else []
        key = self.idempotent
        if self.idempotent_by is not None:
            key = _key_of(flat, self.idempotent_by)
        if key is not None:
            words += ["IDMP", producer_of(key), key]
        return ("XADD", self.stream, *words, *self.trim, self.ident, *flat)


@dataclass(slots=True)
class AddedEntries:
    """Entries that the server confirmed."""

    count: int = 0  # Number of entries added
    first: str | None = None  # Id of the first one
    last: str | None = None  # Id of the last one
    missing: int = 0  # Entries not added, since the stream does not exist

    def take(self, reply: object) -> None:
        """Count one successful reply to XADD."""
        if isinstance(reply, bytes):
            self.count += 1
            self.last = reply.decode()
            self.first = self.first or self.last
        else:
            self.missing += 1


async def _placed(line: Line, how: AddOptions, key: str) -> AddOptions:
    """Return the options with the partition of a key instead of the stream."""
    layout = await find_layout(line, how.stream)
    if layout is None:
        raise UsageError(f"--key is invalid: the stream {how.stream!r} is not partitioned. Leave --key out.")
    known = bool(how.idempotent or how.idempotent_by)
    first, *others = layout.places(key_bytes(key), known=known)
    # The stream exists, even if nothing was added to this partition yet
    return replace(how, stream=first, others=tuple(others), no_create=False)


async def _sent(line: Line, how: AddOptions, commands: Sequence[Command]) -> list[Reply]:
    """Return the replies of XADD; an entry that a sealed partition refuses is offered to the next one."""
    answers = list(await line.near(how.stream).calls(commands)) if commands else []
    for place in how.others:
        sealed = [at for at, one in enumerate(answers) if isinstance(one, Exception) and is_sealed(one)]
        again = [("XADD", place, *commands[at][2:]) for at in sealed]
        for at, reply in zip(sealed, await line.near(place).calls(again) if again else (), strict=True):
            answers[at] = reply
    return answers


async def _add(line: Line, how: AddOptions, entries: Iterable[list[bytes]], added: AddedEntries) -> None:
    """Add the entries, several in one round trip."""
    can = await find(line, how.stream) if how.idempotent or how.idempotent_by else None
    if can is not None and not can.idmp and "idmp" not in can.unknown:  # otherwise the server's own error is better
        raise UsageError(
            "--idempotent needs XADD IDMP, which this server does not support (Millstream and Redis 8.6 do)"
        )
    for commands, wrong in _batches(how, entries):
        try:
            answers = await _sent(line, how, commands)
        except Disconnected as error:
            raise Disconnected(_unsure(error, added.count, len(commands)), sent=error.sent) from None
        for reply in answers:
            if not isinstance(reply, Exception):
                added.take(reply)
        if (refused := next((reply for reply in answers if isinstance(reply, Exception)), None)) is not None:
            kind = NotAddedError if added.count else ChangeRefusedError
            reason = await _sealed(line, how.stream) if is_sealed(refused) else ""
            raise kind(f"{how.stream}: {reason or said(refused)}; {_added(added.count)}")
        if wrong is not None:
            raise UsageError(f"{wrong}; {_added(added.count, ' before it')}") from None


async def _sealed(line: Line, stream: str) -> str:
    """The reason and the remedy for a sealed stream that is, or was, part of a partitioned one; else empty."""
    whole = logical(stream) or stream
    layout = await find_layout(line, whole)
    if layout is None:
        return ""
    return (
        f"the stream {whole!r} is partitioned by key, and {stream!r} takes no entries. Name {whole!r} with --key, "
        f"or publish from an app: app.publish({whole!r}, ..., key=...)"
    )


async def _write_down(line: Line, how: AddOptions, typed: Sequence[str], added: AddedEntries, output: Output) -> None:
    """Record the addition in the audit stream: one audit entry for all added entries."""
    if not added.count:
        return
    words = tuple(typed)
    taken = f"{added.first}" if added.count == 1 else f"{added.first} to {added.last}"
    undo = Undo(note=f"XDEL takes out {taken}; they stay pending in groups that received them meanwhile.")
    if why := await write_down(line, ChangePlan("stream add", how.stream, "", words=words, undo=undo), added.count):
        output.say(why)


def _batches(how: AddOptions, entries: Iterable[list[bytes]]) -> Iterator[tuple[list[Command], UsageError | None]]:
    """Yield the commands of each round trip. The last batch has the error of the entry after it, if any."""
    batch: list[Command] = []
    try:
        for flat in entries:
            batch.append(how.command(flat))
            if len(batch) == _BATCH:
                yield batch, None
                batch = []
    except UsageError as error:
        yield batch, error
        return
    yield batch, None


def _added(count: int, where: str = "") -> str:
    return f"{plural(count, 'entry', 'entries')}{where} {'was' if count == 1 else 'were'} added"


def _unsure(error: Disconnected, count: int, batch: int) -> str:
    if not error.sent:
        return f"{error}; {_added(count)}"
    return (
        f"the connection broke ({error}): {_added(count)}; of the {batch} after them it is not known, so "
        "look before you add them again"
    )


def _trimming(maxlen: int | None, minid: str | None, *, exact: bool) -> tuple[str | int, ...]:
    if maxlen is not None and minid is not None:
        raise UsageError("--maxlen and --minid exclude each other: give one of them")
    how = "=" if exact else "~"
    if maxlen is not None:
        return ("MAXLEN", how, maxlen)
    if minid is not None:
        return ("MINID", how, minid)
    if exact:
        raise UsageError("--exact needs --maxlen or --minid: give one of them too")
    return ()


def _headers(given: Sequence[str]) -> dict[str, str] | None:
    return dict(_pair(one, "--header") for one in given) if given else None


def _pair(text: str, what: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise UsageError(f"{what} {text!r}: it must be NAME=VALUE")
    return name, value


def _plain(given: Sequence[str], headers: dict[str, str] | None) -> list[bytes]:
    """Return the typed fields. A name may occur twice, except in an envelope."""
    pairs = [_pair(one, "the field") for one in given]
    if headers is not None:
        return _flat(dict(pairs), headers)
    return [text.encode(errors="surrogateescape") for pair in pairs for text in pair]


def _opened(file: str, stack: ExitStack) -> IO[bytes]:
    return sys.stdin.buffer if file == "-" else stack.enter_context(click.open_file(file, "rb"))


def _lines(file: IO[bytes], headers: dict[str, str] | None) -> Iterator[list[bytes]]:
    """Yield the entries of a file; skip empty lines."""
    number = 0
    while line := file.readline(_LONGEST):
        number += 1
        if line.strip():
            yield _entry(line, f"line {number}", headers)


def _entry(text: str | bytes, where: str, headers: dict[str, str] | None) -> list[bytes]:
    """Return names and values of one JSON object."""
    try:
        found = parse_record(text)
    except ValueError as reason:
        raise _not_an_object(text, where, fault(reason)) from None
    if not isinstance(found, dict):
        raise _not_an_object(text, where, "it is JSON of another kind")
    try:
        return _flat({name: _bytes_in(value) for name, value in found.items()}, headers)
    except MillstreamError as reason:
        raise UsageError(f"{where}: {reason}") from None


def _not_an_object(text: str | bytes, where: str, why: str) -> UsageError:
    shown = text if isinstance(text, str) else text.decode(errors="backslashreplace")
    shown = shown if len(shown) <= _QUOTED else f"{shown[:_QUOTED]}..."
    like = '{"item": "tea"}'
    return UsageError(f"{where} is invalid: {shown!r} is not a JSON object ({why}). Give one such as '{like}'.")


def _flat(content: Mapping[str, Any], headers: dict[str, str] | None) -> list[bytes]:
    try:
        return fields_of(content, headers)
    except PayloadError as reason:
        raise UsageError(str(reason)) from None


def _bytes_in(value: object) -> object:
    """Return the bytes of ``{"base64": "..."}``, Millstream's JSON form of bytes; any other value unchanged."""
    if isinstance(value, dict) and list(value) == ["base64"] and isinstance(value["base64"], str):
        try:
            return base64.b64decode(value["base64"], validate=True)
        except (binascii.Error, ValueError):
            return value
    return value


def _key_of(flat: list[bytes], name: str) -> str:
    found = EntryPayload(list(zip(flat[::2], flat[1::2], strict=True))).at(name)
    if not found or found[0] in {None, ""}:
        raise UsageError(f"--idempotent-by {name}: an entry has no such field")
    return value_text(found[0])


def _preview(output: Output, how: AddOptions, entries: Iterable[list[bytes]]) -> None:
    """Read all entries, and show the first ones."""
    rows: list[tuple[object, ...]] = []
    lines: list[str] = []
    count = 0
    for flat in entries:
        command = how.command(flat)
        count += 1
        if count <= _SHOWN:
            rows += [(count, name, value) for name, value in zip(flat[::2], flat[1::2], strict=True)]
            lines.append(raw_line(command))
    commands: object = "\n".join(value_text(line, _CUT) for line in lines) if output.form == "table" else lines
    output.report(
        {"stream": how.stream, "entries": count, "commands": commands}, [Table("fields", _PREVIEW, rows, empty="")]
    )
    output.say("Nothing was added (--dry-run).")

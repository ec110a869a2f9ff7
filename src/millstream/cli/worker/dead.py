"""``millstream dead``: dead letters looked at, put back where they came from, removed, exported."""

import sys
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar, cast

import click

from millstream.cli.changes.changing import Ask, made, prepared_by, show_only
from millstream.cli.shared.asking import ask
from millstream.cli.shared.confirm import confirm
from millstream.cli.shared.output import FAILED, Column, Output, Table, exits, output_option, url_option
from millstream.cli.shared.printing import in_one_line
from millstream.cli.shared.time_options import TIME_HELP, instant
from millstream.cli.worker.letters import readable, users_part
from millstream.errors import UsageError

if TYPE_CHECKING:
    from millstream.client.dead_letter.put_back import PutBackOutcome, StoredLetter
    from millstream.client.line import Line
    from millstream.console.changes.gather import Counting
    from millstream.console.changes.guard import ChangeOutcome
    from millstream.console.changes.letters.making import ChosenLetters
    from millstream.console.changes.making import Prepared
    from millstream.worker.dead_letter_admin import DeadLetterAdmin, DeadLetterStream, LetterFilter

Command = TypeVar("Command", bound=Callable[..., Any])

_WIDE = {"max_content_width": 110}

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
_OUTCOMES = (Column("id"), Column("outcome"), Column("stream", rank=1), Column("entry", "prose", "entry, or why not"))
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


def _where(command: Command) -> Command:
    """The options that say which dead-letter stream."""
    for option in (
        click.option("--key", metavar="KEY", help="The dead-letter stream, if it is not <stream>:dead."),
        url_option,
    ):
        command = option(command)
    return command


def _choice(command: Command) -> Command:
    """The options that choose among the letters; they come as one ``LetterFilter``."""
    for option in (
        click.option("--until", metavar="TIME", help=f"Written before: {TIME_HELP}."),
        click.option("--since", metavar="TIME", help="Written at this time or later."),
        click.option("--group", help="Given up by this group."),
        click.option("--error", metavar="TEXT", help="With this in the error's text, in any case."),
        click.option("--reason", help="Of this reason: error, nack, reject, invalid, overdue."),
    ):
        command = option(command)
    return command


def _shown_first(command: Command) -> Command:
    """The options of what can be looked at before it is done: ``dry_run`` and ``yes``."""
    for option in (
        click.option("--yes", is_flag=True, help="Do not ask."),
        click.option("--dry-run", is_flag=True, help="Only show what would happen; nothing is changed."),
    ):
        command = option(command)
    return command


@click.group(context_settings=_WIDE)
def dead() -> None:
    """Dead letters: entries that workers gave up on.

    They are in <stream>:dead, or where a subscriber's dead= says, each with its error, traceback and times. STREAM is
    the stream or its dead-letter stream; --key names one that has another name. ID is the letter's own id, as `ls`
    shows it.

    \b
    Examples:
      millstream dead ls                                       which dead-letter streams there are
      millstream dead ls orders --since 1h                     what died in the last hour
      millstream dead show orders 1763721600000-0              all of one, with traceback and payload
      millstream dead retry orders 1763721600000-0             put one back
      millstream dead retry orders --error timeout --rate 20   put back many, at most 20 a second
      millstream dead edit orders 1763721600000-0              correct one in your editor, and put it back
      millstream dead rm orders --until 30d --yes              forget what died more than thirty days ago
      millstream dead export orders > dead.jsonl               everything, one JSON object a line

    Exit code: 0 done, 1 not done or not all, 2 the command line is invalid, 3 no server, 4 nothing of that name,
    5 refused, 130 interrupted.
    """


@dead.command(context_settings=_WIDE)
@click.argument("stream", required=False)
@_choice
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="Most letters shown.")
@_where
@output_option
def ls(stream: str | None, limit: int, url: str | None, key: str | None, form: str, **chosen: str | None) -> None:
    """List the letters of one dead-letter stream, oldest first; without STREAM, the dead-letter streams themselves.

    \b
    Examples:
      millstream dead ls
      millstream dead ls orders --reason overdue
      millstream dead ls orders --error KeyError -o jsonl | jq .id
    """
    with exits("millstream dead ls"):
        output = Output(form)
        if stream is None and key is None:
            output.table(_streams(ask(url, _overview)))
            return
        choice, place = _chosen(chosen), _place(url, stream or "", key)
        found = ask(url, lambda line: _letters(line, place, choice, limit + 1))
        rows = [_row(one) for one in found[:limit]]
        output.table(Table("letters", _LIST, rows, empty="No dead letters."))
        if len(found) > limit:
            output.say(f"There are more; --limit {limit * 10} shows more of them.")


@dead.command(context_settings=_WIDE)
@click.argument("stream")
@click.argument("id", metavar="ID")
@_where
@output_option
def show(stream: str, id: str, url: str | None, key: str | None, form: str) -> None:  # noqa: A002 - click's argument
    """Show one letter whole: fields, error, traceback, times, and its earlier deaths.

    STREAM is the stream or its dead-letter stream, ID the letter's own id, as `ls` shows it.

    \b
    Example:
      millstream dead show orders 1763721600000-0
    """
    from millstream.console.changes.positions import entry_id  # noqa: PLC0415 - help does not need it
    from millstream.worker.registry.lookup import NotThereError  # noqa: PLC0415 - as above

    with exits("millstream dead show"):
        id = entry_id(id)  # noqa: A001 - click's argument
        place = _place(url, stream, key)
        found, _ = ask(url, lambda line: _admin(line, place).find([id]))
        if not found:
            from millstream.console.changes.writing import shell_line  # noqa: PLC0415 - only an error needs it
            from millstream.console.model.names import command_words  # noqa: PLC0415 - as above

            lists = shell_line(command_words("dead ls", stream))
            raise NotThereError(f"there is no letter {id} in {place}; `{lists}` lists them")
        output = Output(form)
        _show(output, _whole(found[0]))
        if why := found[0].strange:
            output.say(f"{id} in {place} is {why}")


@dead.command(context_settings=_WIDE)
@click.argument("stream")
@click.argument("ids", metavar="[ID]...", nargs=-1)
@_choice
@click.option("--all", "everything", is_flag=True, help="All letters of this dead-letter stream.")
@click.option("--all-groups", is_flag=True, help="For every group of the stream, not only the one that gave up.")
@click.option("--rate", type=click.FloatRange(0.1), default=100, show_default=True, help="Most entries a second.")
@_shown_first
@_where
@output_option
def retry(  # noqa: PLR0917 - click passes every option by name
    stream: str,
    ids: tuple[str, ...],
    everything: bool,
    all_groups: bool,
    rate: float,
    dry_run: bool,
    yes: bool,
    url: str | None,
    key: str | None,
    form: str,
    **chosen: str | None,
) -> None:
    """Put entries back on the streams they came from, and remove their letters.

    Both happen in one transaction that looks first, so a letter is put back once, whoever else tries. The entry's
    fields are unchanged; its history goes with it (in a field _dead.history, which our workers take off before the
    handler) and is in the letter again if it dies again. It is a new entry at the stream's end, for the group that gave
    up: workers of other groups acknowledge it and run nothing. With --all-groups every group runs it. Readers that are
    none of our workers, Spark or your own programs, get it either way.

    STREAM is the stream or its dead-letter stream. Name letters by ID, or choose them by options, or say --all: then it
    asks first. Broken off, the same command line goes on with the letters that are left.

    \b
    Examples:
      millstream dead retry orders 1763721600000-0
      millstream dead retry orders --error timeout --dry-run
      millstream dead retry orders --reason error --since 2026-03-01T12:00:00 --yes
      millstream dead retry orders --all --rate 10
    """
    from millstream.client.dead_letter.put_back import PutBackOutcome  # noqa: PLC0415 - help does not need it
    from millstream.console.changes.letters import making  # noqa: PLC0415 - as above
    from millstream.console.model.names import command_words  # noqa: PLC0415 - as above

    with exits("millstream dead retry"):
        output, options, outcome = Output(form), Ask(url, form, dry_run, yes), PutBackOutcome()
        wanted = _wanted(ids, chosen, everything)  # what is invalid is said before a server is asked
        place = _place(url, stream, key)
        flag = ("--all-groups",) if all_groups else ()
        words = command_words("dead retry", place, *ids, options=(*(() if ids else _options(chosen)), *flag))

        async def make(line: "Line", tell: "Counting") -> "Prepared":
            return await making.retry(
                line, place, wanted, words, all_groups=all_groups, rate=rate, outcome=outcome, tell=tell
            )

        found = prepared_by(options, output, make, "letters")
        if dry_run:
            show_only(output, found)
            return
        if found.entries:
            confirm(in_one_line(found.plan.question), "retry", yes=yes or bool(ids))
        try:
            done = made(options, output, found, "letters")
        finally:  # also when interrupted
            _say_unsettled(outcome)
        _report(output, outcome, all_groups)
        _say_audit(output, done)
        _say_none(output, place, found.entries)
    sys.exit(0 if not outcome.refused and not (ids and outcome.gone) else FAILED)


@dead.command(context_settings=_WIDE)
@click.argument("stream")
@click.argument("id", metavar="ID")
@click.option("--from", "file", type=click.Path(allow_dash=True), help="The corrected fields, instead of an editor.")
@click.option("--print", "only_print", is_flag=True, help="Print the fields as they would be edited, and end.")
@click.option("--dry-run", is_flag=True, help="Edit and show the difference; put nothing back.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@_where
@output_option
def edit(  # noqa: PLR0917 - as above
    stream: str,
    id: str,  # noqa: A002 - click's argument
    file: str | None,
    only_print: bool,
    dry_run: bool,
    yes: bool,
    url: str | None,
    key: str | None,
    form: str,
) -> None:
    """Correct the entry of one letter in your editor, put it back for the group that gave up, and remove the letter.

    VISUAL or EDITOR opens its fields as JSON: JSON, MessagePack and the workers' envelope are opened, bytes that are no
    text are {"base64": ...}, and what is not changed stays the bytes it was. Then the difference is shown and it asks.
    It is put back as `retry` does, in one transaction with the letter's removal, and its history says that it was
    edited. If the editor fails, or the entry cannot be put back, the letter stays, and the text is kept in a file.

    STREAM is the stream or its dead-letter stream, ID the letter's own id, as `ls` shows it.

    \b
    Examples:
      millstream dead edit orders 1763721600000-0
      millstream dead edit orders 1763721600000-0 --print | jq '.amount = "7"' > fixed.json
      millstream dead edit orders 1763721600000-0 --from fixed.json --yes
    """
    from millstream.client.dead_letter.put_back import PutBackOutcome  # noqa: PLC0415 - help does not need it
    from millstream.console.changes.letters import making  # noqa: PLC0415 - as above
    from millstream.console.payloads.editing import difference, document_of  # noqa: PLC0415 - as above

    with exits("millstream dead edit"):
        output, outcome = Output(form), PutBackOutcome()
        options, place = Ask(url, form, dry_run, yes), _place(url, stream, key)
        _, before = ask(url, lambda line: making.editable(line, place, id))
        document = document_of(before)
        if only_print:
            sys.stdout.write(document)
            return
        after, kept = _corrected(document, before, file)
        if after == before:
            _forget(kept)
            output.say("Nothing was changed: the letter stays; `millstream dead retry` puts it back as it is.")
            return
        for line in difference(document, document_of(after)):
            output.say(line)
        if dry_run:
            _forget(kept)
            output.say("Nothing was put back (--dry-run).")
            return
        try:
            found = prepared_by(
                options, output, lambda line, _: making.edit(line, place, id, after, outcome=outcome), "letters"
            )
            confirm(in_one_line(found.plan.question), "edit", yes=yes)
            _say_audit(output, made(options, output, found, "letters"))
        finally:  # also when interrupted
            _say_unsettled(outcome)
            if outcome.returned:
                _forget(kept)
            elif kept is not None:
                output.say(f"What you wrote is kept in {kept}; --from takes it.")
        _report(output, outcome, all_groups=False)
    sys.exit(0 if outcome.returned else FAILED)


def _corrected(
    document: str, before: list[tuple[bytes, bytes]], file: str | None
) -> tuple[list[tuple[bytes, bytes]], Path | None]:
    """The fields as a person wants them, and the file of the editor's that they are in.

    Args:
        document: the fields as they are, as JSON.
        before: the fields.
        file: with the corrected document; None for an editor.

    Raises:
        UsageError: the editor failed, or what was written cannot be read.
    """
    from millstream.cli.worker.editor import edited  # noqa: PLC0415 - as above
    from millstream.console.payloads.editing import fields_from  # noqa: PLC0415 - as above

    if file is None:
        return edited(document, lambda text: fields_from(text, before))
    with click.open_file(file, "rb") as given:
        try:
            return fields_from(given.read(), before), None
        except ValueError as reason:
            raise UsageError(f"{file}: {reason}; nothing was done") from None


def _forget(kept: Path | None) -> None:
    if kept is not None:
        kept.unlink(missing_ok=True)


@dead.command(context_settings=_WIDE)
@click.argument("stream")
@click.argument("ids", metavar="[ID]...", nargs=-1)
@_choice
@click.option("--all", "everything", is_flag=True, help="All letters of this dead-letter stream.")
@_shown_first
@_where
@output_option
def rm(  # noqa: PLR0917 - as above
    stream: str,
    ids: tuple[str, ...],
    everything: bool,
    dry_run: bool,
    yes: bool,
    url: str | None,
    key: str | None,
    form: str,
    **chosen: str | None,
) -> None:
    """Delete letters for good. It asks first; `millstream dead export` keeps a copy.

    STREAM is the stream or its dead-letter stream. Name letters by ID, or choose them by options, or say --all.

    \b
    Examples:
      millstream dead rm orders 1763721600000-0
      millstream dead rm orders --reason invalid --dry-run
    """
    from millstream.console.changes.letters import making  # noqa: PLC0415 - as above
    from millstream.console.model.names import command_words  # noqa: PLC0415 - as above

    with exits("millstream dead rm"):
        output, options = Output(form), Ask(url, form, dry_run, yes)
        wanted = _wanted(ids, chosen, everything)  # what is invalid is said before a server is asked
        place = _place(url, stream, key)
        words = command_words("dead rm", place, *ids, options=() if ids else _options(chosen))
        found = prepared_by(
            options, output, lambda line, tell: making.remove(line, place, wanted, words, tell=tell), "letters"
        )
        if dry_run:
            show_only(output, found)
            return
        if found.entries:
            confirm(in_one_line(found.plan.question), "rm", yes=yes)
        done = made(options, output, found, "letters")
        gone = found.entries - done.done
        output.report({"removed": done.done, "gone": gone})
        _say_audit(output, done)
        _say_none(output, place, found.entries)
    sys.exit(0 if not gone or not ids else FAILED)


@dead.command(context_settings=_WIDE)
@click.argument("stream")
@_choice
@click.option("--to", "file", type=click.Path(path_type=Path), help="A new file; standard output unless given.")
@_where
def export(stream: str, file: Path | None, url: str | None, key: str | None, **chosen: str | None) -> None:
    """Write the letters of STREAM, or of a dead-letter stream, as JSON lines, with everything in them.

    Each line has the fields as they are (a list of [name, value], what is not UTF-8 as {"base64": ...}), the error, the
    traceback, the times in milliseconds since 1970 and the earlier deaths.

    \b
    Examples:
      millstream dead export orders > dead.jsonl
      millstream dead export orders --since 1d --to dead.jsonl
    """
    with exits("millstream dead export"):
        choice, place = _chosen(chosen), _place(url, stream, key)
        if file is None:
            ask(url, lambda line: _export(line, place, choice, sys.stdout))
            return
        with file.open("x", encoding="utf-8") as out:
            count = ask(url, lambda line: _export(line, place, choice, out))
        Output().say(f"{count} letters are in {file}.")


def _place(url: str | None, stream: str, key: str | None) -> str:
    """The key of the dead-letter stream."""
    from millstream.worker.dead_letter_admin import locate  # noqa: PLC0415 - as above
    from millstream.worker.registry.lookup import NotThereError  # noqa: PLC0415 - as above

    async def given(line: "Line", key: str) -> str:
        if await line.near(key).calls([("TYPE", key)]) == [b"none"]:
            raise NotThereError(f"there is no stream {key!r} (--key): `millstream dead ls` shows those there are")
        return key

    return ask(url, lambda line: locate(line, stream) if key is None else given(line, key))


def _admin(line: "Line", place: str) -> "DeadLetterAdmin":
    """What reads and changes one dead-letter stream, on the node of a cluster that has it."""
    from millstream.worker.dead_letter_admin import DeadLetterAdmin  # noqa: PLC0415 - as above

    return DeadLetterAdmin(line.near(place), place)


def _chosen(options: dict[str, str | None]) -> "LetterFilter":
    """The options of :func:`_choice` as one filter; without any it fits every letter."""
    from millstream.worker.dead_letter_admin import LetterFilter  # noqa: PLC0415 - as above

    since, until = (instant(f"--{name}", options.get(name)) for name in ("since", "until"))
    return LetterFilter(options.get("reason"), options.get("error"), options.get("group"), since, until)


def _options(chosen: dict[str, str | None]) -> list[str]:
    """The options of :func:`_choice` as they were typed; ``--all`` where there are none."""
    given = [word for name, value in chosen.items() if value is not None for word in (f"--{name}", value)]
    return given or ["--all"]


async def _overview(line: "Line") -> "list[DeadLetterStream]":
    """Which dead-letter streams there are, on all nodes of a cluster."""
    from millstream.worker.dead_letter_admin import dead_letter_streams  # noqa: PLC0415 - as above

    return await dead_letter_streams(line)


def _streams(places: "list[DeadLetterStream]") -> Table:
    rows = [(one.key, one.letters, one.streams, _time(one.first), _time(one.last)) for one in places]
    return Table("streams", _STREAMS, rows, empty="No dead-letter streams.")


def _time(entry: str) -> int:
    """Milliseconds since 1970 of a letter: its own id's, which is when it was written."""
    return int(entry.partition("-")[0])


def _say_audit(output: Output, done: "ChangeOutcome") -> None:
    if done.unaudited:
        output.say(f"The change is not in the audit stream: {done.unaudited}")


async def _letters(line: "Line", place: str, choice: "LetterFilter", limit: int | None = None) -> "list[StoredLetter]":
    """The letters that are chosen, oldest first, at most ``limit``; reading ends there, however many there are."""
    found: list[StoredLetter] = []
    async with aclosing(_admin(line, place).letters(choice)) as letters:
        async for one in letters:
            found.append(one)
            if len(found) == limit:
                break
    return found


def _wanted(ids: tuple[str, ...], chosen: dict[str, str | None], everything: bool) -> "ChosenLetters":
    """Which letters are meant."""
    choice = _chosen(chosen)
    if ids and (everything or not choice.everything):
        raise UsageError("name letters by ID or choose them by options, not both")
    if not ids and choice.everything and not everything:
        raise UsageError("which letters? give their IDs, options such as --reason, or --all")
    return ids or choice


def _say_none(output: Output, place: str, wanted: int) -> None:
    if not wanted:
        output.say(f"No letter of {place} is chosen by these options; `millstream dead ls` takes the same ones.")


def _row(one: "StoredLetter") -> tuple[object, ...]:
    """A letter in the list: the error's first line, since the rest is what ``show`` is for."""
    letter = one.letter
    if letter is None:
        return (one.id, _time(one.id), None, None, None, None, None, "not a dead letter")
    error = letter.error.partition("\n")[0][:200]
    returned = len(letter.history)
    return (one.id, letter.died_ms, letter.group, letter.reason, letter.deliveries, returned, letter.id, error)


def _whole(one: "StoredLetter") -> dict[str, object]:
    """Everything in a letter; of an entry that is no dead letter, its fields."""
    letter = one.letter
    flat = one.flat if letter is None else letter.fields
    whole: dict[str, object] = dict.fromkeys(_FACTS)
    whole["id"] = one.id
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


def _show(output: Output, whole: dict[str, object]) -> None:
    """One letter: facts, payload, and tables. People get the traceback from their own code on, and fields opened."""
    pairs, history = cast("list[list[bytes]]", whole.pop("fields")), cast("list[dict[str, Any]]", whole.pop("history"))
    headers, payload = readable(pairs)
    opened = Table("headers", _FIELDS, list(headers.items()))
    deaths = Table("history", _DEATHS, [[death.get(column.name) for column in _DEATHS] for death in history])
    tables = [Table("fields", _FIELDS, pairs), opened, deaths]
    if output.form != "table":
        output.report({**whole, "payload": payload}, tables)
        return
    if isinstance(whole["traceback"], str):
        whole["traceback"] = users_part(whole["traceback"])
    if headers or payload is not None:
        whole["payload"] = payload
        tables[0] = Table("fields", _FIELDS, [pair for pair in pairs if pair[0] != b"__data__"])
    output.report(whole, [table for table in tables if table.rows], _KINDS)


async def _export(line: "Line", place: str, choice: "LetterFilter", out: IO[str]) -> int:
    """Write letters as they are read, so that memory does not grow with the stream; how many there were."""
    count = 0
    output = Output("jsonl", out)
    async with aclosing(_admin(line, place).letters(choice)) as letters:
        async for one in letters:
            _export_one(output, one)
            count += 1
    return count


def _export_one(output: Output, one: "StoredLetter") -> None:
    whole = _whole(one)
    output.table(Table("letters", [Column(name) for name in whole], [list(whole.values())]))


def _say_unsettled(outcome: "PutBackOutcome") -> None:
    """The letters that may be nowhere but here, on standard error, as ``export`` writes them."""
    if outcome.unsettled:
        output = Output("jsonl", sys.stderr)
        output.say("These may be neither on their streams nor dead letters; look for them before you add them:")
        for one in outcome.unsettled:
            _export_one(output, one)


def _report(output: Output, outcome: "PutBackOutcome", all_groups: bool) -> None:
    """What became of each letter. A stream without the group is a note and no failure: what waits there is not lost."""
    facts: dict[str, object] = {
        "returned": len(outcome.returned),
        "gone": len(outcome.gone),
        "refused": len(outcome.refused),
    }
    facts |= {"groups": "all" if all_groups else "failed"}
    rows: list[tuple[object, ...]] = [(one, "returned", stream, entry) for one, stream, entry in outcome.returned]
    rows += [(one, "gone", None, None) for one in outcome.gone]
    rows += [(one, "refused", None, why) for one, why in outcome.refused]
    titles = (Column("returned", title="put back"), Column("gone", title="not there"), Column("groups", title="for"))
    if output.form == "table":
        facts["groups"] = "every group" if all_groups else "the group that gave up (--all-groups: for every group)"
    output.report(facts, (Table("letters", _OUTCOMES, rows),), titles)
    for stream, group in sorted(outcome.groupless):
        output.say(f"{stream} has no group {group!r} at present: what was put back for it waits until there is one")

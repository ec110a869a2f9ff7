"""``millstream dead retry``, ``edit`` and ``rm``: the confirmation, the editor, and the outcome of each letter."""

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import click

from millstream.cli.changes.changing import Ask, agreed, made, prepared_by
from millstream.cli.changes.commands import TypedChange, command_of
from millstream.cli.shared.asking import ask
from millstream.cli.shared.confirm import confirm
from millstream.cli.shared.output import FAILED, Column, Output, Table
from millstream.cli.worker.dead import export_one, place_of, places_of
from millstream.cli.worker.editor import edited
from millstream.client.dead_letter.letter import SUFFIX
from millstream.client.dead_letter.put_back import PutBackOutcome
from millstream.client.jsontext import fault
from millstream.client.partitions.layout import logical
from millstream.errors import UsageError
from millstream.ops.guard import ChangeOutcome
from millstream.ops.letters import changes as letters
from millstream.ops.letters import reading
from millstream.ops.making import Prepared
from millstream.ops.payloads.editing import Pairs, difference, document_of, fields_from
from millstream.texts import in_one_line

_OUTCOMES = (Column("id"), Column("outcome"), Column("stream", rank=1), Column("entry", "prose", "entry, or why not"))
_MISSING = "not in {}: it was put back, removed or trimmed, or never existed"
_KEY = click.Option(["--key"], metavar="KEY", help="Key of the dead-letter stream. Default: <stream>:dead.")


def _located(typed: TypedChange, options: Ask, key: str | None, **texts: str) -> TypedChange:
    """Return the change with the dead-letter stream in place of the stream, unless the stream is partitioned."""
    stream = typed.texts["key"]
    places = places_of(options.url, stream, key)
    part = key is None and logical(places[0].removesuffix(SUFFIX)) == stream
    place = {} if part or len(places) > 1 else {"key": places[0]}
    return replace(typed, texts={**typed.texts, **place, **texts})


def _retry(typed: TypedChange, options: Ask, key: str | None) -> None:
    output, typed = Output(options.form), _located(typed, options, key)
    named = "ids" in typed.texts
    asking = replace(options, yes=options.yes or named)
    found = agreed(asking, output, typed, "letters", verb="retry", even_nothing=True)
    if found is None:
        return
    outcome = found.letters
    try:
        done = made(options, output, found, "letters")
    finally:  # also runs after an interruption
        _say_unsettled(outcome)
    _report(output, typed.texts["key"], outcome, all_groups="all_groups" in typed.texts)
    _say_audit(output, done)
    _say_none(output, typed.texts, found)
    sys.exit(0 if not outcome.refused and not (named and outcome.gone) else FAILED)


def _remove(typed: TypedChange, options: Ask, key: str | None) -> None:
    output, typed = Output(options.form), _located(typed, options, key)
    found = agreed(options, output, typed, "letters", verb="rm", even_nothing=True)
    if found is None:
        return
    done = made(options, output, found, "letters")
    gone = found.entries - done.done
    output.report({"removed": done.done, "gone": gone})
    if gone:
        output.say(f"A letter counted as gone is {_MISSING.format(typed.texts['key'])}.")
    _say_audit(output, done)
    _say_none(output, typed.texts, found)
    sys.exit(0 if not gone or "ids" not in typed.texts else FAILED)


def _edit(typed: TypedChange, options: Ask, key: str | None, file: str | None, only_print: bool) -> None:
    output, place = Output(options.form), place_of(options.url, typed.texts["key"], key, typed.texts["ids"])
    typed = replace(typed, texts={**typed.texts, "key": place})
    _, before = ask(options.url, lambda line: reading.editable(line, typed.texts["key"], typed.texts["ids"]))
    document = document_of(before)
    if only_print:
        sys.stdout.write(document)
        return
    text, kept = _corrected(document, before, file)
    after = fields_from(text, before)
    if after == before:
        _forget(kept)
        output.say("Nothing was changed: the letter stays; `millstream dead retry` puts it back as it is.")
        return
    for line in difference(document, document_of(after)):
        output.say(line)
    if options.dry_run:
        _forget(kept)
        output.say("Nothing was put back (--dry-run).")
        return
    outcome = PutBackOutcome()
    try:
        typed = replace(typed, texts={**typed.texts, "document": text})
        found = prepared_by(options, output, typed, "letters")
        outcome = found.letters
        confirm(in_one_line(found.plan.question), "edit", yes=options.yes)
        _say_audit(output, made(options, output, found, "letters"))
    finally:  # also runs after an interruption
        _say_unsettled(outcome)
        if outcome.returned:
            _forget(kept)
        elif kept is not None:
            output.say(f"Your text is kept in {kept}; continue with --from.")
    _report(output, typed.texts["key"], outcome, all_groups=False)
    sys.exit(0 if outcome.returned else FAILED)


def _corrected(document: str, before: Pairs, file: str | None) -> tuple[str, Path | None]:
    """Return the corrected document, and the editor's file that contains it."""

    def read(text: str) -> str:
        fields_from(text, before)
        return text

    if file is None:
        return edited(document, read)
    try:
        opened = click.open_file(file, "rb")
    except FileNotFoundError:
        raise FileNotFoundError(f"{file} does not exist. Give the file with the corrected fields to --from.") from None
    with opened as given:
        try:
            return read(given.read().decode("utf-8-sig")), None
        except ValueError as reason:
            raise UsageError(f"{file} is invalid: {fault(reason)}. Nothing was done; correct the file.") from None


def _forget(kept: Path | None) -> None:
    if kept is not None:
        kept.unlink(missing_ok=True)


def _say_audit(output: Output, done: ChangeOutcome) -> None:
    if done.unaudited:
        output.say(f"The change is not in the audit stream: {done.unaudited}")


def _say_none(output: Output, texts: Mapping[str, str], found: Prepared) -> None:
    if not found.entries:
        output.say(f"No letter of {texts['key']} is chosen by these options; `millstream dead ls` takes the same ones.")


def _say_unsettled(outcome: PutBackOutcome) -> None:
    """Print the letters that may exist nowhere else to standard error, in the format of ``export``."""
    if outcome.unsettled:
        output = Output("jsonl", sys.stderr)
        output.say("These may be neither on their streams nor dead letters; look for them before you add them:")
        for one in outcome.unsettled:
            export_one(output, one)


def _report(output: Output, key: str, outcome: PutBackOutcome, *, all_groups: bool) -> None:
    """Report the outcome of each letter.

    A stream without the group is a note, since the entries wait there and are not lost.
    """
    facts: dict[str, object] = {
        "returned": len(outcome.returned),
        "gone": len(outcome.gone),
        "refused": len(outcome.refused),
    }
    facts |= {"groups": "all" if all_groups else "failed"}
    rows: list[tuple[object, ...]] = [(one, "returned", stream, entry) for one, stream, entry in outcome.returned]
    rows += [(one, "gone", None, _MISSING.format(key)) for one in outcome.gone]
    rows += [(one, "refused", None, why) for one, why in outcome.refused]
    titles = (Column("returned", title="put back"), Column("gone", title="not there"), Column("groups", title="for"))
    if output.form == "table":
        facts["groups"] = "every group" if all_groups else "the group that gave up (--all-groups: for every group)"
    output.report(facts, (Table("letters", _OUTCOMES, rows, empty=""),), titles)
    for stream, group in sorted(outcome.groupless):
        output.say(f"{stream} has no group {group!r} at present: the entries put back for it wait until it exists")


COMMANDS = {
    "retry": command_of(letters.retry, _retry, more=(_KEY,)),
    "edit": command_of(
        letters.edit,
        _edit,
        more=(
            click.Option(
                ["--from", "file"],
                type=click.Path(allow_dash=True),
                help="File with the corrected fields, instead of an editor.",
            ),
            click.Option(["--print", "only_print"], is_flag=True, help="Print the editable fields as JSON, and exit."),
            _KEY,
        ),
    ),
    "rm": command_of(letters.remove, _remove, more=(_KEY,)),
}

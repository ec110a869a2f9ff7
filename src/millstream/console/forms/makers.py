"""The plan of each change from the words of its form, which are those of the shell."""

import shlex
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

from millstream import times
from millstream.client.line import Line
from millstream.console.changes import making
from millstream.console.changes.gather import Chosen, Counting
from millstream.console.changes.letters import making as letters
from millstream.console.changes.letters import setting_aside
from millstream.console.changes.letters.making import ChosenLetters
from millstream.console.changes.making import Prepared
from millstream.console.changes.plan import ChangeRefusedError
from millstream.console.changes.positions import StreamPlace, entry_id, place_of
from millstream.console.changes.workers import making as workers
from millstream.console.model.names import command_words
from millstream.console.model.pending import PendingChoice
from millstream.console.payloads.editing import fields_from
from millstream.errors import UsageError
from millstream.worker.dead_letter_admin import LetterFilter
from millstream.worker.model.pause import HandlerPause

FormWords: TypeAlias = Mapping[str, str]
"""``do`` is the action's name, ``key`` and ``group`` say of what; the rest is named in ``fields.FIELDS``."""

Maker: TypeAlias = Callable[[Line, FormWords, Counting | None], Awaitable[Prepared]]

_IDLE = "1h"  # of consumers that are removed, unless the form says otherwise


def choice_of(words: FormWords) -> PendingChoice:
    """Which pending entries ``consumer``, ``idle``, ``deliveries``, ``unowned`` and ``gone`` mean; without any, all.

    Raises:
        UsageError: one of them is no length of time, or no number.
    """
    idle, deliveries = words.get("idle", "").strip(), words.get("deliveries", "").strip()
    try:
        idle_ms = times.span(idle) if idle else None
    except ValueError as reason:
        raise UsageError(f"idle {idle!r}: {reason}") from None
    if deliveries and not (deliveries.isascii() and deliveries.isdigit() and len(deliveries) < 19):
        raise UsageError(f"deliveries {deliveries!r} is no number")
    number = int(deliveries) if deliveries else None
    return PendingChoice(words.get("consumer") or None, idle_ms, number, "unowned" in words, "gone" in words)


def choice_options(words: FormWords) -> list[str]:
    """The same as options of the shell."""
    found = ["--consumer", words["consumer"]] if words.get("consumer") else []
    for name in ("idle", "deliveries"):
        found += [f"--{name}", text] if (text := words.get(name, "").strip()) else []
    return found + [f"--{name}" for name in ("unowned", "gone") if name in words]


def _word(words: FormWords, name: str) -> str:
    found = words.get(name)
    if found is None:
        raise UsageError(f"it needs {name}")
    return found


def _where(words: FormWords) -> tuple[str, str]:
    return _word(words, "key"), _word(words, "group")


def _place(words: FormWords, name: str) -> StreamPlace:
    if like := words.get("like"):
        return StreamPlace("like", group=like)
    return read_place(_word(words, name))


def read_place(text: str) -> StreamPlace:
    """A place in a stream as somebody wrote it.

    Raises:
        ChangeRefusedError: it is not valid.
    """
    try:
        return place_of(text, time.time_ns() // 1_000_000)
    except UsageError as error:
        raise ChangeRefusedError(str(error)) from None


def _ids(words: FormWords) -> tuple[str, ...]:
    given = words.get("ids", "").replace(",", " ").split()
    return tuple(dict.fromkeys(entry_id(each) for each in given))


def _span(words: FormWords, name: str, usual: str = "") -> int:
    text = words.get(name, "").strip() or usual
    try:
        return times.span(text)
    except ValueError as reason:
        raise UsageError(f"{name} {text!r}: {reason}") from None


def _chosen(words: FormWords, verb: str, *more: str) -> tuple[Chosen, tuple[str, ...]]:
    """Which pending entries are meant, and the command line of that, with more options."""
    does = f"pending {verb}"
    choice = choice_of(words)
    if ids := _ids(words):
        if choice.gone:
            raise UsageError("name ids, or say that all that is gone is meant, not both")
        return ids, command_words(does, *_where(words), *ids, options=more)
    if choice == PendingChoice() and "all" not in words:
        raise UsageError(
            "which entries? Name ids, or a consumer, or how long they are idle, or that they are gone, or say all"
        )
    options = choice_options(words) or ["--all"]
    return choice, command_words(does, *_where(words), options=(*options, *more))


async def _rewind(line: Line, words: FormWords, tell: Counting | None) -> Prepared:
    place, anyway = _place(words, "to"), "even_if_moved" in words
    return await making.rewind(line, *_where(words), place, tell, even_if_moved=anyway)


async def _create(line: Line, words: FormWords, _: Counting | None) -> Prepared:
    return await making.create(line, *_where(words), _place(words, "at"))


async def _remove_group(line: Line, words: FormWords, _: Counting | None) -> Prepared:
    return await making.remove_group(line, *_where(words))


async def _remove_consumer(line: Line, words: FormWords, _: Counting | None) -> Prepared:
    return await making.remove_consumer(line, *_where(words), _word(words, "consumer"), words.get("claim_to") or None)


async def _acknowledge(line: Line, words: FormWords, tell: Counting | None) -> Prepared:
    chosen, said = _chosen(words, "ack")
    return await making.acknowledge(line, *_where(words), chosen, said, tell=tell)


async def _claim(line: Line, words: FormWords, tell: Counting | None) -> Prepared:
    to = _word(words, "to")
    chosen, said = _chosen(words, "claim", "--to", to)
    if not to:
        raise UsageError("to whom? Name a consumer")
    return await making.claim(line, *_where(words), chosen, said, consumer=to, tell=tell)


async def _nack(line: Line, words: FormWords, tell: Counting | None) -> Prepared:
    chosen, said = _chosen(words, "nack")
    return await making.nack(line, *_where(words), chosen, said, mode="fail", tell=tell)


async def _set_aside(line: Line, words: FormWords, tell: Counting | None) -> Prepared:
    reason, to = words.get("reason", "").strip(), words.get("to", "")
    more = [word for name, value in (("--reason", reason), ("--to", to)) if value for word in (name, value)]
    chosen, said = _chosen(words, "dead", *more)
    death = setting_aside.Death(_at_ms(words), reason or setting_aside.REASON, to)
    return await setting_aside.set_aside(line, *_where(words), chosen, said, death, tell=tell)


def _at_ms(words: FormWords) -> int:
    at_ms = _word(words, "at_ms")
    if not (at_ms.isascii() and at_ms.isdigit() and len(at_ms) < 16):
        raise UsageError(f"at_ms {at_ms!r} is no time")
    return int(at_ms)


async def _add(line: Line, words: FormWords, _: Counting | None) -> Prepared:
    key, text = _word(words, "key"), _word(words, "fields").strip()
    if text.startswith("{"):
        said = command_words("stream add", key, options=("--json", text))
        try:
            fields = fields_from(text, ())
        except ValueError as reason:
            raise UsageError(f"fields: {reason}") from None
    else:
        given = _words_of(text)
        said = command_words("stream add", key, *given)
        pairs = [word.partition("=") for word in given]
        if not pairs or not all(name and sign for name, sign, _ in pairs):
            raise UsageError("which fields? Give NAME=VALUE, with quotes around what has spaces, or a JSON object")
        fields = [(_raw(name), _raw(value)) for name, _sign, value in pairs]
    return await making.add_entry(line, key, fields, said)


def _raw(text: str) -> bytes:
    """The very bytes of a word that may be none of UTF-8."""
    return text.encode(errors="surrogateescape")


def _words_of(text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as reason:  # a quote that is not closed
        raise UsageError(f"fields {text[:40]!r}: {reason}") from None


async def _trim(line: Line, words: FormWords, tell: Counting | None) -> Prepared:
    minid, maxlen = words.get("minid", "").strip(), words.get("maxlen", "").strip()
    if bool(minid) == bool(maxlen):
        raise UsageError("what goes? Give one of: so many that stay, the oldest id that stays, a time")
    if maxlen and not (maxlen.isascii() and maxlen.isdigit() and len(maxlen) < 19):
        raise UsageError(f"{maxlen!r} is no number of entries")
    oldest = entry_id(minid) if minid else None
    approximately = "approx" in words
    return await making.trim_stream(
        line, _word(words, "key"), minid=oldest, maxlen=int(maxlen or 0), approximately=approximately, tell=tell
    )


async def _remove_stream(line: Line, words: FormWords, _: Counting | None) -> Prepared:
    return await making.remove_stream(line, _word(words, "key"))


async def _undo(line: Line, words: FormWords, _: Counting | None) -> Prepared:
    return await making.undo(line, _word(words, "change"))


def _letters(words: FormWords) -> tuple[ChosenLetters, tuple[str, ...]]:
    """Which dead letters are meant, and the same as words of the shell."""
    if ids := _ids(words):
        return ids, ids
    given = {name: words.get(name, "").strip() for name in ("since", "until")}
    given |= {name: words.get(name, "") for name in ("reason", "error", "group")}
    if not any(value for name, value in given.items() if name != "until") and "all" not in words:
        raise UsageError("which letters? Tick some, or choose by reason, error, group or time, or say all")
    since, until = (int(given[name]) if given[name] else None for name in ("since", "until"))
    choice = LetterFilter(given["reason"] or None, given["error"] or None, given["group"] or None, since, until)
    said = [word for name, value in given.items() if value for word in (f"--{name}", value)]
    return choice, tuple(said or ["--all"])


async def _retry(line: Line, words: FormWords, tell: Counting | None) -> Prepared:
    key, (chosen, said) = _word(words, "key"), _letters(words)
    rate, all_groups = _rate(words.get("rate", "")), "all_groups" in words
    more = (*(("--all-groups",) if all_groups else ()), *(() if rate == letters.RATE else ("--rate", f"{rate:g}")))
    ids, options = (said, more) if isinstance(chosen, tuple) else ((), (*said, *more))
    return await letters.retry(
        line,
        key,
        chosen,
        command_words("dead retry", key, *ids, options=options),
        all_groups=all_groups,
        rate=rate,
        tell=tell,
    )


def _rate(text: str) -> float:
    try:
        rate = float(text.strip() or letters.RATE)
    except ValueError:
        rate = 0.0
    if not 0.1 <= rate <= 1e6:
        raise UsageError(f"rate {text!r}: it is entries a second, 0.1 or more")
    return rate


async def _edit(line: Line, words: FormWords, _: Counting | None) -> Prepared:
    key, ident = _word(words, "key"), entry_id(_word(words, "ids"))
    before = (await letters.editable(line, key, ident))[1]
    try:
        fields = fields_from(_word(words, "document"), before)
    except ValueError as reason:
        raise UsageError(f"what was written cannot be read: {reason}") from None
    return await letters.edit(line, key, ident, fields)


async def _remove_letters(line: Line, words: FormWords, tell: Counting | None) -> Prepared:
    key, (chosen, said) = _word(words, "key"), _letters(words)
    ids, options = (said, ()) if isinstance(chosen, tuple) else ((), said)
    return await letters.remove(line, key, chosen, command_words("dead rm", key, *ids, options=options), tell=tell)


async def _order(line: Line, words: FormWords, _: Counting | None) -> Prepared:
    named = words.get("worker", "")
    return await workers.order(line, words["do"], (named,) if named else (), everyone="all" in words)


async def _pause(line: Line, words: FormWords, _: Counting | None) -> Prepared:
    reason = _word(words, "reason").strip()
    if not reason:
        raise UsageError("why? A reason is for whoever looks later")
    new = HandlerPause(_word(words, "key"), _word(words, "group"), reason, _word(words, "by"), _at_ms(words))
    return await workers.pause(line, new)


async def _resume(line: Line, words: FormWords, tell: Counting | None) -> Prepared:
    if "group" in words:
        return await workers.resume_group(line, _word(words, "key"), _word(words, "group"))
    return await _order(line, words, tell)


async def _reap(line: Line, words: FormWords, _: Counting | None) -> Prepared:
    key, group = _word(words, "key"), words.get("group") or None
    idle = words.get("idle", "").strip() or _IDLE
    line_words = command_words("worker reap", key, *(() if group is None else (group,)), options=("--idle", idle))
    return await workers.reap(line, key, group, line_words, idle_ms=_span(words, "idle", _IDLE))


MAKERS: Mapping[str, Maker] = {
    "group rewind": _rewind,
    "group create": _create,
    "group rm": _remove_group,
    "consumer rm": _remove_consumer,
    "pending ack": _acknowledge,
    "pending claim": _claim,
    "pending nack": _nack,
    "pending dead": _set_aside,
    "stream add": _add,
    "stream trim": _trim,
    "stream rm": _remove_stream,
    "audit undo": _undo,
    "dead retry": _retry,
    "dead edit": _edit,
    "dead rm": _remove_letters,
    "worker quiet": _order,
    "worker drain": _order,
    "worker stop": _order,
    "worker pause": _pause,
    "worker resume": _resume,
    "worker reap": _reap,
}
"""Action -> what plans it from the words of a form."""

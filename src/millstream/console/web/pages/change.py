"""A change: its preview, and, where the console may, the change itself. The words are those of the shell.

The preview is made of what the server has, and forgotten. Who confirms it sends its digest back; the plan is made anew,
and where it is another one by now, nothing is done but to show that one. The server looks at the facts once more in the
step that acts (``console/changes``).
"""

import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, TypeAlias

from millstream import times
from millstream.client.line import Line
from millstream.console.changes import making
from millstream.console.changes.actions import ACTIONS, BY_NAME, Action
from millstream.console.changes.audit import Actor, undo_line
from millstream.console.changes.guard import ChangeOutcome
from millstream.console.changes.plan import ChangePlan, ChangeRefusedError, joined
from millstream.console.changes.positions import StreamPlace, entry_id, place_of
from millstream.console.changes.rights import rights_on
from millstream.console.changes.writing import raw_line
from millstream.console.model.pending import PendingChoice
from millstream.console.web.facts import Facts
from millstream.console.web.page import Asked, NoPageError, WebPage
from millstream.console.web.pages.common import command_line
from millstream.console.web.words import brief
from millstream.errors import UsageError

_SHOWN = 20  # raw commands, and entries that were left alone

Maker: TypeAlias = Callable[[Line, Asked], Awaitable[making.Prepared]]


async def change_page(asked: Asked) -> WebPage:
    """The preview of a change.

    Raises:
        MillstreamError: there is no such change, a word is wrong, the user may not, the server does not answer.
    """
    action = _action(asked)
    asked = replace(asked, words=_settled(asked))
    reading = await asked.watch.read(("change", tuple(sorted(asked.words.items()))), lambda line: _made(line, asked))
    return _preview(asked, action, reading.value, at_ms=reading.at_ms)


async def make_change(asked: Asked) -> WebPage:
    """Make the change that was previewed; or its preview again, where it would be another one by now.

    Raises:
        MillstreamError: as for the preview, and where the console is read-only.
    """
    action = _action(asked)
    if not asked.settings.allow_changes:
        raise ChangeRefusedError("the console is read-only: start it with --allow-changes, or use the shell")
    line = asked.watch.line
    prepared = await _made(line, asked)
    agreed = asked.words.get("digest", "")
    if prepared.nothing or (agreed != prepared.plan.digest and "anyway" not in asked.words):
        return _preview(asked, action, prepared, at_ms=_now(), moved=True)
    actor = Actor(asked.user or "somebody at the console", asked.peer, "console")
    outcome = await making.carry_out(line, prepared, actor, secrets.token_hex(6))
    asked.watch.changed()
    return _result(asked, action, prepared.plan, outcome)


async def closed_actions(asked: Asked, key: str) -> dict[str, str]:
    """Action -> why it is not open: the console is read-only, or the server's user may not.

    Args:
        asked: for whom.
        key: of the stream.

    Raises:
        Disconnected: the server does not answer.
    """
    if not asked.settings.allow_changes:
        return {action.name: "the console is read-only: start it with --allow-changes" for action in ACTIONS}
    return (await asked.watch.read(("rights", key), lambda line: rights_on(line, key))).value.closed()


def _action(asked: Asked) -> Action:
    found = BY_NAME.get(asked.word("do"))
    if found is None or found.name not in MAKERS:
        raise NoPageError(f"the console makes no change {brief(asked.words['do'])!r}; these: {', '.join(MAKERS)}")
    return found


async def _made(line: Line, asked: Asked) -> making.Prepared:
    try:
        return await MAKERS[asked.words["do"]](line, asked)
    except UsageError as error:  # a word of the form
        raise ChangeRefusedError(str(error)) from None


def _place(asked: Asked, name: str) -> StreamPlace:
    if like := asked.words.get("like"):
        return StreamPlace("like", group=like)
    return _read_place(asked.word(name))


def _read_place(text: str) -> StreamPlace:
    try:
        return place_of(text, _now())
    except UsageError as error:
        raise ChangeRefusedError(str(error)) from None


def _chosen(asked: Asked) -> tuple[PendingChoice | tuple[str, ...], tuple[str, ...]]:
    """Which pending entries are meant, and the same as words of the shell."""
    words = asked.words
    ids = tuple(entry_id(each) for each in words.get("ids", "").replace(",", " ").split())
    where = (words["key"], words["group"])
    if ids:
        return ids, (*where, *ids)
    idle, deliveries = words.get("idle", "").strip(), words.get("deliveries", "").strip()
    try:
        choice = PendingChoice(
            words.get("consumer") or None,
            times.span(idle) if idle else None,
            int(deliveries) if deliveries else None,
            "unowned" in words,
        )
    except ValueError as reason:
        raise UsageError(f"idle {idle!r}, deliveries {deliveries!r}: {reason}") from None
    if choice == PendingChoice() and "all" not in words:
        raise UsageError("which entries? Name ids, or a consumer, or how long they are idle, or say all")
    said = ["--consumer", choice.consumer] if choice.consumer is not None else []
    said += ["--idle", idle] if idle else []
    said += ["--deliveries", deliveries] if deliveries else []
    said += ["--unowned"] if choice.unowned else []
    return choice, (*where, *(said or ["--all"]))


async def _rewind(line: Line, asked: Asked) -> making.Prepared:
    return await making.rewind(line, asked.word("key"), asked.word("group"), _place(asked, "to"))


async def _create(line: Line, asked: Asked) -> making.Prepared:
    return await making.create(line, asked.word("key"), asked.word("group"), _place(asked, "at"))


async def _remove_group(line: Line, asked: Asked) -> making.Prepared:
    return await making.remove_group(line, asked.word("key"), asked.word("group"))


async def _remove_consumer(line: Line, asked: Asked) -> making.Prepared:
    where = (asked.word("key"), asked.word("group"), asked.word("consumer"))
    return await making.remove_consumer(line, *where, asked.words.get("claim_to") or None)


async def _acknowledge(line: Line, asked: Asked) -> making.Prepared:
    chosen, words = _chosen(asked)
    line_words = ("millstream", "pending", "ack", *words)
    return await making.acknowledge(line, asked.word("key"), asked.word("group"), chosen, line_words)


async def _claim(line: Line, asked: Asked) -> making.Prepared:
    chosen, words = _chosen(asked)
    to = asked.word("to")
    if not to:
        raise UsageError("to whom? Name a consumer")
    line_words = ("millstream", "pending", "claim", *words, "--to", to)
    return await making.claim(line, asked.word("key"), asked.word("group"), chosen, line_words, consumer=to)


async def _nack(line: Line, asked: Asked) -> making.Prepared:
    chosen, words = _chosen(asked)
    line_words = ("millstream", "pending", "nack", *words)
    return await making.nack(line, asked.word("key"), asked.word("group"), chosen, line_words, mode="fail")


async def _remove_stream(line: Line, asked: Asked) -> making.Prepared:
    return await making.remove_stream(line, asked.word("key"))


async def _undo(line: Line, asked: Asked) -> making.Prepared:
    return await making.undo(line, asked.word("change"))


MAKERS: dict[str, Maker] = {
    "group rewind": _rewind,
    "group create": _create,
    "group rm": _remove_group,
    "consumer rm": _remove_consumer,
    "pending ack": _acknowledge,
    "pending claim": _claim,
    "pending nack": _nack,
    "stream rm": _remove_stream,
    "audit undo": _undo,
}
"""Action -> what plans it from the words of a form."""


def _preview(asked: Asked, action: Action, prepared: making.Prepared, *, at_ms: int, moved: bool = False) -> WebPage:
    """The page that shows what would happen.

    Args:
        asked: for whom.
        action: the change.
        prepared: its plan.
        at_ms: when the server had answered.
        moved: it was confirmed, and is another one by now.
    """
    plan = prepared.plan
    view = {
        **_view(asked, action, plan),
        "nothing": prepared.nothing,
        "moved": moved,
        "form": [(name, value) for name, value in asked.words.items() if name not in {"digest", "anyway", "server"}],
        "digest": plan.digest,
        "open": asked.settings.allow_changes,
        "undo": undo_line(plan, "CHANGE"),
        "outcome": None,
    }
    facts: Facts = {"action": action.name, "applied": False, "digest": plan.digest, **_facts(plan)}
    return WebPage("change", action.name, facts, view, [command_line(asked, *plan.words[1:])], at_ms=at_ms, live=False)


def _settled(asked: Asked) -> dict[str, str]:
    """The words of the form; a time that is counted from now is the moment it stood for."""
    words = dict(asked.words)
    for name in ("to", "at"):
        if name in words and words["do"] in {"group rewind", "group create"}:
            place = _read_place(words[name])
            words[name] = str(place.ms) if place.kind == "time" else words[name]
    return words


def _result(asked: Asked, action: Action, plan: ChangePlan, outcome: ChangeOutcome) -> WebPage:
    """The page that says what became of a change."""
    left = [result for result in outcome.results if result.became not in {"done", "late"}]
    facts: Facts = {
        "action": action.name,
        "applied": True,
        "done": outcome.done,
        "left": len(left),
        "change": outcome.change,
        "audit": list(outcome.audit),
        "unaudited": outcome.unaudited or None,
        **_facts(plan),
    }
    view = {
        **_view(asked, action, plan),
        "outcome": outcome,
        "left": left[:_SHOWN],
        "undo": undo_line(plan, outcome.change) if outcome.done else "",
        "by_audit": plan.undo.by_audit,
    }
    status = 200 if outcome.whole else 409
    return WebPage(
        "change",
        action.name,
        facts,
        view,
        [command_line(asked, *plan.words[1:])],
        at_ms=_now(),
        live=False,
        status=status,
    )


def _view(asked: Asked, action: Action, plan: ChangePlan) -> dict[str, Any]:
    """What the page shows of a plan, before and after."""
    return {
        "action": action,
        "plan": plan,
        "raw": [brief(raw_line(command), 400) for command in plan.commands[:_SHOWN]],
        "raw_more": max(len(plan.commands) - _SHOWN, 0),
        "back": asked.link("/group", key=plan.stream, group=plan.group)
        if plan.group and action.name != "group rm"
        else asked.link("/stream", key=plan.stream)
        if plan.stream and action.name != "stream rm"
        else asked.link("/"),
    }


def _facts(plan: ChangePlan) -> Facts:
    return {
        "stream": plan.stream,
        "group": plan.group or None,
        "question": plan.question,
        "before_after": [{"fact": row.fact, "before": row.before, "after": row.after} for row in plan.table],
        "notes": list(plan.notes),
        "raw": [raw_line(command) for command in plan.commands[:_SHOWN]],
        "undo_raw": [raw_line(command) for command in joined(plan.undo.commands)[:_SHOWN]],
        "undo_note": plan.undo.note or None,
    }


def _now() -> int:
    return time.time_ns() // 1_000_000

"""Problems that need a person, as a page shows them: with a link, evidence and the command that helps."""

from collections.abc import Sequence
from dataclasses import dataclass

from millstream.console.changes.actions import form_of
from millstream.console.changes.writing import raw_line, shell_line
from millstream.console.model.advice import Advice, Case
from millstream.console.model.facts.findings import advice_on, by_kind, evidence_text, place_of
from millstream.console.web.page import Asked


@dataclass(frozen=True, slots=True)
class ShownAdvice:
    """A finding as a page shows it."""

    advice: Advice  # The finding
    href: str  # The page it is about
    place: str  # Its group and stream, in words
    evidence: str  # The facts that say so, in words
    remedy: str  # The command line that helps; empty where there is none
    raw: str  # The command of the server; empty where there is none, or a command line
    form: str = ""  # Address of the preview of the remedy; empty where that is not a change, or the console makes none


def findings(asked: Asked, found: Sequence[Case], besides: Sequence[Advice] = ()) -> list[ShownAdvice]:
    """The findings about them, the most important first."""
    return [_finding(asked, advice) for advice in advice_on(found, besides)]


def _finding(asked: Asked, advice: Advice) -> ShownAdvice:
    remedy = "" if advice.remedy is None else shell_line(asked.watch.server.command_line(*advice.remedy[1:]))
    raw = "" if remedy or not advice.raw else raw_line(advice.raw[0])
    change = form_of(advice.remedy) if advice.remedy is not None and asked.settings.allow_changes else None
    form = "" if change is None else asked.link("/change", **change)
    return ShownAdvice(advice, _href(asked, advice), place_of(advice), evidence_text(advice), remedy, raw, form)


def _href(asked: Asked, advice: Advice) -> str:
    """The page that a finding is about."""
    if advice.query is not None:
        return asked.link("/query", id=advice.query[0])
    if advice.server is not None:
        return asked.link("/server")
    if advice.group is None:
        return asked.link("/dead", key=advice.stream)
    return asked.link("/group", key=advice.stream, group=advice.group, consumer=advice.consumer)


def kinds(shown: Sequence[ShownAdvice]) -> list[list[ShownAdvice]]:
    """Findings of one kind together, as :func:`by_kind` has them."""
    pages = {id(one.advice): one for one in shown}
    return [[pages[id(advice)] for advice in kind] for kind in by_kind([one.advice for one in shown])]

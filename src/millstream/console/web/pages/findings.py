"""What needs a person, as a page shows it: with a link, its evidence and the command that helps."""

from collections.abc import Sequence
from dataclasses import dataclass

from millstream.console.changes.actions import form_of
from millstream.console.changes.writing import raw_line, shell_line
from millstream.console.model.advice import Advice, Case
from millstream.console.model.facts.findings import advice_on, evidence_text
from millstream.console.web.page import Asked
from millstream.console.web.pages.common import command_line
from millstream.console.words import name


@dataclass(frozen=True, slots=True)
class ShownAdvice:
    """A finding as a page shows it.

    Attributes:
        advice: as it was found.
        href: the page it is about.
        place: its group and stream, in words.
        evidence: the facts that say so, in words.
        remedy: the command line that helps; empty where there is none.
        raw: the command of the server; empty where there is none, or a command line.
        form: address of the preview of what helps; empty where that is no change, or the console makes none.
    """

    advice: Advice
    href: str
    place: str
    evidence: str
    remedy: str
    raw: str
    form: str = ""


def findings(asked: Asked, found: Sequence[Case], besides: Sequence[Advice] = ()) -> list[ShownAdvice]:
    """What there is to say of them, what matters most first.

    Args:
        asked: for whom.
        found: the groups.
        besides: what was found about no group.
    """
    return [_finding(asked, advice) for advice in advice_on(found, besides)]


def _finding(asked: Asked, advice: Advice) -> ShownAdvice:
    words = {"key": advice.stream, "group": advice.group, "consumer": advice.consumer}
    remedy = "" if advice.remedy is None else shell_line(command_line(asked, *advice.remedy[1:]))
    raw = "" if remedy or not advice.raw else raw_line(advice.raw[0])
    if advice.group is None:
        place, href = name(advice.stream), asked.link("/dead", key=advice.stream)
    else:
        place, href = f"{name(advice.group)} on {name(advice.stream)}", asked.link("/group", **words)
    change = form_of(advice.remedy) if advice.remedy is not None and asked.settings.allow_changes else None
    form = "" if change is None else asked.link("/change", **change)
    return ShownAdvice(advice, href, place, evidence_text(advice), remedy, raw, form)

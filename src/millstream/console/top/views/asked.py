"""What a view is asked for, and what several views are made of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from millstream.console import words
from millstream.console.changes.writing import raw_line, shell_line
from millstream.console.model.advice import Advice
from millstream.console.model.facts.findings import by_kind, evidence_text, place_of
from millstream.console.model.facts.marks import is_late, is_stuck
from millstream.console.model.facts.streams import group_facts
from millstream.console.model.lag import Lag
from millstream.console.model.rates import GroupRate
from millstream.console.model.streams import GroupStatus
from millstream.console.payloads.entry import EntryPayload
from millstream.console.payloads.shown import in_brief
from millstream.console.top.views.drawing import sparkline
from millstream.console.top.views.view import TopPlace, ViewColumn, ViewRow, ViewSection, place
from millstream.console.watching.watch import Reading, ServerWatch
from millstream.errors import MillstreamError

_VALUE = 60  # letters of a value in a list

GROUP_COLUMNS = (
    ViewColumn("stream / group", prose=True),
    ViewColumn("lag", right=True),
    ViewColumn("behind by", right=True, rank=1),
    ViewColumn("pending", right=True),
    ViewColumn("oldest", right=True, rank=2),
    ViewColumn("unowned", right=True, rank=5),
    ViewColumn("rate", right=True, rank=3),
    ViewColumn("done in", right=True, rank=6),
    ViewColumn("trend", rank=4),
)
"""Of streams and their groups: a stream has its length in place of a lag, and as its rate what comes to it."""


class NoPlaceError(MillstreamError):
    """What a view is to show is not there, or not any more; the text says what.

    What to do: go back in the terminal view, or name a stream, group or worker that is there.
    """

    exit_code: ClassVar[int] = 4


@dataclass(frozen=True, slots=True)
class TopAsked:
    """What a view is asked for.

    Attributes:
        watch: the server.
        place: which view, of what.
        sort: what its rows are sorted by; empty for its usual order.
    """

    watch: ServerWatch
    place: TopPlace
    sort: str = ""

    @property
    def words(self) -> Mapping[str, str]:
        """Of the place."""
        return self.place.names

    def word(self, name: str) -> str:
        """A word of the place that must be there.

        Raises:
            NoPlaceError: it is not.
        """
        if name not in self.words:
            raise NoPlaceError(f"the view {self.place.view} needs its {name}")
        return self.words[name]

    def shell(self, *line: str) -> tuple[str, ...]:
        """The command line that shows the same, for this server."""
        return tuple(self.watch.server.command_line(*line))

    @staticmethod
    def source(*readings: Reading[Any]) -> dict[str, Any]:
        """What a view says of the readings it is made of: of several, the oldest counts."""
        first = min(readings, key=lambda one: one.at_ms)
        return {"at_ms": first.at_ms, "trouble": next((one.trouble for one in readings if one.trouble), "")}


def lag_words(lag: Lag) -> str:
    """A lag as a figure; one that is not known by the least that it can be."""
    if lag.known:
        return words.count(lag.entries)
    return f"{words.count(lag.at_least)} or more" if lag.at_most is None else f"{lag.at_least}-{lag.at_most}?"


def group_row(asked: TopAsked, group: GroupStatus, rate: GroupRate | None, now_ms: int) -> ViewRow:
    """A group as a row of :data:`GROUP_COLUMNS`.

    Args:
        asked: for whom.
        group: as it was read.
        rate: how it did of late.
        now_ms: wall milliseconds of the reading.
    """
    facts: Mapping[str, Any] = group_facts(group, now_ms, rate)
    moments = asked.watch.history.lags(group.stream, group.name)
    cells = (
        f"  {words.name(group.name)}",
        lag_words(group.lag),
        words.span(facts["undelivered_age_ms"]),
        words.count(group.pending),
        words.span(facts["pending_age_ms"]),
        words.count(group.unowned),
        words.rate(facts["delivered_per_second"]),
        words.span(facts["drain_ms"]),
        sparkline([moment.most for moment in moments]),
    )
    mark = "!" if is_late(group, now_ms) or is_stuck(group, now_ms) else ""
    about = {"key": group.stream, "group": group.name}
    to = place("group", **about)
    return ViewRow(f"group {group.stream!r} {group.name!r}", cells, to, mark, about)


def findings_section(asked: TopAsked, found: Sequence[Advice], title: str = "needs a person") -> ViewSection:
    """What needs a person, or is good to know, with the command line that helps: a row for each kind.

    Args:
        asked: for whom.
        found: what matters most first.
        title: above them.
    """
    rows = []
    for number, (advice, *others) in enumerate(by_kind(found)):
        times = f"{len(others) + 1} times: " if others else ""
        helps = tuple(line for line in (_help(asked, advice),) if line)
        rows.append(_finding_row(advice, f"{title} {number}", times, helps))
    return ViewSection(title, _FINDING, tuple(rows), whole=place("findings"))


def all_findings(asked: TopAsked, found: Sequence[Advice], title: str) -> ViewSection:
    """Every one of them, with the facts that say so.

    Args:
        asked: for whom.
        found: what matters most first.
        title: above them.
    """
    rows = [
        _finding_row(advice, f"{title} {number}", "", _evidence_and_help(asked, advice))
        for number, advice in enumerate(found)
    ]
    return ViewSection(title, _FINDING, tuple(rows))


_FINDING = (ViewColumn("", rank=1), ViewColumn("", prose=True), ViewColumn("", prose=True))


def _finding_row(advice: Advice, ident: str, times: str, under: tuple[str, ...]) -> ViewRow:
    """A finding as a row.

    Args:
        advice: as it was found.
        ident: id of the row.
        times: before what it says: how often there is one of its kind.
        under: further lines.
    """
    about, to = {"key": advice.stream}, place("letters", key=advice.stream)
    if advice.query is not None:
        about, to = {}, place("queries")
    elif advice.server is not None:
        about, to = {}, place("server")
    elif advice.group is not None:
        about |= {"group": advice.group} | _consumer(advice)
        to = place("group", key=advice.stream, group=advice.group, consumer=advice.consumer)
    mark = "" if advice.level == "hint" else "!"
    return ViewRow(ident, (advice.level, place_of(advice), f"{times}{advice.says}"), to, mark, about, under)


def whole_findings(asked: TopAsked, found: Sequence[Advice]) -> ViewSection:
    """The same of one group, in full, with the facts that say so.

    Args:
        asked: for whom.
        found: what matters most first.
    """
    rows = []
    for number, advice in enumerate(found):
        under = _evidence_and_help(asked, advice)
        about = {"key": advice.stream, "group": advice.group or ""} | _consumer(advice)
        to = None if advice.consumer is None else place("group", **about)
        mark = "" if advice.level == "hint" else "!"
        rows.append(ViewRow(f"finding {number}", (f"{advice.level}: {advice.says}",), to, mark, about, under))
    return ViewSection("what is the matter", (ViewColumn(""),), tuple(rows))


def _evidence_and_help(asked: TopAsked, advice: Advice) -> tuple[str, ...]:
    return tuple(line for line in (evidence_text(advice), _help(asked, advice)) if line)


def _consumer(advice: Advice) -> dict[str, str]:
    return {} if advice.consumer is None else {"consumer": advice.consumer}


def _help(asked: TopAsked, advice: Advice) -> str:
    """The command line that helps, or the command of the server; empty where there is none."""
    if advice.remedy is not None:
        return f"$ {shell_line(asked.shell(*advice.remedy[1:]))}"
    return raw_line(advice.raw[0]) if advice.raw else ""


def payload_words(payload: EntryPayload) -> str:
    """The fields of an entry in one line."""
    return " ".join(f"{words.brief(one.name)}={words.brief(one.text, _VALUE)}" for one in in_brief(payload))

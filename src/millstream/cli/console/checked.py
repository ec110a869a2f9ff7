"""Results of ``millstream check`` in the formats of Nagios, Prometheus and JSON.

Names may contain any characters; they are escaped, so they cannot break a line or a label.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from millstream.cli.shared.exposition import gauge
from millstream.ops.findings.causes import Cause, cause_facts, explained
from millstream.ops.findings.check import AGES, EXIT_CODES, CheckedFigure, CheckStatus, Measured, worst
from millstream.texts import Kind, in_one_line, json_text, plural, shown

_NAMED = 20  # number of listed figures that are not ok
_DATA = 100  # number of figures in the performance data

_METRICS = {
    "lag": ("redis_stream_group_lag", "Entries not delivered to the group yet."),
    "behind": (
        "millstream_stream_group_oldest_undelivered_age_seconds",
        "Since the oldest undelivered entry was added.",
    ),
    "pending": ("redis_stream_group_messages_pending", "Entries delivered and not acked."),
    "pending-age": (
        "millstream_stream_group_oldest_pending_age_seconds",
        "Since the oldest pending entry that is not delayed was added.",
    ),
    "unowned": ("millstream_stream_group_unowned_messages", "Pending entries that no consumer holds (XNACK)."),
    "no-owner": ("millstream_partition_unowned_seconds", "Since the partition had an owner; 0 while it has one."),
    "dead": ("millstream_dead_letters_waiting", "Entries in the dead-letter stream."),
    "overdue": ("millstream_later_overdue_seconds", "Since the first schedule of the stream was due."),
}
"""Metric names that workers export too, so that the same dashboards and alerts fit."""


def nagios(found: list[CheckedFigure], causes: Sequence[Cause] = ()) -> str:
    """Return one line: the status, the causes, the figures that are not ok, and the performance data.

    A cause comes before the figures that it holds up, of which the first one is shown.
    """
    status = worst(found)
    folded, bad = _by_cause(found, causes)
    said = [in_one_line(_caused(cause, rows)) for cause, rows in folded]
    said += [in_one_line(_sentence(one)) for one in bad[:_NAMED]]
    first, *rest = said or [_all_well(len(found))]
    more = f" (and {len(folded) + len(bad) - 1} more): {'; '.join(rest)}" if rest else ""
    data = " ".join(_datum(one) for one in found[:_DATA] if one.measured.value is not None)
    text = f"MILLSTREAM {status.upper()} - {first}{more}".replace("|", "/")
    return f"{text} | {data}" if data else text


def _all_well(figures: int) -> str:
    return "1 figure is within its thresholds" if figures == 1 else f"{figures} figures are within their thresholds"


def _by_cause(
    found: list[CheckedFigure], causes: Sequence[Cause]
) -> tuple[list[tuple[Cause, list[CheckedFigure]]], list[CheckedFigure]]:
    """Return each cause with the figures that it holds up, and the other figures that are not ok."""
    known, folded, left = explained(causes), dict[str, list[CheckedFigure]](), list[CheckedFigure]()
    for one in (one for one in found if one.status != "ok"):
        cause = known.get((one.measured.stream, one.measured.group))
        (left if cause is None else folded.setdefault(cause.id, [])).append(one)
    return [(cause, folded[cause.id]) for cause in causes if cause.id in folded], left


def _caused(cause: Cause, rows: Sequence[CheckedFigure]) -> str:
    more = f" and {plural(len(rows) - 1, 'more figure')}" if len(rows) > 1 else ""
    return f"{cause.says}, which holds up {_sentence(rows[0])}{more}"


def as_json(found: list[CheckedFigure], causes: Sequence[Cause] = ()) -> str:
    """Return one JSON object: the status, its exit code, every figure, and the causes of those that are not ok."""
    status, known = worst(found), explained(causes)
    figures = [_facts(one) | {"cause": _cause_id(known, one)} for one in found]
    facts = {"status": status, "code": EXIT_CODES[status], "figures": figures}
    return json_text({**facts, "causes": [cause_facts(one) for one in causes]}, indent=2)


def _cause_id(known: Mapping[tuple[str, str | None], Cause], one: CheckedFigure) -> str | None:
    cause = None if one.status == "ok" else known.get((one.measured.stream, one.measured.group))
    return None if cause is None else cause.id


def prometheus(found: list[CheckedFigure], db: str) -> str:
    """Return every known figure under the metric name that workers export, and the status of each figure."""
    text = []
    for figure, (name, help_text) in _METRICS.items():
        known = [one.measured for one in found if one.measured.figure == figure and one.measured.value is not None]
        samples = [(_labels(one, db), _base(one)) for one in known]
        text += gauge(name, help_text, samples)
    states = [(_labels(one.measured, db, figure=one.measured.figure), EXIT_CODES[one.status]) for one in found]
    text += gauge("millstream_check_status", "0 ok, 1 warning, 2 critical, 3 unknown.", states)
    return "\n".join(text)


STYLES: Mapping[str, Callable[[list[CheckedFigure], str, Sequence[Cause]], str]] = {
    "nagios": lambda found, _, causes: nagios(found, causes),
    "json": lambda found, _, causes: as_json(found, causes),
    "prometheus": lambda found, db, _: prometheus(found, db),
}


def exit_code(found: Iterable[CheckedFigure]) -> int:
    """Return Nagios's exit code: 0 ok, 1 warning, 2 critical, 3 unknown."""
    status: CheckStatus = worst(found)
    return EXIT_CODES[status]


def _sentence(one: CheckedFigure) -> str:
    """Return one figure with its value and its threshold as text."""
    measured = one.measured
    name = _name(measured, measured.figure.replace("-", " "))
    if measured.value is None:
        known = f" ({measured.at_least} or more)" if measured.at_least else ""
        return f"{name} is unknown{known}: {measured.why}"
    limit = one.bounds.critical if one.status == "critical" else one.bounds.warning
    return f"{name} {_amount(measured, measured.value)} ({one.status} from {_amount(measured, limit)})"


def _name(one: Measured, figure: str) -> str:
    """Return the name of a figure with its stream and group: ``orders/billing lag``."""
    where = one.stream if one.group is None else f"{one.stream}/{one.group}"
    return f"{where} {figure}".lstrip()


def _amount(one: Measured, value: int | None) -> str:
    kind: Kind = "span" if one.figure in AGES else "count"
    return shown(value, kind)


def _facts(one: CheckedFigure) -> dict[str, object]:
    measured = one.measured
    unit = "_ms" if measured.figure in AGES else ""
    return {
        "status": one.status,
        "figure": measured.figure,
        "stream": measured.stream,
        "group": measured.group,
        f"value{unit}": measured.value,
        f"at_least{unit}": measured.at_least,
        f"at_most{unit}": measured.at_most,
        f"warning{unit}": one.bounds.warning,
        f"critical{unit}": one.bounds.critical,
        "why": measured.why or None,
    }


def _datum(one: CheckedFigure) -> str:
    """Return a figure as performance data: ``'orders/billing lag'=12;100;1000;0``.

    A label cannot contain a quote or an equals sign.
    """
    measured = one.measured
    label = re.sub("['=|]", "_", in_one_line(_name(measured, measured.figure)))
    unit = "s" if measured.figure in AGES else ""
    limits = ";".join("" if limit is None else f"{_seconds(measured, limit):.15g}" for limit in _limits(one))
    return f"'{label}'={_base(measured):.15g}{unit};{limits};0"


def _limits(one: CheckedFigure) -> tuple[int | None, int | None]:
    return one.bounds.warning, one.bounds.critical


def _base(one: Measured) -> float:
    """Return the value in base units: seconds, or a count."""
    return _seconds(one, one.value or 0)


def _seconds(one: Measured, value: int) -> float:
    return value / 1000 if one.figure in AGES else value


def _labels(one: Measured, db: str, **more: str) -> dict[str, str]:
    group = {} if one.group is None else {"group": one.group}
    return {"db": db, "stream": one.stream, **group, **more}

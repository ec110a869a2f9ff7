"""Fixtures of several demo tests: the expected results of a short run, and the traces of a faultless run."""

import os
from pathlib import Path

import pytest

from flights import receipts
from flights.checks import truth
from flights.checks.evidence import Evidence
from flights.producer import Resumption
from flights.running.incidents import Incidents

ROWS = 2_000
EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.fixture(autouse=True)
def on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the demo on the path of child processes, as ``make demo`` does."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(EXAMPLES), *filter(None, [os.environ.get("PYTHONPATH")])]))


@pytest.fixture(scope="session")
def facts() -> truth.Truth:
    """Return the expected results of a short run."""
    return truth.compute(ROWS)


@pytest.fixture
def faultless(facts: truth.Truth) -> Evidence:
    """Return the traces of a faultless run, which tests modify."""
    written = []
    held = [entry_id for entry_id in facts.ids[500:520] if entry_id not in facts.unusable]
    for entry_id in facts.ids:
        if entry_id in facts.unusable:
            continue
        if entry_id in facts.flaky:
            written.append(receipts.Receipt("worker-1", entry_id, 1, receipts.FAILED))
        outcome = "late" if entry_id in facts.delayed else "cancelled" if entry_id in facts.cancelled else "fine"
        again = entry_id in facts.flaky or entry_id in held
        written.append(receipts.Receipt("worker-1", entry_id, 2 if again else 1, outcome))
    notices = [("late", facts.delayed), ("cancelled", facts.cancelled - set(facts.unusable))]
    alerts = [("1-1", {"of": entry_id, "kind": kind}) for kind, ids in notices for entry_id in sorted(ids)]
    return Evidence(
        receipts=written,
        length=facts.rows,
        first_id=facts.first_id,
        last_id=facts.last_id,
        pending=0,
        lag=0,
        alerts=alerts,
        dead=[("1-1", letter(entry_id, text)) for entry_id, text in facts.unusable.items()],
        routes=[{name: str(value) for name, value in row.items()} for row in truth.records(facts.routes)],
        tables={"hourly_by_airport": facts.airports.copy(), "hourly_by_carrier": facts.carriers.copy()},
        incidents=Incidents("worker-2", held, [facts.ids[9]], [Resumption(facts.ids[9], facts.ids[9], 0)]),
        survived=[10],
    )


def letter(entry_id: str, text: str) -> dict[str, str]:
    """Build a dead letter about a flight such as ``UA1545 EWR-IAH``."""
    flight, _, route = text.partition(" ")
    origin, _, dest = route.partition("-")
    about = {"carrier": flight[:2], "flight": flight[2:], "origin": origin, "dest": dest}
    return {**about, "_dead.id": entry_id, "_dead.error": "PayloadError: tailnum: missing"}

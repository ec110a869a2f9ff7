"""What several demo tests share: a short truth, and what a faultless run of it leaves."""

import pytest

from millstream.demo.checks import truth
from millstream.demo.checks.evidence import Evidence
from millstream.demo.flights import receipts
from millstream.demo.flights.producer import Resumption
from millstream.demo.running.incidents import Incidents

ROWS = 2_000


@pytest.fixture(scope="session")
def facts() -> truth.Truth:
    """The truths of a short run."""
    return truth.compute(ROWS)


@pytest.fixture
def faultless(facts: truth.Truth) -> Evidence:
    """What a run leaves in which everything went as it should; tests spoil one thing of it."""
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
    """A dead letter about a flight such as ``UA1545 EWR-IAH``."""
    flight, _, route = text.partition(" ")
    origin, _, dest = route.partition("-")
    about = {"carrier": flight[:2], "flight": flight[2:], "origin": origin, "dest": dest}
    return {**about, "_dead.id": entry_id, "_dead.error": "PayloadError: tailnum: missing"}

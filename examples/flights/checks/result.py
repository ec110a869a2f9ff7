"""The result of a run, and its file for programs in the output folder."""

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from flights.checks.compare import Check
from flights.running.sample import Happening, Sample
from flights.settings import DemoSettings


@dataclass
class Result:
    """The outcome of a run.

    Attributes:
        settings: the run.
        rows: number of events.
        server: name and version of the server.
        checks: the checks, in order.
        samples: the state of the run over time.
        happenings: events to mark on the time line.
        alerts: ids of the events with an alert.
        routes: the table of routes that the pipeline wrote last.
        held: number of entries that the killed worker held.
        seconds: the duration of each part, in order.
    """

    settings: DemoSettings
    rows: int
    server: str
    checks: list[Check]
    samples: list[Sample]
    happenings: list[Happening]
    alerts: int
    routes: list[dict[str, str]]
    held: int
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Return True if every check holds."""
        return bool(self.checks) and all(check.ok for check in self.checks)

    def write(self) -> None:
        """Write ``checks.json`` to the output folder."""
        summary: dict[str, Any] = {
            "ok": self.ok,
            "rows": self.rows,
            "server": self.server,
            "seconds": self.seconds,
            "checks": [asdict(check) for check in self.checks],
        }
        (self.settings.out / "checks.json").write_text(json.dumps(summary, indent=2) + "\n")

"""The tables of metrics, from where they are declared."""

from collections.abc import Mapping

from scripts.reference.markdown import code, prose, table

from millstream.worker.middlewares.otel_metrics import INSTRUMENTS
from millstream.worker.monitoring.metrics import PIPELINES, STREAMS, WORKER, Declared


def of_workers() -> str:
    """What a worker counts."""
    return _table(WORKER)


def of_streams() -> str:
    """What it asks the server."""
    return _table(STREAMS)


def of_pipelines() -> str:
    """What is known of queries."""
    return _table(PIPELINES)


def of_tracing() -> str:
    """OpenTelemetry's instruments."""
    rows = [
        (code(name), each.kind, ", ".join(map(code, each.attributes)), prose(each.text))
        for name, each in INSTRUMENTS.items()
    ]
    return "\n" + table(["metric", "type", "attributes", "meaning"], rows) + "\n"


def _table(metrics: Mapping[str, Declared]) -> str:
    rows = [
        (code(each.exposed(name)), each.kind, ", ".join(map(code, each.labels)), prose(each.text))
        for name, each in metrics.items()
    ]
    return "\n" + table(["metric", "type", "labels", "meaning"], rows) + "\n"

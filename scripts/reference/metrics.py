"""The tables of metrics, from their declarations."""

from collections.abc import Mapping

from scripts.reference.markdown import code, prose, table

from millstream.worker.middlewares.otel_metrics import INSTRUMENTS
from millstream.worker.monitoring.metrics import PIPELINES, STREAMS, WORKER, Declared


def of_workers() -> str:
    """Return the table of a worker's metrics."""
    return _table(WORKER)


def of_streams() -> str:
    """Return the table of the stream metrics that a worker reads from the server."""
    return _table(STREAMS)


def of_pipelines() -> str:
    """Return the table of a query's metrics."""
    return _table(PIPELINES)


def of_tracing() -> str:
    """Return the table of OpenTelemetry's instruments."""
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

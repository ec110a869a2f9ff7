"""The asyncio line to the server or the cluster that a URL names."""

from collections.abc import Sequence

from millstream.client.cluster_line import ClusterLine, NearLine
from millstream.client.line import Command, Line
from millstream.client.recorded.line import RecordedLine
from millstream.client.recorded.report import open_report
from millstream.client.url import CLUSTERS, REPORT


def open_line(
    url: str, *, near: str | None = None, greet: Sequence[Command] = (), redial: bool = False, joint: bool = False
) -> Line:
    """Return a line to the server or the cluster that a URL names; on a joint one, concurrent readers share trips."""
    if url.startswith(REPORT):
        return RecordedLine(open_report(url))
    if not url.startswith(CLUSTERS):
        return Line(url, greet=greet, redial=redial, joint=joint)
    return ClusterLine(url, joint=joint) if near is None else NearLine(url, near, greet=greet)

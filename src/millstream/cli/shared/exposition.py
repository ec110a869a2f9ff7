"""Metrics in Prometheus's text format, without its library. Names of servers and keys are escaped as labels."""

from collections.abc import Iterable, Mapping

from millstream.printable import printable


def gauge(name: str, help_text: str, samples: Iterable[tuple[Mapping[str, str], float]]) -> list[str]:
    """Return the lines of a gauge; none without samples."""
    lines = [f"{name}{{{_labels(labels)}}} {value:.15g}" for labels, value in samples]
    return [f"# HELP {name} {help_text}", f"# TYPE {name} gauge", *lines] if lines else []


def _labels(labels: Mapping[str, str]) -> str:
    return ",".join(f'{name}="{_label(value)}"' for name, value in labels.items())


def _label(value: str) -> str:
    # Prometheus accepts control characters that move a terminal's cursor; escape them for people who view the file
    return printable(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

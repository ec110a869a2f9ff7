"""Names in PromQL, for tests of dashboards and rules."""

import re

_TEXT = re.compile(r'"[^"]*"')
_NAME = re.compile(r"\b(?:millstream|redis)[a-z0-9_]*(?::[a-z0-9_:]+)?")


def metrics_of(query: str) -> set[str]:
    """Return the metrics in a query, without label values in quotes."""
    return set(_NAME.findall(_TEXT.sub("", query)))

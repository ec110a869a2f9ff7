"""Names in PromQL, as far as tests of dashboards and rules need them."""

import re

_TEXT = re.compile(r'"[^"]*"')
_NAME = re.compile(r"\b(?:millstream|redis)[a-z0-9_]*(?::[a-z0-9_:]+)?")


def metrics_of(query: str) -> set[str]:
    """The metrics a query asks for; what stands in quotes is the value of a label."""
    return set(_NAME.findall(_TEXT.sub("", query)))

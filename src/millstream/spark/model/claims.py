"""The claims of a query in group mode, as values: PURE, no server, no Spark, no clock.

A batch of group mode is what one consumer of the group holds. The offset that Spark keeps names that consumer and its
entries, as runs of ids with their counts. So a batch that is run again reads the same entries even if others have
claimed some of them::

    {"claims": {"orders": [["1-0", "9-0", 9]]}, "consumer": "lake-3", "group": "billing", "seq": 3}
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, NamedTuple

from millstream.client.jsontext import fault
from millstream.errors import UsageError
from millstream.spark.model.offsets import Id, parse_id
from millstream.spark.model.packing import portions


class Run(NamedTuple):
    """Claimed entries without any other entry between them."""

    first: Id  # Id of the first entry
    last: Id  # Id of the last entry
    n: int  # Number of entries when they were claimed


@dataclass(frozen=True)
class Claim:
    """The claimed entries of one batch."""

    group: str  # Group of the claimed entries
    query: str  # Name of the query, a part of its consumers' names
    seq: int = 0  # Number of the batch; 0 is the beginning of a query, without entries
    runs: Mapping[str, tuple[Run, ...]] = field(default_factory=dict)  # Entries of each stream, in order

    @property
    def consumer(self) -> str:
        """Name of the consumer that holds the entries."""
        return name(self.query, self.seq)

    @property
    def n(self) -> int:
        """Number of entries."""
        return sum(run.n for runs in self.runs.values() for run in runs)

    def following(self, seq: int, runs: Mapping[str, Sequence[Run]]) -> "Claim":
        """Return a later batch of the same query."""
        return Claim(self.group, self.query, seq, {key: tuple(runs[key]) for key in sorted(runs) if runs[key]})


def name(query: str, seq: int) -> str:
    """Return the name of the consumer of a batch."""
    return f"{query}-{seq}"


def number(query: str, consumer: str) -> int | None:
    """Return the number of the batch that a consumer of this query holds; None for any other consumer.

    Any user who may read in the group can name consumers. So a number that no query reaches is ignored: Python refuses
    to parse numbers beyond a limit of digits, and the next batch's number follows this one.
    """
    found = re.fullmatch(rf"{re.escape(query)}-([1-9][0-9]{{0,17}})", consumer)
    return int(found[1]) if found else None


def dump(claim: Claim) -> dict[str, Any]:
    """Return the offset in Spark's form; keys are sorted, since Spark compares offsets as text."""
    runs = {key: [[str(run.first), str(run.last), run.n] for run in claim.runs[key]] for key in sorted(claim.runs)}
    return {"claims": runs, "consumer": claim.consumer, "group": claim.group, "seq": claim.seq}


def load(raw: Mapping[str, Any], group: str, query: str) -> Claim:
    """Parse the offset that :func:`dump` made."""
    try:
        runs = {
            key: tuple(Run(parse_id(first), parse_id(last), int(n)) for first, last, n in found)
            for key, found in raw["claims"].items()
        }
        claim, consumer = Claim(group, query, int(raw["seq"]), runs), raw["consumer"]
        theirs = raw["group"]
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as reason:
        raise UsageError(
            f"the checkpoint's offsets are not those of a millstream query of mode 'group': {raw!r} ({fault(reason)}); "
            "give this query a checkpointLocation of its own"
        ) from None
    for option, mine, other in (("group", group, theirs), ("queryName", claim.consumer, consumer)):
        if mine != other:
            raise UsageError(
                f"option {option!r} was another when the checkpoint was made ({other!r}, now {mine!r}). Claimed "
                "entries are found by that name only: set it back, or give the query a checkpointLocation of its own"
            )
    return claim


def parts(claim: Claim, wanted: int | None, most: int | None) -> list[tuple[str, tuple[Run, ...]]]:
    """Return the claim cut into about equal parts of one stream each; runs stay whole, as their counts prove them."""
    size = -(-claim.n // (wanted or min(8, -(-claim.n // 100_000) or 1)))
    size = max(1, min(size, most or size))
    return [(key, tuple(part)) for key, runs in claim.runs.items() for part in portions(runs, attrgetter("n"), size)]


def joined(ids: Sequence[Id], gaps: Iterable[bool], most: int) -> list[Run]:
    """Join single entries to runs."""
    found = [Run(ids[0], ids[0], 1)] if ids else []
    for ident, gap in zip(ids[1:], gaps, strict=True):
        last = found[-1]
        if gap or last.n >= most:
            found.append(Run(ident, ident, 1))
        else:
            found[-1] = Run(last.first, ident, last.n + 1)
    return found

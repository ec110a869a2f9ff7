"""A user's function that decides about entries: found by its name on a command line, and called with a slice.

The name has the form ``module:name``.
"""

import importlib
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from millstream.errors import UsageError
from millstream.spark.recovery.settle import WORDS, EntryDecision


def load_function(spec: str) -> Callable[..., Any]:
    """Return the function of a text such as ``triage:decide``; the module may be in the working directory."""
    module, _, name = spec.partition(":")
    if not module or not name:
        raise UsageError(
            f"{spec!r} names no function: give module:name, such as triage:decide for decide() in triage.py"
        )
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as missing:
        if missing.name != module:
            raise
        raise UsageError(f"{spec!r}: there is no module {module!r} in {here} or installed") from None
    # By value, because executors may lack the module's file.
    cloudpickle.register_pickle_by_value(found)  # type: ignore[no-untyped-call]  # untyped in pyspark
    function = getattr(found, name, None)
    if not callable(function):
        raise UsageError(f"{spec!r}: module {module!r} has no function {name!r}")
    return function  # type: ignore[no-any-return]  # a module's attribute


class SparkDecisions:
    """The user's function, called with the recovery's entries as a DataFrame."""

    def __init__(  # noqa: PLR0917 - private
        self,
        spark: "SparkSession",
        function: "Callable[[DataFrame], DataFrame]",
        url: str,
        stream: str,
        group: str,
        consumer: str,
        schema: str | None,
    ) -> None:
        reader = spark.read.format("millstream").option("url", url).option("stream", stream).option("mode", "group")
        reader = reader.option("group", group).option("consumer", consumer).option("failOnDataLoss", "false")
        self._reader = reader if schema is None else reader.schema(f"{schema}, deliveries bigint")
        self._function = function

    def __call__(self, ids: Sequence[bytes]) -> dict[bytes, EntryDecision]:
        """Return the decisions on a slice."""
        result = self._function(self._reader.load())
        if not isinstance(result, DataFrame):
            raise UsageError(
                f"the function returned {type(result).__name__}, and must give a DataFrame of id and verdict"
            )
        for column in ("id", "verdict"):
            if column not in result.columns:
                raise UsageError(f"the function's DataFrame has no column {column!r}, only {', '.join(result.columns)}")
        reason = F.col("reason").cast("string") if "reason" in result.columns else F.lit(None).cast("string")
        table = result.select("id", F.col("verdict").cast("string"), reason.alias("reason")).toArrow()
        columns = (table.column(name).to_pylist() for name in ("id", "verdict", "reason"))
        return checked_decisions(set(ids), zip(*columns, strict=True))


def checked_decisions(wanted: set[bytes], rows: Iterable[tuple[Any, ...]]) -> dict[bytes, EntryDecision]:
    """Return the decisions in a function's rows, one an entry; entries without a row are left out."""
    found: dict[bytes, EntryDecision] = {}
    for ident, word, reason in rows:
        if word is None:
            continue
        if word not in WORDS:
            raise UsageError(f"the verdict on {ident} is {word!r}: it must be one of {', '.join(WORDS)}, or null")
        key = str(ident or "").encode()
        if key not in wanted:
            raise UsageError(f"the function returned a verdict on {ident!r}, which is not one of its entries")
        decision = EntryDecision(word, reason or "")
        if found.setdefault(key, decision).word != word:
            raise UsageError(f"there are two verdicts on {ident}: {found[key].word} and {word}")
    return found

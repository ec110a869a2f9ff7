"""Payloads in formats that Spark cannot read without a jar: Avro, alone or with a schema registry's header.

Users call ``functions``. ``avro_types`` derives the columns of a schema, and ``registry`` reads from a schema registry.
The formats' own libraries parse them (``pip install 'millstream[avro]'``).
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millstream.spark.payloads.functions import from_avro, from_confluent

__all__ = ["from_avro", "from_confluent"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(importlib.import_module("millstream.spark.payloads.functions"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

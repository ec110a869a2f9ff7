"""The options of a read of hashes: text in, one checked value out."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from millstream.errors import ConfigError
from millstream.spark.options import common, names

KEY = "key"
"""Column of a hash's whole key, unless an option names a column for the part after the prefix."""

_GLOB = re.compile(r"[*?\[\]\\]")


@dataclass(frozen=True)
class HashOptions(common.ServerOptions):
    """The options of a read of hashes; pickled to the executors."""

    pattern: str  # Glob of keys, as in SCAN MATCH
    key_column: str = KEY  # Column of the key, or of its part after ``prefix``
    prefix: str = ""  # Prefix of every key, which the column omits; empty for whole keys
    min_partitions: int | None = None  # Smallest number of tasks; None to derive it from the number of keys


def parse(raw: Mapping[str, str]) -> HashOptions:
    """Return the options, after a check of every one."""
    common.refuse(raw.keys(), names.others(names.LOOKUP), "in a read of hashes: leave it out")
    common.check_names(raw, names.options(names.LOOKUP), "load()")
    pattern = common.read(raw, "hashes", common.not_empty) or ""
    column = common.read(raw, "keyColumn", common.not_empty)
    prefix = ""
    if column is not None:
        prefix, star = pattern[:-1], pattern[-1:]
        if star != "*" or _GLOB.search(prefix):
            raise ConfigError(
                f"option 'keyColumn' takes what follows a prefix, and option 'hashes' is {pattern!r}: it must be a "
                "prefix and a star, such as user:*"
            )
        if column.lower() in (names.FIELDS, names.CORRUPT):
            raise ConfigError(f"option 'keyColumn' is {column!r}, which is another column here. Choose another name.")
    return HashOptions(
        url=common.find_url(raw),
        pattern=pattern,
        key_column=column or KEY,
        prefix=prefix,
        min_partitions=common.read(raw, "minPartitions", common.positive),
    )

"""The options of ``writeStream.format("millstream")`` and of ``write``: text in, one checked value out."""

from collections.abc import Mapping
from dataclasses import dataclass

from millstream.errors import ConfigError
from millstream.spark.model.offsets import parse_id
from millstream.spark.options import common as opts
from millstream.spark.options import names

DEFAULT_TIMEOUT_MS = 24 * 3600 * 1000
"""Milliseconds that staged rows wait for a commit: longer than any job, so that only rows of dead jobs expire."""


@dataclass(frozen=True)
class SinkOptions(opts.ServerOptions):
    """The options of a write; pickled to the executors."""

    stream: str | None = None  # Stream for all rows; None if each row names its own
    max_len: int | None = None  # Number of entries to keep in a stream
    min_id: str | None = None  # Entries below this id are trimmed
    retention_ms: int | None = None  # Entries older than this are trimmed
    approximate: bool = True  # True if trimming may keep more entries, which costs the server less
    headers: bool = False  # True if entries are written as envelopes, from the columns ``headers`` and ``body``
    staging_ms: int = DEFAULT_TIMEOUT_MS  # Milliseconds that staged rows wait for a commit
    app: str | None = None  # Writer's name to which ``version`` belongs, for a batch write that may be repeated
    version: int | None = None  # Number of this write
    checkpoint: str | None = None  # Folder of the streaming query's checkpoint, if Spark passes it on
    given: frozenset[str] = frozenset()  # Names of the given options, in lower case

    def refuse_batch_only(self) -> None:
        """Raise if an option was given that has no effect in a streaming query."""
        why = "in a streaming query, whose batches Spark numbers: leave it out"
        opts.refuse(self.given, names.options(names.APPEND), why)


def parse(raw: Mapping[str, str]) -> SinkOptions:
    """Return the options, after a check of every one."""
    given = {name.lower(): value for name, value in raw.items() if name.lower() not in names.PASSED_TO_SINKS}
    if given.get("asyncprogresstrackingenabled", "").lower() == "true":
        raise ConfigError(
            "option 'asyncProgressTrackingEnabled' is invalid with this sink: a batch that Spark has not logged may "
            "be another one when it is repeated, and would be taken for the first. Leave it out."
        )
    opts.check_names(given, names.options(names.WRITE, names.APPEND), "save()")
    retention, timeout = (opts.read(given, name, opts.duration) for name in ("retention", "stagingTimeout"))
    found = SinkOptions(
        url=opts.find_url(given),
        stream=opts.read(given, "stream", _one_stream),
        max_len=opts.read(given, "maxLen", opts.positive),
        min_id=opts.read(given, "minId", lambda text: str(parse_id(text))),
        retention_ms=retention,
        approximate=opts.read(given, "approximate", opts.boolean) is not False,
        headers=opts.read(given, "includeHeaders", opts.boolean) is True,
        staging_ms=timeout or DEFAULT_TIMEOUT_MS,
        app=opts.read(given, "txnAppId", opts.not_empty),
        version=opts.read(given, "txnVersion", _version),
        checkpoint=next((value for name, value in raw.items() if name.lower() == names.CHECKPOINT), None),
        given=frozenset(given),
    )
    _check_together(found)
    return found


def _check_together(found: SinkOptions) -> None:
    """Raise for options that contradict each other, or that have no effect without another one."""
    trims = [name for name in ("maxLen", "minId", "retention") if name.lower() in found.given]
    if len(trims) > 1:
        raise ConfigError(f"options {trims[0]!r} and {trims[1]!r} are both given. Trim by one of them.")
    if "approximate" in found.given and not trims:
        raise ConfigError("option 'approximate' does nothing without 'maxLen', 'minId' or 'retention'. Leave it out.")
    if (found.app is None) != (found.version is None):
        raise ConfigError(
            "options 'txnAppId' and 'txnVersion' go together. Give both, the job's name and the number of its write."
        )


def _one_stream(text: str) -> str:
    """Return the key of the target, commas included: only a read takes several streams."""
    if not text:
        raise ValueError("it must be the key of a stream")
    return text


def _version(text: str) -> int:
    """Parse the number of a write, from 0 on, such as the batch numbers of ``foreachBatch``."""
    if not text.isascii() or not text.isdigit():
        raise ValueError("it must be a whole number, one more for each write")
    return int(text)

"""The declaration of a pipeline in an app: source streams, a function over DataFrames, and a sink.

Plain data and checks. This module does not import Spark, so an app with pipelines loads without Spark. The caller that
starts a pipeline passes the Spark session, and only the session's own methods are called. ``millstream.pipelines`` runs
the pipelines of an app.
"""

import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

from millstream.errors import ConfigError

OutputMode = Literal["append", "complete", "update"]
Session: TypeAlias = Any
Query: TypeAlias = Any
Frame: TypeAlias = Any  # PySpark's ``SparkSession``, ``StreamingQuery`` and ``DataFrame``

AVAILABLE_NOW = "availableNow"
_FORMAT = "millstream"


@dataclass(frozen=True)
class Source:
    """One streaming DataFrame of a pipeline.

    Attributes:
        stream: key of the stream, or several with commas; may be empty if ``options`` name the streams.
        schema: typed columns as DDL text or a ``StructType``; None for the map ``fields``.
        options: options of the reader, as docs/spark/reference.md lists them. The url defaults to the app's.
        format: format of the reader; a format other than ``millstream`` gets its options only.
    """

    stream: str = ""
    schema: Any = None
    options: Mapping[str, object] = field(default_factory=dict)
    format: str = _FORMAT

    def chosen(self, url: str) -> dict[str, str]:
        """Return the options as texts for Spark."""
        named = {"stream": self.stream} if self.stream else {}
        return _with_url({**named, **_texts(self.options)}, self.format, url)

    def load(self, spark: Session, url: str) -> Frame:
        """Return the streaming DataFrame."""
        reader = spark.readStream.format(self.format).options(**self.chosen(url))
        return (reader if self.schema is None else reader.schema(self.schema)).load()


@dataclass(frozen=True)
class Sink:
    """The target of a pipeline's rows.

    Attributes:
        format: format of the writer, such as ``parquet`` or ``millstream``; empty with ``batch``.
        path: path, for formats that have one.
        options: options of the writer. For ``millstream`` the url defaults to the app's.
        batch: function of a DataFrame and a batch number, called for each batch (``foreachBatch``). After a crash, a
            batch may come again under the same number.
        partition_by: columns by which files are divided into folders.
    """

    format: str = ""
    path: str | None = None
    options: Mapping[str, object] = field(default_factory=dict)
    batch: Callable[[Frame, int], None] | None = None
    partition_by: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if bool(self.format) == (self.batch is not None):
            raise ConfigError("a sink has a format or a function `batch`. Give one of the two.")

    def chosen(self, url: str) -> dict[str, str]:
        """Return the options as texts for Spark."""
        return _with_url(_texts(self.options), self.format, url)

    def onto(self, writer: Any, url: str) -> Any:
        """Return the writer with this sink set."""
        if self.batch is not None:
            return writer.options(**_texts(self.options)).foreachBatch(self.batch)
        options = self.chosen(url)
        if self.path is not None:
            options["path"] = self.path
        writer = writer.format(self.format).options(**options)
        return writer.partitionBy(*self.partition_by) if self.partition_by else writer


@dataclass(eq=False)
class Pipeline:
    """A function from streaming DataFrames to one, with the options of its Spark query; made by ``@app.pipeline``.

    A call of the pipeline calls the function, so that a test can pass batch DataFrames.
    """

    function: Callable[..., Any]
    sources: tuple[Source, ...]
    url: Callable[[], str]  # Returns the server's URL when Spark starts
    sink: Sink | None
    checkpoint: str | None
    trigger: str | None
    output_mode: OutputMode
    name: str

    def __post_init__(self) -> None:
        self.name = self.name or str(getattr(self.function, "__name__", ""))
        self.__doc__ = self.function.__doc__
        self._check()

    def _check(self) -> None:
        """Raise ConfigError for invalid options."""
        if not self.sources:
            raise ConfigError(f"pipeline {self.name!r} reads nothing. Name its stream, @app.pipeline('orders', ...).")
        try:
            # Detects the error when the code is loaded, not when Spark has started and calls the function
            inspect.signature(self.function).bind(*self.sources)
        except TypeError:
            count = len(self.sources)
            raise ConfigError(
                f"pipeline {self.name!r} has {count} sources, so its function must take {count} DataFrames"
            ) from None
        if self.output_mode not in get_args(OutputMode):
            known = ", ".join(get_args(OutputMode))
            raise ConfigError(
                f"pipeline {self.name!r}: output_mode={self.output_mode!r} is invalid. Write one of {known}."
            )
        if self.sink is not None and not self.checkpoint:
            raise ConfigError(
                f"pipeline {self.name!r} has no checkpoint: without one Spark would start from the beginning each "
                "time. Give checkpoint='/var/lib/...'."
            )
        if self.sink is None and (self.checkpoint or self.trigger or self.output_mode != "append"):
            raise ConfigError(
                f"pipeline {self.name!r} has no sink: checkpoint, trigger and output_mode are its function's to set"
            )

    @property
    def folder(self) -> str | None:
        """The checkpoint's path in a normal form, so that two spellings of one path are equal."""
        if self.checkpoint is None or "://" in self.checkpoint:
            return self.checkpoint and self.checkpoint.rstrip("/")
        return os.path.abspath(self.checkpoint)  # noqa: PTH100 - the path need not exist, and links must stay

    def __call__(self, *frames: Frame) -> Any:
        """Return the function's result for DataFrames."""
        return self.function(*frames)

    def options(self) -> list[tuple[str, dict[str, str]]]:
        """Return format and options of each source, as Spark will get them."""
        return [(source.format, source.chosen(self.url())) for source in self.sources]

    def start(self, spark: Session) -> Query:
        """Start the query in a session, or continue from its checkpoint.

        Returns:
            The ``StreamingQuery``.
        """
        url = self.url()
        before = {query.runId for query in spark.streams.active}
        made = self.function(*(source.load(spark, url) for source in self.sources))
        if self.sink is None:
            # A query that has ended is not among the active ones, so a returned query is preferred.
            return made if hasattr(made, "awaitTermination") else self._own(spark, before)
        if not hasattr(made, "writeStream"):
            raise ConfigError(f"pipeline {self.name!r} returned {type(made).__name__}. Return a DataFrame.")
        writer = made.writeStream.queryName(self.name).outputMode(self.output_mode)
        writer = self.sink.onto(writer.option("checkpointLocation", self.checkpoint), url)
        if self.trigger == AVAILABLE_NOW:
            writer = writer.trigger(availableNow=True)
        elif self.trigger is not None:
            writer = writer.trigger(processingTime=self.trigger)
        return writer.start()

    def _own(self, spark: Session, before: set[str]) -> Query:
        """Return the query that the function started."""
        found = [query for query in spark.streams.active if query.runId not in before]
        if len(found) == 1:
            return found[0]
        for query in found:
            query.stop()
        raise ConfigError(
            f"pipeline {self.name!r} has no sink, so its function must start one query, and started {len(found)}. "
            "Declare a sink, or a pipeline for each query."
        )


def as_source(given: Source | str) -> Source:
    """Return a source, given itself or the key of its stream."""
    return Source(given) if isinstance(given, str) else given


def _texts(options: Mapping[str, object]) -> dict[str, str]:
    """Return options as texts, with true and false as Spark spells them."""
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in options.items()
        if value is not None
    }


def _with_url(options: dict[str, str], form: str, url: str) -> dict[str, str]:
    ours = form == _FORMAT and "url" not in {name.lower() for name in options}
    return {"url": url, **options} if ours else options

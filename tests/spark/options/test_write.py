"""Options of the sink: their meaning, and the errors of wrong ones."""

import pytest

from millstream.errors import ConfigError
from millstream.spark.options.write import SinkOptions, parse
from millstream.spark.source import MillstreamSource

GOOD = {"url": "redis://127.0.0.1/0", "stream": "orders"}


def test_all_options() -> None:
    """All sink options are parsed, and Spark's additional options are ignored."""
    given = GOOD | {
        "maxLen": "1000",
        "approximate": "false",
        "stagingTimeout": "90m",
        "txnAppId": "load",
        "txnVersion": "7",
        "checkpointLocation": "/x",
        "queryName": "q",
    }
    found = parse(given)
    assert found == SinkOptions(
        "redis://127.0.0.1/0",
        "orders",
        max_len=1000,
        approximate=False,
        staging_ms=5_400_000,
        app="load",
        version=7,
        checkpoint="/x",
        given=found.given,
    )
    assert parse(GOOD | {"minId": "5"}).min_id == "5-0"
    assert parse(GOOD | {"retention": "7d"}).retention_ms == 604_800_000


def test_a_query_may_have_a_name() -> None:
    """The sink accepts a query name. A read that has no use for one refuses it."""
    named = MillstreamSource(GOOD | {"queryName": "q", "checkpointLocation": "/x"})
    assert named.parsed_sink.stream == "orders"
    with pytest.raises(ConfigError, match="option 'queryName' does nothing without"):
        named.schema()
    with pytest.raises(ConfigError, match="unknown option 'maxlength': did you mean 'maxLen'"):
        MillstreamSource(GOOD | {"queryName": "q", "checkpointLocation": "/x", "maxlength": "3"})
    with pytest.raises(ConfigError, match="option 'mode' is 'grop'"):
        MillstreamSource(GOOD | {"mode": "grop"})


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (GOOD | {"topic": "a"}, "unknown option 'topic': did you mean 'stream'"),
        (GOOD | {"kafka.bootstrap.servers": "h:9092"}, "did you mean 'url'[?] It is a name of Kafka's; .*redis://user"),
        (GOOD | {"kafka.acks": "all"}, "'kafka.acks': leave it out. It is a name of Kafka's; a setting of its client"),
        (
            GOOD | {"maxOffsetsPerTrigger": "1"},
            r"leave it out. It is a name of Kafka's, here 'maxEntriesPerTrigger', which save\(\) does not take",
        ),
        (GOOD | {"retention.ms": "1"}, "'retention.ms': did you mean 'retention'[?] .* a length of time such as 7d"),
        (GOOD | {"maxlenght": "1"}, "unknown option 'maxlenght': did you mean 'maxLen'"),
        (GOOD | {"zzz": "1"}, "unknown option 'zzz': the options are url, stream, maxLen"),
        (GOOD | {"path": "x"}, r"save\(\) does not take a path"),
        (GOOD | {"stream": ""}, "option 'stream' is ''"),
        (GOOD | {"maxLen": "0"}, "option 'maxLen' is '0': it must be a whole number of at least 1"),
        (GOOD | {"minId": "x"}, "option 'minId' is 'x': 'x' is not an entry id"),
        (GOOD | {"retention": "7"}, "option 'retention' is '7': it must be a length of time such as"),
        (GOOD | {"retention": "0s"}, "option 'retention' is '0s'"),
        (GOOD | {"maxLen": "1", "retention": "1d"}, "'maxLen' and 'retention' are both given. Trim by one"),
        (GOOD | {"approximate": "true"}, "'approximate' does nothing without 'maxLen'"),
        (GOOD | {"txnAppId": "a"}, "'txnAppId' and 'txnVersion' go together"),
        (GOOD | {"txnAppId": "a", "txnVersion": "-1"}, "'txnVersion' is '-1': it must be a whole number"),
        (GOOD | {"asyncProgressTrackingEnabled": "true"}, "'asyncProgressTrackingEnabled' is invalid with this sink"),
        (GOOD | {"url": "memory://x"}, "lives in one process"),
    ],
)
def test_a_wrong_option_is_named_with_its_cure(given: dict[str, str], told: str) -> None:
    """An invalid sink option is named in one line with a correction."""
    with pytest.raises(ConfigError, match=told) as caught:
        parse(given)
    assert "\n" not in str(caught.value)


def test_options_of_numbered_writes_mean_nothing_in_a_query() -> None:
    """The options ``txnAppId`` and ``txnVersion`` are refused in a streaming query, whose batches Spark numbers."""
    with pytest.raises(ConfigError, match="'txnAppId' does nothing in a streaming query"):
        parse(GOOD | {"txnAppId": "a", "txnVersion": "1"}).refuse_batch_only()


def test_one_format_for_both_directions() -> None:
    """One format serves reads and writes, and refuses an option of the other direction when it is used."""
    writing = MillstreamSource(GOOD | {"maxLen": "5"})
    assert writing.parsed_sink.max_len == 5
    with pytest.raises(ConfigError, match="unknown option 'maxlen'"):
        writing.schema()
    by_row = MillstreamSource({"url": GOOD["url"]})
    assert by_row.parsed_sink.stream is None
    with pytest.raises(ConfigError, match="option 'stream' is missing"):
        by_row.schema()
    with pytest.raises(ConfigError, match="unknown option 'streampattern'"):
        _ = MillstreamSource({"url": GOOD["url"], "streamPattern": "x*"}).parsed_sink
    with pytest.raises(ConfigError, match="did you mean 'maxLen'"):
        MillstreamSource(GOOD | {"maxLen": "5", "maxLne": "5"})


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (GOOD | {"startingTimestamp": "noon"}, "option 'startingTimestamp' is 'noon'"),
        ({"url": GOOD["url"], "streamPattern": ""}, "option 'streamPattern' is '': it must not be empty"),
        (GOOD | {"minIdleTime": "10m"}, "option 'minIdleTime' does nothing without .option..mode., 'group'"),
        (GOOD | {"retention": "soon"} | {"txnAppId": "a"}, "option 'retention' is 'soon'"),
        (GOOD | {"stagingTimeout": "999999999999d"}, "option 'stagingTimeout' is .* hundred years"),
    ],
)
def test_the_error_is_that_of_the_direction_meant(given: dict[str, str], told: str) -> None:
    """An invalid option is reported as one of the direction that the other options indicate."""
    with pytest.raises(ConfigError, match=told):
        MillstreamSource(given)

"""Read options: the accepted values, and one line with a correction for each invalid one."""

import pytest

from millstream.client.url import find_url
from millstream.errors import ConfigError
from millstream.spark.model.offsets import MAX_PART, Id
from millstream.spark.options.read import parse
from millstream.spark.source import MillstreamSource

GOOD = {"url": "redis://h:1/0", "stream": "orders"}


@pytest.fixture(autouse=True)
def no_url(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the machine's own URL setting from the environment."""
    monkeypatch.delenv("MILLSTREAM_URL", raising=False)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "option 'stream' is missing"),
        (GOOD | {"strem": "a"}, "unknown option 'strem': did you mean 'stream'"),
        (GOOD | {"maxOffsetsPerTrigger": "5"}, "did you mean 'maxEntriesPerTrigger'"),
        (GOOD | {"stream.keys": "a"}, "did you mean 'stream'"),
        (GOOD | {"zzz": "a"}, "unknown option 'zzz': the options are url, stream"),
        (GOOD | {"path": "a"}, r"load\(\) does not take a path"),
        (GOOD | {"url": "http://x"}, "option 'url' must start with"),
        (GOOD | {"url": "memory://"}, "option 'url': the memory:// URL lives in one process.*millstream serve"),
        (
            GOOD | {"url": "redis://me:pw@h:1/orders"},
            r"option 'url': cannot use the redis:// URL: the part after the port must be the number",
        ),
        (GOOD | {"url": "redis://h:port/0"}, "option 'url': cannot use the redis:// URL: its port is not a number"),
        (GOOD | {"url": "redis://h:0/0"}, "option 'url': cannot use the redis:// URL: there is no port 0"),
        (GOOD | {"url": "redis://h/0?db=x"}, "option 'url': .*: its db is not the number of a database"),
        (GOOD | {"streamPattern": "a*"}, "'stream' and 'streamPattern' are both given"),
        (GOOD | {"stream": "a,,b"}, "option 'stream' is 'a,,b'"),
        (GOOD | {"stream": "a,a"}, "names one of them twice"),
        (GOOD | {"minPartitions": "0"}, "option 'minPartitions' is '0': it must be a whole number of at least 1"),
        (GOOD | {"maxEntriesPerTrigger": "many"}, "option 'maxEntriesPerTrigger' is 'many'"),
        (GOOD | {"maxEntriesPerPartition": "1.5"}, "option 'maxEntriesPerPartition' is '1.5'"),
        # Sizes are named before a wrong URL, as ever
        (GOOD | {"url": "x", "minPartitions": "0"}, "option 'minPartitions' is '0'"),
        (GOOD | {"failOnDataLoss": "yes"}, "option 'failOnDataLoss' is 'yes': it must be true or false"),
        (GOOD | {"group": ""}, "option 'group' is '': it must not be empty"),
        (GOOD | {"fields": "a,fields"}, r"'fields' is a column of every entry; .*fields\['fields'\]"),
        (GOOD | {"fields": "a,id"}, r"'id' is a column of every entry; .*fields\['id'\]"),
        (GOOD | {"startingOffsets": '{"orders": ' + "[" * 100_000}, "it must be earliest, latest, or a JSON"),
        (
            GOOD | {"startingOffsets": "first"},
            "option 'startingOffsets' is 'first': it must be earliest, latest, or a JSON",
        ),
        (
            GOOD | {"startingOffsets": '{"orders": {"0": 23, "1": -1}}'},
            "'orders' has no partitions as a topic of Kafka's",
        ),
        (
            GOOD | {"startingOffsets": '{"offsets": {"orders": {"groupName": "g", "offset": "0-0"}}}'},
            'without the JSON object of spark-redis. Write {"orders": "<id>"}',
        ),
        (GOOD | {"startingOffsets": '{"orders": 5}'}, "'orders' must be an id, earliest or latest"),
        (GOOD | {"startingOffsets": '{"orders": "x-1"}'}, "'x-1' is not an entry id"),
        (GOOD | {"startingOffsets": '{"orders": {"id": "1-0", "n": -1}}'}, "'n' of stream 'orders' is -1 and must be"),
        (
            GOOD | {"startingOffsets": '{"orders": {"id": "1-0", "n": 1, "holes": "x"}}'},
            "'holes' of stream 'orders' is 'x'",
        ),
        (GOOD | {"startingOffsets": '{"other": "1-1"}'}, "names stream 'other', which this query does not read"),
        (GOOD | {"stream": "a,b", "startingOffsets": '{"a": "1-1"}'}, "names no place for stream 'b'"),
        (GOOD | {"startingOffsets": '{"orders": "1-1", "orders": "2-2"}'}, "it names 'orders' twice"),
        (GOOD | {"startingTimestamp": str(2**64)}, "option 'startingTimestamp' is .*: no entry can be as late as that"),
        (GOOD | {"startingTimestamp": "noon"}, "option 'startingTimestamp' is 'noon': it must be milliseconds"),
        (GOOD | {"startingTimestamp": "1", "startingOffsets": "latest"}, "both given. Leave one out"),
        (
            GOOD | {"startingTimestamp": "1", "startingOffsetsByTimestamp": '{"orders": 1}'},
            "'startingTimestamp' and 'startingOffsetsByTimestamp' are both given",
        ),
        *(
            (
                GOOD | {"startingOffsetsByTimestamp": text},
                "'startingOffsetsByTimestamp' is .*: it must be a JSON of milli",
            )
            for text in ("5", "{}", "noon", '{"orders": true}', '{"orders": null}', '{"orders": 1.5}')
        ),
        (GOOD | {"endingOffsetsByTimestamp": '{"orders": "noon"}'}, "must be milliseconds since 1970 or a time"),
        (GOOD | {"endingOffsetsByTimestamp": '{"other": 1}'}, "names stream 'other', which this query does not read"),
        (
            GOOD | {"stream": "a,b", "startingOffsetsByTimestamp": '{"a": 1}'},
            r"'startingOffsetsByTimestamp' names no place for stream 'b'. Add it \(a time\)",
        ),
        (GOOD | {"liveTail": "false"}, "option 'liveTail' is for reading an archive"),
        (GOOD | {"fields": "a,ID"}, r"option 'fields' is 'a,ID': Spark takes 'ID' for 'id', a column of every entry"),
        (GOOD | {"archive": ""}, "option 'archive' is '': it must not be empty"),
        (
            GOOD | {"archive": "hdfs://b/x"},
            "option 'archive' is 'hdfs://b/x': an archive cannot lie at hdfs. Give s3://bucket/prefix",
        ),
        (GOOD | {"endingOffsets": "earliest"}, "option 'endingOffsets' is 'earliest', which would read nothing"),
        (
            GOOD | {"endingOffsets": "group"},
            "option 'endingOffsets' is invalid: it cannot be 'group'. Write latest, or a JSON",
        ),
        (
            GOOD | {"startingOffsets": "group"},
            "'startingOffsets' is 'group'. Name the consumer group by option 'group'",
        ),
        (GOOD | {"maxTriggerDelay": "5m"}, "'maxTriggerDelay' does nothing without 'minEntriesPerTrigger'"),
        (GOOD | {"minEntriesPerTrigger": "5", "maxTriggerDelay": "5"}, "'maxTriggerDelay' is '5': it must be a length"),
        (
            GOOD | {"minEntriesPerTrigger": "5", "maxTriggerDelay": "99999999999d"},
            "'maxTriggerDelay' is .*: it must not be longer than a hundred years",
        ),
        (
            GOOD | {"minEntriesPerTrigger": "5", "maxEntriesPerTrigger": "4"},
            "'minEntriesPerTrigger' is more than 'maxEntriesPerTrigger'",
        ),
    ],
)
def test_a_wrong_option_is_named_with_its_cure(given: dict[str, str], told: str) -> None:
    """An invalid option is named in one line with a correction."""
    with pytest.raises(ConfigError, match=told) as caught:
        parse(given)
    assert "\n" not in str(caught.value)


def test_places_are_exclusive_starts_and_times_are_inclusive() -> None:
    """A starting id is the last entry not read, as in XREAD. A starting time is the first moment read."""
    found = parse(GOOD | {"startingOffsets": '{"orders": "5"}', "endingOffsets": '{"orders": "latest"}'})
    assert found.starting == {"orders": Id(5, 0)}
    assert found.ending == {"orders": "latest"}
    for text in ("1767225600000", "2026-01-01T00:00:00Z", "2026-01-01", "2026-01-01T01:00:00+01:00"):
        assert parse(GOOD | {"startingTimestamp": text}).starting == {"*": Id(1_767_225_599_999, MAX_PART)}


def test_options_of_a_batch_and_of_a_stream_are_told_apart_at_load() -> None:
    """Options of batch reads and stream reads together are refused at load."""
    with pytest.raises(
        ConfigError, match=r"'endingOffsets' is for spark.read, and option 'maxEntriesPerTrigger' for spark.readStream"
    ):
        MillstreamSource(GOOD | {"endingOffsets": "latest", "maxEntriesPerTrigger": "5"})


def test_the_url_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The URL may come from the environment, as for the command line. An option outranks it."""
    monkeypatch.delenv("REDIS_URL", raising=False)
    assert parse({"stream": "a"}).url == find_url() == "redis://127.0.0.1:6379/0"
    monkeypatch.setenv("REDIS_URL", "redis://other:1")
    assert parse({"stream": "a"}).url == find_url() == "redis://other:1"
    monkeypatch.setenv("MILLSTREAM_URL", "redis://env:1")
    assert parse({"stream": "a"}).url == "redis://env:1"
    assert parse({"stream": "a", "url": "unix:///tmp/x"}).url == "unix:///tmp/x"
    assert parse({"stream": "a", "url": " redis://h:1/2 "}).url == "redis://h:1/2"


def test_names_are_taken_in_any_case_and_passwords_are_not_shown() -> None:
    """Option names are accepted in any case, and passwords are not shown."""
    found = parse({"URL": "redis://me:secret@h:1/0", "STREAM": "a, b", "failondataloss": "FALSE"})
    assert found.streams == ("a", "b")
    assert found.fail_on_loss is False
    assert found.shown_url == "redis://me:***@h:1/0"


KAFKA_READS = {
    "kafka.bootstrap.servers": "url",
    "subscribe": "stream",
    "assign": "stream",
    "subscribePattern": "streamPattern",
    "startingOffsetsByTimestampStrategy": None,
    "maxOffsetsPerTrigger": "maxEntriesPerTrigger",
    "minOffsetsPerTrigger": "minEntriesPerTrigger",
    "maxRecordsPerPartition": "maxEntriesPerPartition",
    "groupIdPrefix": None,
    "kafka.group.id": "group",
    "kafka.sasl.mechanism": "url",
    "kafka.security.protocol": "url",
    "kafka.ssl.truststore.location": "url",
    "kafka.isolation.level": None,
    "kafkaConsumer.pollTimeoutMs": None,
    "fetchOffset.numRetries": None,
    "fetchOffset.retryIntervalMs": None,
    "topic": "stream",
    "key.deserializer": None,
}
"""Options of Spark's Kafka source that this source lacks, with their counterparts here."""

SPARK_REDIS_READS = {
    "host": "url",
    "port": "url",
    "auth": "url",
    "dbNum": "url",
    "timeout": None,
    "spark.redis.host": "url",
    "stream.keys": "stream",
    "stream.offsets": "startingOffsets",
    "stream.group.name": "group",
    "stream.consumer.prefix": "queryName",
    "stream.parallelism": "minPartitions",
    "stream.read.batch.size": "maxEntriesPerTrigger",
    "stream.read.block": None,
    "infer.schema": None,
    "partitions.number": "minPartitions",
    "max.pipeline.size": None,
}
"""Options of spark-redis that this source lacks, with their counterparts here."""


@pytest.mark.parametrize(
    ("name", "ours", "whose"),
    [
        *((name, ours, "Kafka") for name, ours in KAFKA_READS.items()),
        *((name, ours, "spark-redis") for name, ours in SPARK_REDIS_READS.items()),
    ],
)
def test_a_name_of_another_source_is_told_what_it_is_here(name: str, ours: str | None, whose: str) -> None:
    """A known option name of another source is refused with its counterpart here."""
    cure = f"did you mean {ours!r}[?]" if ours else r"leave it out\."
    told = f"{cure} It is a name of {whose}'s" + ("" if ours else "; ")
    with pytest.raises(ConfigError, match=told) as caught:
        parse(GOOD | {name: "1"})
    assert f"unknown option {name.lower()!r}" in str(caught.value)


def test_options_that_kafka_has_too_mean_the_same() -> None:
    """Options that Kafka's source shares have the same meaning here."""
    shared = {"startingOffsets": "earliest", "failOnDataLoss": "false", "minPartitions": "4", "maxTriggerDelay": "5m"}
    found = parse(GOOD | shared | {"minEntriesPerTrigger": "10"})
    assert (found.starting, found.fail_on_loss, found.min_partitions, found.max_delay_ms) == (
        "earliest", False, 4, 300_000
    )  # fmt: skip

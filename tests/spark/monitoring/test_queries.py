"""The records of queries in the server, next to other programs' keys."""

import json

import redis
from click.testing import CliRunner, Result
from prometheus_client.parser import text_string_to_metric_families

from millstream.cli.main import main
from millstream.spark.monitoring import store
from support.servers import ServerProcess

_OLD = {"id": "old", "driver": "d", "state": "stopped", "at_ms": 1}


def test_what_is_forgotten_is_what_lies_there(real_redis: ServerProcess, client: redis.Redis) -> None:
    """Cleanup removes a record by its own key only, even if its content names another query."""
    now = store.FORGET_MS + 10
    store.write(client, {**_OLD, "id": "live", "at_ms": now}, None)
    client.hset(store.QUERIES, "disguised", json.dumps({**_OLD, "id": "live"}))
    client.hset(store.QUERIES, "nameless", json.dumps({**_OLD, "id": "\ud800"}))
    store.forget(client, now)
    assert client.hkeys(store.QUERIES) == ["live"]


def test_a_query_is_shown_by_name_or_by_the_beginning_of_its_id(real_redis: ServerProcess, client: redis.Redis) -> None:
    """A query is shown by name or id prefix with phases, positions and recent batches. An unknown one is an error."""
    place = {"stream": "orders", "id": "5-0", "n": 12, "latest_n": 15}
    recent = [[second * 1000, 1, 2, 3, 4, 5] for second in range(30)]
    told = {"name": "lake", "phases": {"addBatch": 5}, "places": [place], "recent": recent}
    store.write(client, store.NEW | {"id": "3f2a9c1e-1", "driver": "d", "at_ms": 7} | told, "progress")

    def show(*words: str) -> Result:
        return CliRunner().invoke(main, ["spark", "show", *words, "--url", real_redis.url])

    for word in ("lake", "3f2a", "3f2a9c1e-1"):
        facts = json.loads(show(word, "-o", "json").stdout)
        assert (facts["phases"], facts["places"]) == ([{"phase": "addBatch", "ms": 5}], [place])
        assert (len(facts["recent"]), facts["recent"][0]["at_ms"], facts["state"]) == (30, 0, "gone")
    assert "addBatch" in show("lake").stdout
    nobody = show("nobody")
    assert (nobody.exit_code, "millstream spark ls" in nobody.stderr) == (4, True)
    assert json.loads(client.xrevrange(store.PROGRESS)[0][1]["phases"]) == {"addBatch": 5}
    assert not {"recent", "places"} & client.xrevrange(store.PROGRESS)[0][1].keys()


def test_lag_is_a_metric_that_prometheus_reads(real_redis: ServerProcess, client: redis.Redis) -> None:
    """Each reporting query has lag and other figures as Prometheus metrics. Unknown figures are left out."""
    now = 1_795_531_234_567
    client.set(store.driver_key("d"), now)
    for number, told in enumerate(
        (
            {"name": 'la"ke', "lag": 1_234_567, "rows": 5, "batch_ms": 1500, "rows_per_second": 3.5},
            {"name": None, "lag": None},
            {"name": "old", "driver": "dead", "lag": 7},
        )
    ):
        store.write(client, store.NEW | {"id": f"id-{number}", "driver": "d", "at_ms": now + number} | told, None)
    store.write(client, store.NEW | {"id": "before", "name": 'la"ke', "driver": "d", "at_ms": now - 1, "lag": 99}, None)
    found = CliRunner().invoke(main, ["spark", "metrics", "--url", real_redis.url])
    assert found.exit_code == 0
    samples = {
        (sample.name.removeprefix("millstream_pipeline_"), sample.labels["pipeline"]): sample.value
        for metric in text_string_to_metric_families(found.stdout)
        for sample in metric.samples
    }
    reported = "last_report_timestamp_seconds"
    assert samples == {
        ("up", 'la"ke'): 1, ("up", "id-1"): 1, ("up", "old"): 0,
        ("lag", 'la"ke'): 1_234_567, ("lag", "old"): 7,
        ("last_batch_rows", 'la"ke'): 5, ("last_batch_seconds", 'la"ke'): 1.5, ("rows_per_second", 'la"ke'): 3.5,
        (reported, 'la"ke'): now / 1000, (reported, "id-1"): (now + 1) / 1000, (reported, "old"): (now + 2) / 1000,
    }  # fmt: skip


def test_no_query_has_no_metrics(real_redis: ServerProcess, client: redis.Redis) -> None:
    """Without queries, the metrics output is empty and the exit code is 0."""
    found = CliRunner().invoke(main, ["spark", "metrics", "--url", real_redis.url])
    assert (found.exit_code, found.stdout) == (0, "")

"""Run every block of docs/spark/, docs/from-kafka.md and docs/from-spark-redis.md in a separate process.

``MILLSTREAM_URL`` counts when Spark starts. The arguments are the server's URL and a folder that replaces the page's.
"""

import contextlib
import io
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import redis
from click.testing import CliRunner

import millstream.spark
from millstream.cli.main import main
from millstream.client.payloads import envelope
from support.partitioned import partition
from support.registries import schema_registry
from support.source import ROOT
from support.waiting import eventually

PAGES = [
    *sorted((ROOT / "docs" / "spark").glob("*.md")),
    *(ROOT / "docs" / f"from-{source}.md" for source in ("kafka", "spark-redis")),
]


class Blocks:
    """The pages' blocks, each taken once. A tutorial command that runs a program is taken with the program.

    Args:
        url: URL of the server.
        folder: Folder that replaces the page's own.
    """

    def __init__(self, url: str, folder: Path) -> None:
        found = [
            body.replace("redis://127.0.0.1:6400/0", url)
            for page in PAGES
            for kind, body in re.findall(
                r"^```(python|sh|sql)\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE
            )
            if kind != "sh" or page.stem != "tutorial"
        ]
        self.left = [re.sub(r'"(/var/lib|/data|out)/', f'"{folder}/', body) for body in found]

    def take(self, holding: str) -> str:
        """Return the one block that contains the text, and mark it as taken."""
        (found,) = [body for body in self.left if holding in body]
        self.left.remove(found)
        return found

    def run(self, holding: str, **names: Any) -> dict[str, Any]:
        """Execute a block and return its definitions, with its output under ``printed``."""
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(self.take(holding), "docs/spark", "exec"), names)
        return names | {"printed": printed.getvalue()}


def fill(client: redis.Redis) -> None:
    """Fill streams like those of the page."""
    for number in range(1, 11):
        client.xadd("orders", {"item": "tea", "amount": str(number * 30)}, id=f"{number}-0")
    client.xadd("orders", {"item": "milk"}, id="11-0")
    client.xadd("flights", {"carrier": "UA", "dep_delay": "11", "tags": '["late"]'}, id="1-0")
    client.xadd("flights", {"carrier": "AA", "dep_delay": "soon"}, id="2-0")
    client.xgroup_create("orders", "billing", "0")


def tutorial(blocks: Blocks) -> None:
    """Run the tutorial from top to bottom, and its query a second time with more entries."""
    fill, keep = (next(body for body in blocks.left if name in body) for name in ("# fill.py", "# keep.py"))
    assert blocks.run("# fill.py")["printed"] == "10 sales\n"
    assert re.search(r"milk\|\s+300\|\n\|\s+tea\|\s+250\|", blocks.run("# look.py")["printed"])
    assert blocks.run("# keep.py")["printed"] == "6 large sales\n"
    blocks.left += [fill, keep]
    assert blocks.run("# fill.py")["printed"] == "20 sales\n"
    assert blocks.run("# keep.py")["printed"] == "12 large sales\n"
    assert re.search(r"milk\|\s+600\|\n.*tea\|\s+500\|", blocks.run("# totals.py")["printed"])


ORDER = {"type": "record", "name": "Payment", "fields": [{"name": "amount", "type": "int"}]}


def at_home(blocks: Blocks, client: redis.Redis, spark: Any, url: str, folder: Path) -> None:
    """Run the blocks about tables, filters, hashes, headers, payloads and a job from Kafka."""
    answers = [spark.sql(part).collect() for part in blocks.take("CREATE TABLE delays").split(";") if part.strip()]
    assert sorted(answers[1]) == [("AA", None), ("UA", 11.0)]
    assert answers[2] == [(2,)]
    assert [fields for _, fields in client.xrange("late")] == [{"carrier": "UA", "dep_delay": "11"}, {"carrier": "AA"}]
    spark.sql("DROP TABLE delays")
    spark.sql("DROP TABLE late")

    client.xadd("orders", {"item": "tea", "amount": "1"})
    assert blocks.run('pushdown="true"', spark=spark, url=url)["recent"] == 1

    client.hset("user:7", mapping={"name": "Ada", "born": "1815"})
    logins = spark.createDataFrame([("7",), ("8",)], "user string")
    named = blocks.run('"hashes"', spark=spark, url=url, logins=logins)["named"]
    assert sorted(named.collect()) == [("7", "Ada", 1815), ("8", None, None)]

    for tenant in "ab":
        client.xadd("mails", {"__data__": envelope.build({"tenant": tenant}, tenant.encode())})
    blocks.run("includeHeaders", spark=spark, url=url)
    with redis.Redis.from_url(url) as raw:
        assert [fields for _, fields in raw.xrange("tenant-a")] == [
            {b"__data__": envelope.build({"tenant": "a"}, b"a")}
        ]

    with schema_registry() as registry:
        registry.add(7, ORDER, "payments-value")
        client.xadd("payments", {"payload": b"\0\0\0\0\7\x54"})
        blocks.left = [body.replace("http://127.0.0.1:8081", registry.url) for body in blocks.left]
        (payment,) = blocks.run("from_confluent", spark=spark, url=url)["payments"].collect()
        assert payment.payment.amount == 42

    query = blocks.run('option("stream", "large")', spark=spark, checkpoint=str(folder / "large"))["query"]
    eventually(lambda: client.xlen("large") == 7, 60, what="the job that was Kafka's has added its rows")
    query.stop()


def every_block(url: str, folder: Path) -> None:
    """Run every block and check its effect."""
    client = redis.Redis.from_url(url, decode_responses=True)
    fill(client)
    blocks = Blocks(url, folder)
    tutorial(blocks)
    calm = {"spark__sql__streaming__pollingDelay": "200ms"}  # of queries that wait for news, 10 ms otherwise
    spark = millstream.spark.session("page", quick=True, spark__log__level="ERROR", **calm)

    def stop_queries() -> None:
        for query in spark.streams.active:
            query.stop()

    first = blocks.run("now = spark.read", spark=spark)
    assert first["events"].isStreaming
    assert first["now"].count() == 11

    rows = blocks.run('"flights"', spark=spark)["flights"].collect()
    assert [(row.carrier, row.dep_delay, row.tags, row._corrupt) for row in rows] == [  # noqa: SLF001 - a column, not an attribute
        ("UA", 11, ["late"], None),
        ("AA", None, None, '{"dep_delay": "soon"}'),
    ]

    frame = first["now"].where("fields['item'] = 'milk'").select("fields")
    blocks.run("orders.writeStream", orders=first["events"].select("fields"), frame=frame)
    eventually(lambda: client.xlen("paid") == 12, 60, what="the query and the write have added their rows")
    stop_queries()

    blocks.run('outputMode("update")', totals=first["events"].groupBy("fields.item").count())
    eventually(lambda: client.xlen("totals") == 2, 60, what="the changed rows of the aggregate are there")
    stop_queries()

    shared = blocks.run('"group"', spark=spark, url=url)["orders"]
    writer = shared.writeStream.format("noop").option("checkpointLocation", str(folder / "group"))
    writer.trigger(availableNow=True).start().awaitTermination()
    (group,) = client.xinfo_groups("orders")
    assert (group["entries-read"], group["pending"], group["consumers"]) == (11, 0, 0)

    client.xgroup_setid("orders", "billing", "0")
    client.xreadgroup("billing", "gone", {"orders": ">"})
    client.xclaim("orders", "billing", "gone", 0, [f"{number}-0" for number in range(1, 12)], idle=3_600_000)
    recovered = blocks.run("millstream.spark.recover", spark=spark)
    assert "RecoveryCounts(acked=0, released=10, dead=1, unjudged=0, deleted=0, taken=0)" in recovered["printed"]
    assert client.xlen("orders:dead") == 1

    for stream in ("clicks", "visits"):
        partition(url, stream, 2)
    client.xadd("clicks{1}", {"user": "u7"})
    clicks = blocks.run("partitionedStream", spark=spark, url=url)["clicks"]
    blocks.run("import partition", clicks=clicks, url=url)
    eventually(lambda: client.xlen("visits{0}") + client.xlen("visits{1}"), 60, what="the click is a visit")
    stop_queries()

    pending = blocks.run('"pending"', spark=spark, url=url)
    assert "max(idle_ms)" in pending["printed"]
    assert pending["pending"].count() == 10

    program, *words = shlex.split(blocks.take("millstream sql"))
    asked = CliRunner().invoke(main, words)
    assert (program, asked.exit_code) == ("millstream", 0), asked.stderr
    assert "10" in asked.stdout

    assert blocks.run("millstream.spark.session")["spark"].conf.get("spark.sql.shuffle.partitions") == "4"

    at_home(blocks, client, spark, url, folder)

    query = blocks.run("@app.pipeline")["large"].start(spark)
    committed = folder / "orders" / "_spark_metadata" / "0"
    eventually(committed.exists, 60, what="the pipeline has written a batch")
    query.stop()
    assert min(row.amount for row in spark.read.parquet(str(folder / "orders")).collect()) == 120
    for temperature in (28.1, 30.5, 28.3):
        client.xadd("sensors", {"sensor": "1", "temperature": temperature})
    blocks.run('"sensors"', spark=spark, checkpoint=str(folder / "alarms"))
    assert [fields["temperature"] for _, fields in client.xrange("alarms")] == ["30.5"]
    assert blocks.left == []
    spark.stop()


if __name__ == "__main__":
    every_block(sys.argv[1], Path(sys.argv[2]))

"""Spark over TLS, ``rediss://``: driver and tasks, source and sink, with Redis and with Millstream's server."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pytest
from pyspark.errors import AnalysisException

from millstream.spark.monitoring.error_text import last_words
from support.certificates import Certificates, make_certificates
from support.needs import lacking, program
from support.ports import free_port
from support.servers import ServerProcess, millstream_server, redis_server
from support.streams import fill

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.realserver]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Create certificates of an authority, a server and a client."""
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def rediss(port: int, **files: Path) -> str:
    """Return a TLS URL of the port with the certificate files as redis-py's options."""
    told = urlencode({name: str(path) for name, path in files.items()}, safe="/")
    return f"rediss://localhost:{port}/0" + (f"?{told}" if told else "")


@pytest.fixture(params=["redis", "millstream"])
def server(request: pytest.FixtureRequest, certificates: Certificates, tmp_path: Path) -> Iterator[ServerProcess]:
    """Yield a server that accepts only TLS and requires a client certificate, which its URL names."""
    port = free_port()
    own = ["--tls-port", str(port), "--tls-cert-file", str(certificates.file("server.crt"))]
    own += ["--tls-key-file", str(certificates.file("server.key")), "--tls-ca-cert-file", str(certificates.ca)]
    if request.param == "redis":
        told = subprocess.run([program("redis-cli"), "--help"], capture_output=True, text=True, check=False).stdout
        if "--tls" not in told:
            lacking("Redis is built without TLS")
        made = redis_server(tmp_path / "server", "--port", "0", *own)
    else:
        made = millstream_server(tmp_path / "server", "--memory", "--no-tcp", *own)
    made.url = rediss(
        port,
        ssl_ca_certs=certificates.ca,
        ssl_certfile=certificates.file("client.crt"),
        ssl_keyfile=certificates.file("client.key"),
    )
    made.port = port
    with made:
        yield made


@pytest.mark.either_server
def test_a_query_reads_and_writes(server: ServerProcess, spark: "SparkSession", tmp_path: Path) -> None:
    """Over TLS, a query with two tasks copies each entry once in several batches, and a batch read shows the rows."""
    with server.client(decode_responses=True) as client:
        fill(client, "s", 3000)
        source = (
            spark.readStream.format("millstream").option("url", server.url).option("stream", "s")
            .option("startingOffsets", "earliest").option("maxEntriesPerTrigger", "1200").option("minPartitions", "2")
            .option("group", "lake").load()
        )  # fmt: skip
        query = (
            source.selectExpr("fields").writeStream.format("millstream").option("url", server.url)
            .option("stream", "out").option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True).start()
        )  # fmt: skip
        query.awaitTermination()
        assert [progress["numInputRows"] for progress in query.recentProgress] == [1200, 1200, 600]
        copied = sorted(int(fields["n"]) for _, fields in client.xrange("out"))
        assert copied == list(range(1, 3001))
        (group,) = client.xinfo_groups("s")
        assert (group["name"], group["lag"]) == ("lake", 0)
        table = spark.read.format("millstream").option("url", server.url).option("stream", "s").load()
        assert {row.id: row.fields for row in table.collect()} == dict(client.xrange("s"))


@pytest.mark.either_server
def test_a_certificate_that_is_wrong_or_missing_is_told(
    server: ServerProcess, certificates: Certificates, reading: Callable[..., "DataFrame"]
) -> None:
    """A server certificate of another authority and a missing client certificate each end the read with an error."""
    shown: dict[str, Any] = {
        "ssl_certfile": certificates.file("client.crt"),
        "ssl_keyfile": certificates.file("client.key"),
    }
    for files, told in (
        ({"ssl_ca_certs": certificates.file("other.crt"), **shown}, "certificate verify failed"),
        # In TLS 1.3 the server only closes the connection, when the client thinks that it has one.
        ({"ssl_ca_certs": certificates.ca}, "cannot connect to"),
    ):
        with pytest.raises(AnalysisException) as caught:
            reading(rediss(server.port, **files), stream="s").collect()
        words = last_words(caught.value)
        assert words.startswith("NotReachedError: option 'url': cannot connect to rediss://localhost:")
        assert told in words

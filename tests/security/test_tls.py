"""TLS: accepted and refused connections, and the same behaviour as without it."""

import asyncio
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import redis
from click.testing import CliRunner
from redis.backoff import NoBackoff
from redis.retry import Retry

from millstream import App
from millstream.cli.main import main
from millstream.client.line import Disconnected, Line
from millstream.errors import UsageError
from millstream.server import thread
from millstream.server.listener import ListenError
from millstream.server.thread import ServerThread
from millstream.server.tls import Tls, TlsError, make_context
from millstream.spark.arrow.encode_rows import RowLayout
from millstream.spark.connection.connection import ErrorReply
from millstream.spark.connection.raw_connection import RawConnection
from millstream.spark.options.write import SinkOptions
from millstream.spark.options.write import parse as parse_sink
from millstream.spark.source import MillstreamSource
from millstream.spark.write.server_errors import refused
from millstream.spark.write.sink import check_server, settle, stage
from support.needs import lacking, program
from support.ports import free_port
from support.waiting import eventually

MIB = 1024 * 1024


def served(certificates, **options: Any) -> Tls:
    """Return TLS settings with the test certificates and a free port, without client certificates by default."""
    options.setdefault("auth_clients", "no")
    return Tls(0, certificates.file("server.crt"), certificates.file("server.key"), certificates.ca, **options)


@pytest.fixture(params=["fastest", "asyncio"])
def server(request: pytest.FixtureRequest, certificates, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerThread]:
    """Yield a server with both kinds of TCP, on uvloop if installed, and on asyncio's own loop."""
    if request.param == "asyncio":
        monkeypatch.setattr(thread, "loop_factory", lambda: asyncio.new_event_loop)
    with ServerThread(tls=served(certificates)) as running:
        yield running


def tls_url(server: ServerThread) -> str:
    return next(url for url in server.server.urls if url.startswith("rediss://"))


def client(server: ServerThread, certificates, **options: Any) -> redis.Redis:
    """Return a redis-py client that checks the server's certificate and retries nothing."""
    options.setdefault("retry", Retry(NoBackoff(), 0))
    found: redis.Redis = redis.Redis.from_url(tls_url(server), ssl_ca_certs=str(certificates.ca), **options)
    return found


REFUSED = str(refused(ErrorReply("NOPERM no"), parse_sink({"url": "redis://h", "stream": "s"})))
SINK_RIGHTS = REFUSED.partition("needs ")[2].partition(" on ")[0].split()


def test_spark_reads_and_writes_by_a_user_with_few_rights(server: ServerThread, certificates) -> None:
    """Over TLS, Spark's source and sink work for users with only the documented permissions."""
    with client(server, certificates) as admin:
        admin.acl_setuser("reader", enabled=True, passwords=["+p@"], keys=["s"],
                          commands=["+xinfo", "+xrange", "+echo"])  # fmt: skip
        admin.acl_setuser("writer", enabled=True, passwords=["+q"], keys=["out", "millstream:*"],
                          commands=SINK_RIGHTS)  # fmt: skip
        for number in range(1, 2001):
            admin.xadd("s", {"n": number}, id=f"{number}-0")

        def url(account: str) -> str:
            return tls_url(server).replace("//", f"//{account}@") + f"?ssl_ca_certs={certificates.ca}"

        source = MillstreamSource({"url": url("reader:p%40"), "stream": "s"})
        made = source.reader(source.schema())
        batches = [batch for part in made.partitions() for batch in made.read(part)]
        assert sum(batch.num_rows for batch in batches) == 2000  # type: ignore[union-attr] # a batch of Arrow
        options = SinkOptions(url("writer:q"), "out")
        check_server(options)
        layout = RowLayout("out", has_id=False, fields=("n",))
        message = stage(options, layout, "q", [pa.record_batch({"n": list(range(2500))})])
        settle(options, "q", 0, [message], lasting=True)
        assert admin.xlen("out") == 2500
        with pytest.raises(UsageError, match="may not do this; the sink needs"):
            check_server(SinkOptions(url("reader:p%40"), "out"))


@pytest.mark.parametrize("protocol", [2, 3])
def test_a_client_works_as_without(server: ServerThread, certificates, protocol: int) -> None:
    """Over TLS, adding, group reads, large values and blocking reads work."""
    with client(server, certificates, protocol=protocol) as ours, client(server, certificates) as other:
        big = bytes(range(256)) * (MIB // 256)
        ours.xgroup_create("s", "g", mkstream=True)
        first = ours.xadd("s", {"a": big})
        read: Any = ours.xreadgroup("g", "c", {"s": ">"})
        rows = read[b"s"][0] if isinstance(read, dict) else read[0][1]
        assert rows == [(first, {b"a": big})]
        answers: list[Any] = []
        waiting = threading.Thread(target=lambda: answers.append(ours.xread({"t": "$"}, block=0)))
        waiting.start()
        eventually(lambda: any("b" in found["flags"] for found in other.client_list()), what="the reader waits")
        other.xadd("t", {"x": "y"})
        waiting.join(30)
        assert b"x" in repr(answers[0]).encode()


def test_many_large_replies_to_a_slow_reader_all_come(server: ServerThread, certificates) -> None:
    """Over TLS, 64 MiB of replies reach a slow reader completely."""
    with client(server, certificates) as ours:
        ours.set("k", b"v" * MIB)
        connection = ours.connection_pool.make_connection()
        connection.connect()
        for _ in range(64):
            connection.send_command("GET", "k")
        assert all(len(connection.read_response()) == MIB for _ in range(64))
        connection.disconnect()


def test_a_plain_client_at_the_tls_port_is_cut(server: ServerThread, certificates, caplog) -> None:
    """A plain client at the TLS port gets no reply and is disconnected, without a log line."""
    with socket.create_connection(("127.0.0.1", server.server.tls_port), timeout=30) as plain:
        plain.sendall(b"*1\r\n$4\r\nPING\r\n")
        said = b""
        while chunk := plain.recv(4096):
            said += chunk
    assert b"PONG" not in said
    assert not caplog.records
    with client(server, certificates) as ours:
        assert ours.ping()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_both_versions_of_tls_are_served(server: ServerThread, certificates, version: ssl.TLSVersion) -> None:
    """TLS 1.2 and 1.3 are served, and older versions are not offered."""
    context = ssl.create_default_context(cafile=str(certificates.ca))
    context.minimum_version = context.maximum_version = version
    with (
        socket.create_connection(("127.0.0.1", server.server.tls_port), timeout=30) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as wrapped,
    ):
        wrapped.sendall(b"PING\r\n")
        assert wrapped.recv(7) == b"+PONG\r\n"
        assert wrapped.version() == version.name.replace("_", ".")
    assert make_context(served(certificates)).minimum_version is ssl.TLSVersion.TLSv1_2


def shows(certificates, name: str) -> dict[str, str]:
    """Return options by which a client presents a certificate."""
    return {"ssl_certfile": str(certificates.file(f"{name}.crt")), "ssl_keyfile": str(certificates.file(f"{name}.key"))}


@pytest.mark.parametrize(
    ("auth", "name", "welcome"),
    [
        ("yes", "client", True),
        ("yes", None, False),
        ("yes", "other_client", False),
        ("optional", "client", True),
        ("optional", None, True),
        ("optional", "other_client", False),
        ("no", None, True),
    ],
)
def test_client_certificates(certificates, auth: str, name: str | None, welcome: bool) -> None:
    """A required client certificate must be present and signed by the authority. An optional one may be missing."""
    with ServerThread(tls=served(certificates, auth_clients=auth)) as server:
        options = shows(certificates, name) if name else {}
        with client(server, certificates, **options) as ours:
            if welcome:
                assert ours.ping()
            else:
                with pytest.raises((redis.ConnectionError, OSError)):
                    ours.ping()


def test_protected_mode_and_passwords_hold_through_tls(certificates) -> None:
    """Passwords are required over TLS too: commands are refused before AUTH."""
    with ServerThread(tls=served(certificates), parameters={"requirepass": "secret"}) as server:
        with client(server, certificates) as ours, pytest.raises(redis.AuthenticationError):
            ours.ping()
        with client(server, certificates, password="secret") as ours:
            assert ours.ping()
            assert ours.config_get("tls-*")["tls-port"] == str(server.server.tls_port)


def test_worker_line_and_spark_connection_reach_it(server: ServerThread, certificates) -> None:
    """The worker's and Spark's own connections work with ``rediss://`` URLs and large replies."""
    url = f"{tls_url(server)}?ssl_ca_certs={certificates.ca}"

    async def use_line() -> None:
        line = Line(url)
        try:
            assert await line.call("SET", "k", b"v" * MIB) == b"OK"
            assert len(await line.call("GET", "k")) == MIB
        finally:
            await line.close()

    asyncio.run(use_line())
    connection = RawConnection(url)
    try:
        connection.request([("GET", "k")] * 8)
        assert len(connection.receive_raw()) == 8 * (MIB + len(b"$1048576\r\n\r\n"))
    finally:
        connection.close()


def test_a_server_stops_amid_the_end_of_a_connection(server: ServerThread, certificates) -> None:
    """A TLS connection that closes while the server stops is closed once, without an error."""
    raised: list[BaseException] = []
    done = threading.Event()

    def end() -> None:
        (connection,) = server.server.open_connections
        connection._transport.close()  # noqa: SLF001 - a transport that closes by itself, as asyncio's does at the end of TLS
        try:
            connection.finish()
        except AttributeError as error:
            raised.append(error)
        done.set()

    with client(server, certificates) as ours:
        assert ours.ping()
        server.server.loop.call_soon_threadsafe(end)
        assert done.wait(10)
    assert raised == []


def test_worker_line_refuses_a_server_it_cannot_trust(server: ServerThread) -> None:
    """A worker refuses a TLS server with a certificate of an unknown authority."""

    async def use_line() -> None:
        line = Line(tls_url(server))
        try:
            with pytest.raises(Disconnected, match=r"(?i)certificate.verify.failed"):
                await line.call("PING")
        finally:
            await line.close()

    asyncio.run(use_line())


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"cert_file": None}, "--tls-cert-file and --tls-key-file"),
        ({"key_file": None}, "--tls-cert-file and --tls-key-file"),
        ({"ca_cert_file": None, "auth_clients": "yes"}, "--tls-ca-cert-file"),
        ({"cert_file": "missing.crt"}, "missing.crt (--tls-cert-file) cannot be read: No such file"),
        ({"key_file": "."}, "(--tls-key-file) cannot be read: Is a directory"),
        ({"key_file": "client.key"}, "does not belong to the certificate"),
        ({"key_file": "locked.key"}, "passphrase"),
        ({"cert_file": "server.key"}, "not a certificate and a key in PEM"),
        ({"ca_cert_file": "server.key"}, "has no certificate"),
    ],
)
def test_bad_files_end_the_start_with_a_sentence(certificates, change: dict[str, Any], told: str) -> None:
    """An invalid TLS file prevents the start with one sentence that names the fault, the file and the option."""
    files = {"cert_file": "server.crt", "key_file": "server.key", "ca_cert_file": "ca.crt", "auth_clients": "no"}
    files |= change
    paths = {
        name: value if name == "auth_clients" or value is None else certificates.file(value)
        for name, value in files.items()
    }
    with pytest.raises(TlsError) as caught:
        make_context(Tls(0, **paths))
    assert told in str(caught.value)


def test_a_taken_port_is_told_with_its_option(server: ServerThread, certificates) -> None:
    """If the TLS port is in use, the error names its option."""
    tls = served(certificates)
    taken = Tls(server.server.tls_port, tls.cert_file, tls.key_file, tls.ca_cert_file, "no")
    with pytest.raises(ListenError, match="--tls-port"):
        ServerThread(tls=taken).start()


class TestProcess:
    """``millstream serve`` with TLS only, as a process."""

    @pytest.fixture
    def process(self, certificates, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
        command = [
            str(Path(sys.executable).with_name("millstream")),
            "serve",
            "--dir",
            str(tmp_path / "data"),
            "--no-tcp",
        ]
        command += ["--tls-port", "0", "--tls-auth-clients", "optional"]
        for option, name in (("cert", "server.crt"), ("key", "server.key"), ("ca-cert", "ca.crt")):
            command += [f"--tls-{option}-file", str(certificates.file(name))]
        with (tmp_path / "log").open("w") as errors:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        assert process.stdout is not None
        try:
            ready = process.stdout.readline().split()
            assert ready[:1] == ["ready"], (tmp_path / "log").read_text()
            yield process, ready[1]
        finally:
            if process.poll() is None:
                process.kill()
            process.wait(30)
            process.stdout.close()

    def test_sigterm_sends_what_is_owed_and_ends(self, process: tuple[Any, str], certificates) -> None:
        """SIGTERM ends the server with code 0 and without loss, with a connected and a waiting client."""
        running, url = process
        options = {"ssl_ca_certs": str(certificates.ca), "retry": Retry(NoBackoff(), 0)}
        with redis.Redis.from_url(url, **options) as ours:
            for number in range(50):
                ours.xadd("s", {"n": number})
            waiting = ours.connection_pool.make_connection()
            waiting.connect()
            waiting.send_command("XREAD", "BLOCK", "0", "STREAMS", "s", "$")
            running.send_signal(signal.SIGTERM)
            assert running.wait(30) == 0
            with pytest.raises(redis.ConnectionError):
                waiting.read_response()
            waiting.disconnect()

    def test_redis_cli_with_tls(self, process: tuple[Any, str], certificates) -> None:
        """redis-cli with TLS works with the server."""
        tool = program("redis-cli")
        if "--tls" not in subprocess.run([tool, "--help"], capture_output=True, text=True, check=False).stdout:
            lacking("redis-cli is built without TLS")
        port = process[1].rpartition(":")[2]
        words = [tool, "--tls", "--cacert", str(certificates.ca), "-p", port]
        shown = ["--cert", str(certificates.file("client.crt")), "--key", str(certificates.file("client.key"))]
        for entry, more in (("1-1", []), ("2-1", shown)):
            command = [*words, *more, "XADD", "s", entry, "a", "b"]
            assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == entry


def test_files_without_a_port_are_a_usage_error(certificates) -> None:
    """TLS files without ``--tls-port`` are a usage error."""
    command = [str(Path(sys.executable).with_name("millstream")), "serve", "--memory", "--port", str(free_port())]
    told = subprocess.run(
        [*command, "--tls-cert-file", str(certificates.file("server.crt"))], capture_output=True, text=True, check=False
    )
    assert told.returncode == 2
    assert "--tls-port" in told.stderr


@pytest.mark.parametrize(
    "words", [("stream", "ls", "--url"), ("spark", "ls", "--url"), ("doctor",)], ids=lambda w: w[0]
)
def test_a_certificate_that_fails_is_what_the_error_advises_about(certificates, words: tuple[str, ...]) -> None:
    """If a certificate check fails, the advice is about the authority, the file or the client's certificate."""
    ca = f"?ssl_ca_certs={certificates.ca}"
    with ServerThread(tls=served(certificates, auth_clients="yes")) as running:
        for options, step in (
            ("", "Give the server's authority in the URL (?ssl_ca_certs=FILE), correct"),
            ("?ssl_ca_certs=/nowhere.crt", "Correct the files in the URL, or"),
            (ca, "give a client certificate if it requires one (?ssl_certfile=FILE&ssl_keyfile=FILE), or"),
        ):
            done = CliRunner().invoke(main, [*words, tls_url(running) + options])
            assert done.exit_code == 3, done.output
            assert step in done.output


def test_a_publish_advises_about_a_certificate_that_fails(certificates) -> None:
    """The error of an app's own code does not advise to start a server that runs."""
    with ServerThread(tls=served(certificates)) as running, pytest.raises(Disconnected) as told:
        App(tls_url(running)).publish_sync("s", {"n": 1})
    assert "Give the server's authority in the URL (?ssl_ca_certs=FILE)" in str(told.value)
    assert str(told.value).endswith("correct the server's certificate, or correct the URL. Nothing was added.")

"""A link between servers over TLS: ours to ours, ours to Redis, Redis to ours, and refused connections."""

from pathlib import Path

import pytest

from millstream.server.thread import ServerThread
from millstream.server.tls import Tls, TlsError, make_link_context
from replication.test_following_redis import follow, info, seen, wait_level, write
from support.certificates import Certificates, make_certificates
from support.ports import free_port
from support.servers import millstream_server, redis_server
from support.waiting import eventually
from support.wire import Wire

pytestmark = pytest.mark.realserver


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(Path(tmp_path_factory.mktemp("certificates")))


def words(files: Certificates, port: int, *, own: str = "server") -> list[str]:
    """Return options that our server and Redis have in common."""
    found = ["--tls-port", str(port), "--tls-ca-cert-file", str(files.ca)]
    return [*found, "--tls-cert-file", str(files.file(f"{own}.crt")), "--tls-key-file", str(files.file(f"{own}.key"))]


def ours(files: Certificates, port: int | None = 0) -> Tls:
    return Tls(port, files.file("server.crt"), files.file("server.key"), files.ca, replication=True)


def test_we_follow_redis_over_tls(files: Certificates, tmp_path: Path) -> None:
    """Millstream follows a Redis over TLS with a client certificate: a copy, the stream, and a cut."""
    port = free_port()
    with (
        redis_server(tmp_path, "--enable-debug-command", "yes", *words(files, port)) as primary,
        ServerThread(tmp_path / "ours", tls=ours(files, None)) as server,
        Wire(primary.url) as theirs,
        Wire(server.url) as mine,
    ):
        write(theirs, 1, 300)
        follow(mine, port)
        wait_level(mine, theirs)
        write(theirs, 2, 300)
        assert theirs.ask("CLIENT", "KILL", "TYPE", "replica") == 1
        wait_level(mine, theirs)
        assert seen(mine) == seen(theirs)
        assert info(mine)["millstream_full_syncs_taken"] == "1"


def test_redis_follows_us_over_tls(files: Certificates, tmp_path: Path) -> None:
    """A Redis follows Millstream over TLS, and FAILOVER changes the roles, since each announces its TLS port."""
    port, other = free_port(), free_port()
    options = [*words(files, other), "--tls-replication", "yes", "--enable-debug-command", "yes"]
    with (
        redis_server(tmp_path / "theirs", *options) as replica,
        millstream_server(tmp_path / "ours", *words(files, port), "--tls-replication") as primary,
        Wire(replica.url) as theirs,
        Wire(primary.url) as mine,
    ):
        write(mine, 3, 300)
        theirs.ask("REPLICAOF", "127.0.0.1", port)
        wait_level(theirs, mine)
        assert seen(mine) == seen(theirs)
        assert f"port={other}," in info(mine)["slave0"]
        assert mine.ask("FAILOVER") == b"OK"
        eventually(lambda: info(mine)["role"] == "slave", what="the roles have changed")
        write(theirs, 4, 100)
        wait_level(mine, theirs)
        assert seen(mine) == seen(theirs)
        assert info(mine)["master_port"] == str(other)
        assert mine.ask("CONFIG", "GET", "tls-replication") == [b"tls-replication", b"yes"]


def test_ours_follow_ours_and_no_other_authority(files: Certificates, tmp_path: Path) -> None:
    """Millstream follows Millstream over TLS, but not a primary whose certificate another authority signed."""
    false = Tls(0, files.file("other_client.crt"), files.file("other_client.key"), files.ca, auth_clients="no")
    with (
        ServerThread(tmp_path / "first", tls=ours(files)) as first,
        ServerThread(tls=false) as stranger,
        ServerThread(tmp_path / "second", tls=ours(files)) as second,
        Wire(first.url) as primary,
        Wire(second.url) as replica,
    ):
        write(primary, 5, 200)
        follow(replica, first.server.tls_port)
        wait_level(replica, primary)
        write(primary, 6, 200)
        wait_level(replica, primary)
        assert seen(replica) == seen(primary)
        before = seen(replica)
        follow(replica, stranger.server.tls_port)
        eventually(lambda: "certificate verify failed" in info(replica)["millstream_link_error"], what="it is refused")
        assert seen(replica) == before


def test_what_a_link_needs(files: Certificates) -> None:
    """TLS for a link requires an authority, and a certificate requires its key; else the start fails."""
    with pytest.raises(TlsError, match="give its certificate with --tls-ca-cert-file"):
        make_link_context(Tls(None, replication=True))
    with pytest.raises(TlsError, match="give both"):
        make_link_context(Tls(None, files.file("server.crt"), None, files.ca, replication=True))
    with pytest.raises(TlsError, match="has no certificate"):
        make_link_context(Tls(None, None, None, files.file("server.key"), replication=True))

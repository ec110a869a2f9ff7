"""Find the data directory of a server's URL, if that server runs on this machine."""

from pathlib import Path

import redis

from millstream.client.connect import sync_client
from millstream.client.url import check_remote, no_connection, remedy
from millstream.errors import MillstreamError, UsageError
from millstream.persistence.disk import RealDisk
from millstream.persistence.lockfile import read_owner
from millstream.printable import without_password

TIMEOUT = 10.0  # seconds for one reply: a server that needs longer for its directory has a problem


class UnreachableError(MillstreamError):
    """The server cannot be reached, or refuses the connection.

    What to do: start the server, or correct --url. The message has the error of the connection.
    """


def directory_of(url: str) -> Path:
    """Request the data directory from a server, and check that it is on this machine."""
    named = without_password(url)
    client = sync_client(
        check_remote(url), socket_timeout=TIMEOUT, socket_connect_timeout=TIMEOUT, decode_responses=True
    )
    with client:
        try:
            info = client.info("server")
            answer = client.config_get("dir")
        except redis.RedisError as error:
            raise UnreachableError(
                f"{no_connection(url, error)} {remedy(url, error)}, or give its data directory instead of the URL."
            ) from error
    if "millstream_version" not in info:
        raise UsageError(
            f"the server at {named} is not Millstream, so its files cannot be copied: `millstream export` copies its "
            "streams"
        )
    path = Path(str(answer["dir"]))
    # This path may also exist on this machine, for another directory: the process in the lock file decides
    if not answer["dir"]:
        raise UsageError(f"the server at {named} keeps its data in memory: `millstream export` copies its streams")
    owner = read_owner(RealDisk(), path) if path.is_dir() else None
    if owner is None or owner.pid != info["process_id"]:
        raise UsageError(
            f"the server at {named} keeps its data in {path} on another machine, or where this user sees other "
            "processes: run `millstream backup` there, or copy the streams from here with `millstream export`"
        )
    return path

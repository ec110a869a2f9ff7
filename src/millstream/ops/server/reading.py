"""Reading a server's state from INFO and SLOWLOG, and the replication tree of several servers."""

import asyncio
import contextlib
import socket
from collections.abc import Mapping
from dataclasses import replace
from urllib.parse import urlsplit

from millstream.client.discovery.sentinel import master_address
from millstream.client.line import Command, Line
from millstream.client.url import CLUSTERS, SENTINELS
from millstream.errors import MillstreamError
from millstream.ops.asking import calls, refusal
from millstream.ops.server.replicas import AskedServer, ReplicationPlace, addresses, standings
from millstream.ops.server.retention import SETTINGS, RetentionStatus, settings_of
from millstream.ops.server.status import ServerStatus, parse_info, server_status, slow_commands
from millstream.ops.words import text_of
from millstream.printable import without_password

_SLOW = 10_000
"""Limit of SLOWLOG rows that are read, high enough to include the longest: servers keep 128 by default."""
_NEEDS = "min-replicas-to-write"
_OTHER = "its answer does not belong to this command: it may not be a Redis server"


async def server(line: Line) -> list[ServerStatus]:
    """Read the state of each server: one, or the nodes of a cluster that have slots.

    Parts that a server refuses are left out, with the reason.
    """
    return [await _one(node) for node in await line.nodes()]


async def _one(line: Line) -> ServerStatus:
    at_ms = line.wall_time()
    # A server without a tier returns an empty section
    asked: list[Command] = [("INFO",), ("INFO", "commandstats"), ("SLOWLOG", "GET", _SLOW), ("INFO", "tier"), SETTINGS]
    whole, costs, slow, tier, settings = await calls(line, asked)
    rows = None if refusal(slow) is not None else slow_commands(slow)
    fits = {"info": isinstance(whole, bytes), "costs": isinstance(costs, bytes), "slow": rows is not None}
    missing = {
        name: refusal(reply) or _OTHER
        for name, reply in (("info", whole), ("costs", costs), ("slow", slow))
        if not fits[name]
    }
    info = parse_info("\n".join(text_of(reply) for reply in (whole, costs, tier) if isinstance(reply, bytes)))
    found = server_status(info, at_ms)
    rules, counted = settings_of(settings), found.retention or RetentionStatus()
    if rules is not None:
        found = replace(found, retention=replace(counted, text=rules.text, holds=rules.holds))
    return replace(found, slow=rows or (), missing=missing)


async def standing(line: Line) -> list[ServerStatus]:
    """Read each server's state mostly from INFO alone, so that it can be read often; see :func:`server`."""
    return list(await asyncio.gather(*(_standing(node) for node in await line.nodes())))


async def _standing(line: Line) -> ServerStatus:
    at_ms = line.wall_time()
    (whole,) = await calls(line, [("INFO",)])
    if not isinstance(whole, bytes):
        return replace(server_status({}, at_ms), missing={"info": refusal(whole) or _OTHER})
    found = server_status(parse_info(text_of(whole)), at_ms)
    if found.replication is None or found.replication.good_replicas is None:
        return found
    (reply,) = await calls(line, [("CONFIG", "GET", _NEEDS)])  # without the permission, the figure is missing
    needs = text_of(reply[1]) if isinstance(reply, list) and len(reply) == 2 and isinstance(reply[1], bytes) else ""
    known = int(needs) if needs.isdecimal() and len(needs) < 20 else None
    return replace(found, replication=replace(found.replication, needs_replicas=known))


async def followers(lines: Mapping[str, Line]) -> list[ReplicationPlace]:
    """Read the replication tree of servers at once; a server that does not reply is marked so."""
    asked = await asyncio.gather(*(_asked(url, line) for url, line in lines.items()))
    named = sorted(addresses(asked))
    return standings(asked, dict(zip(named, await asyncio.gather(*map(_name, named)), strict=True)))


async def _asked(url: str, line: Line) -> AskedServer:
    try:
        address = await _address(url)
    except MillstreamError as error:
        return AskedServer(without_password(url), None, str(error))
    try:
        return AskedServer(address, await _one(line))
    except MillstreamError as error:
        return AskedServer(address, None, str(error))


async def _address(url: str) -> str:
    """Return host and port of the server at a URL; for a Sentinel service, those of its present primary."""
    if url.startswith(SENTINELS):
        host, port = await asyncio.to_thread(master_address, url)
        return f"{host}:{port}"
    parts = urlsplit(url)
    if not parts.hostname or url.startswith(CLUSTERS):
        return without_password(url)
    return f"{parts.hostname}:{parts.port or 6379}"


async def _name(address: str) -> str:
    """Return the address with its host resolved, since servers may use other names for the same host."""
    host, _, port = address.rpartition(":")
    with contextlib.suppress(OSError, UnicodeError):
        found = await asyncio.get_running_loop().getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)
        host = min(str(place[0]) for *_, place in found)
    return f"{host}:{port}"

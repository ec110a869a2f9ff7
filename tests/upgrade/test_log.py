"""What 0.1's server wrote to disk is read whole by the present one: log, backup, file of commands."""

from pathlib import Path
from typing import Any

import redis

from support.servers import ServerProcess
from support.versions import FIXTURES, here, new, on_recorded_log, unpack
from upgrade import kept
from upgrade.record import fields_of, shapes

STATE = kept.read(FIXTURES / "log.json.xz")
SHOWN = kept.read(FIXTURES / "shown.json")


def lasting(state: dict[str, object]) -> dict[str, object]:
    """Without the keys that end by themselves, which may have done so since they were recorded."""
    ending = {each["key"] for each in STATE["volatile"]["keys"]}
    return {key: value for key, value in state.items() if key not in ending}


def databases(client: redis.Redis) -> dict[str, dict[str, object]]:
    """What is in the databases that were used."""
    found = {"0": lasting(kept.shown(client))}
    client.execute_command("SELECT", 3)
    found["3"] = kept.shown(client)
    client.execute_command("SELECT", 0)
    return found


RECORDED = {"0": lasting(STATE["databases"]["0"]), "3": STATE["databases"]["3"]}


def test_a_recorded_log_gives_the_same_state(recorded: ServerProcess) -> None:
    """Values of every type, streams with groups, pending and released entries, counters, times to live, users."""
    assert len(RECORDED["0"]) > 15  # there is something to compare
    with recorded.client(**kept.TEXT) as client:
        assert databases(client) == RECORDED
        assert client.acl_list() == STATE["users"]


def test_a_recorded_log_goes_on(tmp_path: Path) -> None:
    """Written to, rewritten, started again: the new record stands behind the recorded ones."""
    with on_recorded_log(tmp_path) as server:
        with server.client(**kept.TEXT) as client:
            added = client.xadd("events", {"by": "the present version"}, id="1700000001000-*")
            before = databases(client)
            client.execute_command("BGREWRITEAOF")
        assert added == "1700000001000-1"
        server.kill()
        server.start()
        with server.client(**kept.TEXT) as client:
            assert databases(client) == before


def test_a_recorded_backup_is_restored(tmp_path: Path) -> None:
    """``millstream restore`` makes a data directory of it, and a server shows the state of that moment."""
    backup = unpack("backup", tmp_path)
    done = here("restore", str(backup), str(tmp_path / "data"), "-o", "json")
    assert done.exit_code == 0, done.output
    with new().server(tmp_path) as server, server.client(**kept.TEXT) as client:
        assert databases(client) == RECORDED


def test_a_recorded_file_of_commands_is_imported(tmp_path: Path) -> None:
    """Streams, groups and pending entries of ``millstream export`` are those that were exported."""
    with new().server(tmp_path) as server, server.client(**kept.TEXT) as client:
        done = here("import", str(FIXTURES / "export.resp.gz"), "--to", server.url)
        assert done.exit_code == 0, done.output
        found = kept.shown(client)
        assert sorted(found) == ["empty", "events", "orders", "orders:bills", "orders:dead"]
        for key, stream in found.items():
            was = STATE["databases"]["0"][key]["value"]
            now = stream["value"]
            for name in ("length", "last-generated-id", "entries-added", "max-deleted-entry-id", "entries"):
                assert now[name] == was[name], (key, name)
            assert _groups(now) == _groups(was)


def _groups(stream: dict[str, Any]) -> list[Any]:
    """What commands carry of groups: places, and pending entries that are there, with owners and counts."""
    there = {ident for ident, _ in stream["entries"]}
    return [
        [group["name"], group["last-delivered-id"], group["entries-read"]]
        + [one for one in group["pending"] if one[0] in there]
        for group in stream["groups"]
    ]


def test_names_that_a_server_shows_stay(recorded: ServerProcess) -> None:
    """INFO, CONFIG, commands, categories, CLIENT LIST: more is welcome, nothing goes."""
    found = fields_of(recorded)
    gone = {kind: sorted(set(names) - set(found[kind])) for kind, names in SHOWN["server"].items()}
    assert not any(gone.values()), gone


def cli(words: list[str]) -> tuple[str, str]:
    """The present version's command line."""
    done = here(*words)
    return done.stdout, done.stderr


def test_names_in_json_that_commands_show_stay(tmp_path: Path) -> None:
    """Every subcommand with ``-o json`` shows each field that 0.1 showed of the same state."""
    unpack("archive", tmp_path)
    with on_recorded_log(tmp_path) as server:
        with server.client(**kept.TEXT) as client:
            kept.put(client, STATE["volatile"])
        found = shapes(cli, server.url, tmp_path / "data", tmp_path / "archive", tmp_path / "shown")
    gone = {name: sorted(set(names) - set(found[name])) for name, names in SHOWN["commands"].items()}
    assert not any(gone.values()), gone

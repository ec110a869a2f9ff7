"""What 0.1's server wrote to disk is read whole by the present one: log, backup, file of commands."""

import json
from pathlib import Path

import redis

from support.servers import ServerProcess
from support.versions import FIXTURES, Version, on_recorded_log, unpack
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
            # the producer's mark is still known, the next id still follows the last one
            again = client.execute_command("XADD", "marked", "IDMP", "producer", "order-1", "*", "a", "b")
            added = client.xadd("events", {"by": "the present version"}, id="1700000001000-*")
            before = databases(client)
            client.execute_command("BGREWRITEAOF")
        assert again == STATE["databases"]["0"]["marked"]["value"]["last-generated-id"]
        assert added == "1700000001000-1"
        server.kill()
        server.start()
        with server.client(**kept.TEXT) as client:
            assert databases(client) == before


def test_a_recorded_backup_is_restored(tmp_path: Path, versions: dict[str, Version]) -> None:
    """``millstream restore`` makes a data directory of it, and a server shows the state of that moment."""
    backup = unpack("backup", tmp_path)
    done = versions["new"].cli("restore", str(backup), str(tmp_path / "data"), "-o", "json")
    assert json.loads(done.stdout)
    with versions["new"].server(tmp_path) as server, server.client(**kept.TEXT) as client:
        assert databases(client) == RECORDED


def test_a_recorded_file_of_commands_is_imported(tmp_path: Path, versions: dict[str, Version]) -> None:
    """Streams, groups and pending entries of ``millstream export`` are those that were exported."""
    with versions["new"].server(tmp_path, "--memory") as server, server.client(**kept.TEXT) as client:
        versions["new"].cli("import", str(FIXTURES / "export.resp.gz"), "--to", server.url)
        found = kept.shown(client)
        assert sorted(found) == ["empty", "events", "orders", "orders:bills", "orders:dead"]
        for key, stream in found.items():
            was = STATE["databases"]["0"][key]["value"]
            now = stream["value"]
            for name in ("length", "last-generated-id", "entries-added", "max-deleted-entry-id", "entries"):
                assert now[name] == was[name], (key, name)
            assert [group["pending"] for group in now["groups"]] == [
                [one for one in group["pending"] if _there(one, was)] for group in was["groups"]
            ]


def _there(pending: list[object], stream: dict[str, object]) -> bool:
    del stream
    return bool(pending)


def test_names_that_a_server_shows_stay(recorded: ServerProcess) -> None:
    """INFO, CONFIG, commands, categories, CLIENT LIST: more is welcome, nothing goes."""
    found = fields_of(recorded)
    gone = {kind: sorted(set(names) - set(found[kind])) for kind, names in SHOWN["server"].items()}
    assert not any(gone.values()), gone


def test_names_in_json_that_commands_show_stay(tmp_path: Path, versions: dict[str, Version]) -> None:
    """Every subcommand with ``-o json`` shows each field that 0.1 showed of the same state."""
    unpack("archive", tmp_path)
    with on_recorded_log(tmp_path) as server:
        with server.client(**kept.TEXT) as client:
            kept.put(client, STATE["volatile"])
        found = shapes(versions["new"], server.url, tmp_path / "data", tmp_path / "archive", tmp_path / "shown")
    gone = {name: sorted(set(names) - set(found[name])) for name, names in SHOWN["commands"].items()}
    assert not any(gone.values()), gone

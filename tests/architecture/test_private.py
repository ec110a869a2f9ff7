"""Tests see what a user could see: the private names they read, and the limits they replace, are two short lists.

Who reads a private name ties the test to how a thing is done. Show it where a user would want it too (INFO, a
property), test through behaviour, or make the limit an argument. What is left is here, each with its reason.
"""

import textwrap
from pathlib import Path

import pytest

from support.privates import private_names, reads, replaced_limits
from support.source import ROOT, Module, modules

PRIVATE = {
    "test_glob.py: _SMALL": "which of two searches is taken must not show in what is found; small inputs take one",
    "test_machine.py: _cron": "the model of the state machine has to know at which tick the node looks at messages",
    "test_ordered.py: _pieces": "that no piece is empty or too long shows in nothing but the time taken",
    "test_pending.py: _records": "that ids which left are forgotten shows in nothing but the memory taken",
    "state.py: _blocks": "the store of the Python core, whose nodes' insides are checked after every step",
    "state.py: _firsts": "an index beside the blocks, whose drift would show in wrong entries much later",
    "test_plain.py: _runner": "the runner in Python, which obeys the ordinary way, beside the native one",
    "crowded.py: _disk": "the way to the two below",
    "crowded.py: _held": "the way to the one below",
    "crowded.py: _spare": "a process that has used up its reserve of descriptors too",
    "test_tls.py: _transport": "a transport that closes on its own accord, as asyncio's does at the end of TLS",
    "killed_driver.py: _streams": "a driver that dies between the cursors of two streams, which travel in one round",
    "test_objects.py: _wait": "the moment at which a store's list catches up has to be the test's own",
    "test_frozen.py: _sending": "the way to the one below",
    "test_frozen.py: _tries": "that the first try was given up shows in nothing but its closed connection",
    "test_stopping.py: _sweep_at": "takes away every reason to wake up but the one that the test is about",
}

DEEP = "made anew for each task or connection, far from what a test makes"
LIMITS = {
    "test_glob.py: MOST_EFFORT": "one bound for all patterns; reaching it takes half a second for each",
    "test_acl.py: MOST_EFFORT": "the same",
    "test_large_changes.py: CHANGE_MAX": "a limit of the protocol, of which there is one list; 1 GiB takes minutes",
    "test_batch.py: CHANGE_MAX": "the same, and of the very command that passes it",
    "test_obeying.py: CHANGE_MAX": "the same, of what a primary sends",
    "test_large_changes.py: LARGE_BYTES": "the same for a snapshot",
    "test_large_changes.py: NAMED": "the same for a round of expiry",
    "test_doctor.py: NAME": "which core runs is decided once, when a process begins",
    "test_doctor.py: IS_CHOSEN": "the same",
    "test_log.py: MAX_PAYLOAD": "2 GiB do not fit this machine",
    "test_reader.py: QUERY_BUFFER_MAX": "a limit of the protocol; 1 GiB",
    "test_sessions.py: QUERY_BUFFER_MAX": "the same",
    "test_commands.py: MAX_BYTES": "512 MiB of one string",
    "child.py: MEMORY": "of Lua: 256 MiB for each script",
    "test_memory.py: MEMORY": "the same",
    "test_scripts.py: MEMORY": "the same",
    "test_takeover.py: MEMORY": "the same",
    "test_wrong_replies.py: AT_ONCE": "a page that begins before all of it is known would take a server that is slow",
    "test_link_shown.py: QUICK_SECONDS": "so that the thread syncs, and the loop goes on meanwhile",
    "test_sync_replicas.py: STALLED": "never, where all must come in before; at once, where seconds would be waited",
    "test_frozen.py: LIMIT": "ten seconds of a frozen server for each of eight clients",
    "test_slow_readers.py: MOST": "as many pages as a console keeps live are more than a test should open",
    "test_slow_readers.py: PATIENCE": DEEP,
    "test_payloads.py: PATIENCE": DEEP,
    "test_reader.py: FIRST_COUNT": DEEP,
    "test_reader.py: MOST_COUNT": DEEP,
    "test_replay.py: FIRST_COUNT": DEEP,
    "test_replay.py: MOST_COUNT": DEEP,
    "test_routing.py: FIRST_COUNT": DEEP,
    "test_routing.py: MOST_COUNT": DEEP,
    "test_routing.py: PIECE_ROWS": DEEP,
    "test_routing.py: REPLICA_SECONDS": DEEP,
    "test_encode_rows.py: BATCH_BYTES": DEEP,
    "test_group.py: PAGE": DEEP,
    "test_views.py: PAGE": DEEP,
    "test_planner.py: SCAN_SECONDS": DEEP,
    "test_sink.py: PIECE_ROWS": DEEP,
    "test_tables.py: GROUP_ROWS": DEEP,
    "killed_driver.py: PIECE_ROWS": DEEP,
    "retried_driver.py: PIECE_ROWS": DEEP,
    "test_archive_spark.py: PARTS": "nobody sets it: as many files as a batch has would take the test seconds",
    "test_actions.py: PATIENCE": "nobody sets it: from when on a change has a page of its own",
    "test_actions.py: RUNNING": "nobody sets it: so many slow changes would take the test seconds each",
    "test_entry_filters.py: LOOKED_AT": "nobody sets it: a page looks at thousands of entries",
    "test_log_copy.py: MOST_FILES": "nobody sets it: a log of so many files has gigabytes",
    "test_health.py: BEAT": "no option of an app: whoever watches workers counts on one rhythm",
    "test_registry.py: BEAT": "the same",
    "test_watchdog.py: BEAT": "the same",
    "test_watchdog.py: TTL_MS": "the same",
}


@pytest.fixture(scope="module")
def tests() -> list[Module]:
    """Those of the tests that stand for a user; tests/upgrade has the source of another version."""
    return [
        module
        for module in modules(ROOT / "tests")
        if not {"architecture", "upgrade", "faults"} & set(module.path.relative_to(ROOT / "tests").parts)
    ]


def test_no_other_private_name_is_read(tests: list[Module]) -> None:
    """One more is a decision, and a reason here; one that is gone leaves this list."""
    names = private_names(modules(ROOT / "src"))
    assert {found for module in tests for found in reads(module, names)} == set(PRIVATE)
    assert len(PRIVATE) < 20


def test_no_other_limit_is_replaced(tests: list[Module]) -> None:
    """A limit that a test wants small is an argument."""
    assert {found for module in tests for found in replaced_limits(module)} == set(LIMITS)


@pytest.mark.parametrize(
    "line",
    ["node._cron", "patch.setattr(node, '_cron', 1)", "patch.setattr('millstream.node._cron', 1)",
     "from millstream.node.node import _cron"],
)  # fmt: skip
def test_a_private_name_is_noticed(tmp_path: Path, line: str) -> None:
    """Read, replaced by name, replaced by its dotted name, imported."""
    assert reads(planted(tmp_path, line), frozenset({"_cron"})) == ["test_it.py: _cron"]


def test_names_of_the_tests_own_are_theirs(tmp_path: Path) -> None:
    """Also where the source has one that is called the same; and what is inherited may be used."""
    assert reads(planted(tmp_path, "self._cron = 1", "other._cron"), frozenset({"_cron"})) == []
    assert reads(planted(tmp_path, "super()._cron()"), frozenset({"_cron"})) == []


@pytest.mark.parametrize("line", ["patch.setattr(pages, 'MOST', 1)", "pages.MOST = 1", "patch.setattr('a.MOST', 1)"])
def test_a_replaced_limit_is_noticed(tmp_path: Path, line: str) -> None:
    """However it is done."""
    assert replaced_limits(planted(tmp_path, line)) == ["test_it.py: MOST"]


def planted(folder: Path, *lines: str) -> Module:
    """A module of these lines."""
    path = folder / "test_it.py"
    path.write_text(textwrap.dedent("\n".join(lines) + "\n"))
    return Module(path, folder)

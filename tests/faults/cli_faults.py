"""Faults in the command line: ways to lose work, or to believe what a stranger wrote."""

from faults.planting import Fault

PUT_BACK = "tests/worker/test_dead.py::test_only_the_group_that_gave_up_gets_it_again"

FAULTS = (
    Fault(
        "second-termination-kills",
        "SIGTERMs within two seconds are one.",
        "ending.py",
        "Ending.at_once",
        "return number == signal.SIGINT or now - self._first > ONE_WISH",
        "return number == signal.SIGINT or now >= self._first",
        "tests/cli/test_signals.py::test_terminations_within_two_seconds_are_one",
    ),
    Fault(
        "put-back-for-every-group",
        "An entry that is put back is run by the group that gave up on it, and by no other.",
        "client/dead_letter/letter.py",
        "returning",
        "death |= {'for': letter.group, 'of': letter.stream}",
        "death |= {'to': letter.group, 'of': letter.stream}",
        f"{PUT_BACK}[redis-each]",
    ),
    Fault(
        "put-back-for-no-group",
        "The group that gave up on an entry gets it when it is put back.",
        "worker/subscriber/intake.py",
        "Intake._pass_over",
        "[held for held in found if isinstance(held, Returned) and meant_for(held.history, stream) not in mine]",
        "[held for held in found if isinstance(held, Returned) and meant_for(held.history, stream) is not None]",
        f"{PUT_BACK}[redis-each]",
    ),
    Fault(
        "passed-over-and-left-pending",
        "What was put back for another group is acknowledged.",
        "worker/subscriber/intake.py",
        "Intake._pass_over",
        "self._acks.ack(held)",
        "held.step(Event.LEAVE)",
        f"{PUT_BACK}[redis-manual]",
        which="2 of 2",
    ),
    Fault(
        "manifest-believed",
        "A manifest whose JSON is not ours is damaged, whatever its checksum says.",
        "persistence/manifest.py",
        "Manifest.decode",
        """
        try: ...
        except MISSHAPEN as reason: ...
        """,
        """
        try: ...
        except EOFError as reason: ...
        """,
        "tests/cli/test_hostile.py::test_hostile_inputs_end_no_subcommand",
    ),
    Fault(
        "registry-believed",
        "A record that no worker wrote is passed over.",
        "worker/registry/protocol.py",
        "read_workers",
        "record = None if wrong_type else facts.parse(worker, _checked(reply))",
        "record = None if wrong_type else json.loads(_checked(reply))",
        "tests/cli/test_worker.py::test_a_record_that_no_worker_wrote_is_named_and_passed_over[real_server]",
    ),
    Fault(
        "terminal-obeys-a-stranger",
        "What is shown moves no terminal's cursor.",
        "printable.py",
        "printable",
        "if text.isprintable(): ...",
        "if text: ...",
        "tests/cli/test_tables.py::test_nothing_that_is_shown_moves_a_cursor[table]",
    ),
)

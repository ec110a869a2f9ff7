"""Faults in the Spark source: ways to read an entry twice or never."""

from faults.planting import Fault

OFFSETS = "tests/spark/test_offsets.py"
PLANNER = "tests/spark/test_planner.py"
ARCHIVE = "tests/spark/test_archive.py"
SINK = "tests/spark/test_sink.py"

FAULTS = (
    Fault(
        "offsets-in-any-order",
        "The same offset is the same text.",
        "spark/offsets.py",
        "    for key in sorted(offset):\n",
        "    for key in offset:\n",
        f"{OFFSETS}::test_an_offset_survives_the_checkpoint_and_has_one_text",
    ),
    Fault(
        "batch-begins-with-the-last-read",
        "Batches that follow each other share no entry.",
        "spark/offsets.py",
        "        return Position(self.id, self.n, ident, n, holes)\n",
        "        return Position(self.start, self.start_n, ident, n, holes)\n",
        f"{PLANNER}::test_the_cap_is_never_exceeded_and_nothing_is_left_out",
    ),
    Fault(
        "first-batch-not-repeated",
        "A first batch that failed is repeated from its own beginning.",
        "spark/offsets.py",
        "        low, low_n = to.start, to.start_n\n        if since is not None and since.id < low:\n",
        "        low, low_n = to.start, to.start_n\n        if since is not None:\n",
        f"{OFFSETS}::test_a_first_batch_that_failed_is_repeated_from_its_own_beginning",
    ),
    Fault(
        "loss-passed-over",
        "Entries that were trimmed before they were read are an error.",
        "spark/offsets.py",
        "    gone = state.removed - at.n - at.holes\n    if gone <= 0",
        "    gone = state.removed - at.n - at.holes\n    if gone >= 0",
        f"{PLANNER}::test_trimmed_past_the_checkpoint_names_the_range",
    ),
    Fault(
        "old-state-read-on",
        "A stream that went back is an error.",
        "spark/offsets.py",
        "    if state.added < at.n:\n",
        "    if state.added < 0:\n",
        f"{OFFSETS}::test_going_back_is_seen_by_id_by_count_and_by_absence",
    ),
    Fault(
        "cap-exceeded",
        "A batch holds no more entries than allowed.",
        "spark/offsets.py",
        "        found[key] = min(wanted[key], cap // (len(chosen) - place))\n",
        "        found[key] = min(wanted[key], cap)\n",
        f"{OFFSETS}::test_shares_keep_the_cap_and_waste_nothing",
    ),
    Fault(
        "parts-overlap",
        "The parts of a batch hold each entry once.",
        "spark/offsets.py",
        "    starts = [whole.start, *ends[:-1]]\n",
        "    starts = [whole.start] * len(ends)\n",
        f"{OFFSETS}::test_parts_cover_the_range_exactly_once",
    ),
    Fault(
        "pending-not-held",
        "Nothing a group has not acknowledged is trimmed.",
        "spark/archiving/trim.py",
        "  if group['pending'] > 0 then\n",
        "  if group['pending'] < 0 then\n",
        f"{ARCHIVE}::test_what_a_group_needs_stays",
    ),
    Fault(
        "archived-beside-the-end",
        "A batch is taken where the archive ends and nowhere else.",
        "spark/archiving/manifest.py",
        "            if at is not None and read.start != at.id:\n",
        "            if at is not None and read.start > at.id:\n",
        "tests/spark/test_manifest.py::test_batches_join_without_gap_or_overlap",
    ),
    Fault(
        "tail-not-after-the-archive",
        "Archive and stream share no entry.",
        "spark/archiving/union.py",
        "                start, end = max(after, place.id), min(until, state.last)\n",
        "                start, end = after, min(until, state.last)\n",
        "tests/spark/test_union.py::test_live_entries_follow_the_archive",
    ),
    Fault(
        "replayed-again-after-a-lost-reply",
        "A transaction whose reply was lost is not done twice.",
        "spark/archiving/replay.py",
        "        return found == batch.last\n",
        "        return False\n",
        "tests/spark/test_replay.py::test_a_lost_reply_is_not_written_twice",
    ),
    Fault(
        "sink-takes-the-new-rows",
        "A batch that was decided upon goes on with its own rows.",
        "spark/publishing.py",
        "            if known is not None and known.version >= version:\n",
        "            if known is not None and known.version > version:\n",
        f"{SINK}::test_a_driver_killed_at_any_step_is_repeated_to_the_same_end",
    ),
    Fault(
        "sink-abort-takes-all",
        "An abort after a decision leaves the rows for the next try.",
        "spark/publishing.py",
        "        known = self._ledger.known() if self._lasting else None\n",
        "        known = None\n",
        f"{SINK}::test_an_abort_after_a_decision_leaves_the_rows_for_the_next_try",
    ),
    Fault(
        "sink-refused-piece-counts",
        "A piece whose rows were refused does not count as published.",
        "spark/publishing.py",
        "        if len(errors) == len(results):\n",
        "        if len(errors) > len(results):\n",
        f"{SINK}::test_a_target_replaced_while_publishing_loses_no_row",
    ),
    Fault(
        "sink-publishes-half",
        "Staged rows that vanished are an error before anything is seen.",
        "spark/publishing.py",
        "            if pieces != part.pieces:\n",
        "            if pieces > part.pieces:\n",
        f"{SINK}::test_staged_rows_that_vanished_are_an_error_before_anything_is_seen",
    ),
)

"""Faults in what streams, groups and pending entries do."""

from faults.planting import ASSERTION, Fault

MACHINE = "tests/engine/test_machine.py::test_commands_answer_as_the_model_and_the_log_says_it_all"
REFERENCE = "tests/seeds/test_streams_reference.py"
LAG = "tests/engine/test_lag.py"

FAULTS = (
    Fault(
        "budget-without-a-streams-header",
        "MAXSIZE counts every byte of the reply but its outermost header.",
        "commands/streams_read.py",
        '        self.size += len(b"*%d\\r\\n" % count)\n',
        "",
        "tests/commands/test_read_budgets.py::test_a_budget_leaves_the_longest_beginning_that_it_allows",
    ),
    Fault(
        "ack-forgets-the-consumer",
        "An acknowledged entry leaves the consumer's list as well as the group's.",
        "engine/group.py",
        "        self.pending.remove(entry_id)\n        if record.consumer is not None:\n"
        "            record.consumer.pending.remove(entry_id)\n        return True\n",
        "        self.pending.remove(entry_id)\n        return True\n",
        f"{REFERENCE}::test_a_consumers_history_is_what_it_has_not_acknowledged",
        (*ASSERTION, "TypeError"),  # an error is replied where the history should be
    ),
    Fault(
        "claim-leaves-the-old-owner",
        "A claimed entry has one owner.",
        "engine/group.py",
        "                if record.consumer is not None:\n"
        "                    record.consumer.pending.remove(entry_id)\n"
        "                consumer.pending.add(record)\n",
        "                consumer.pending.add(record)\n",
        "tests/seeds/test_xclaim.py::test_the_way_from_a_failed_consumer_to_another",
    ),
    Fault(
        "released-entry-behind-the-owned",
        "Released entries are claimed first, in the order of their release.",
        "engine/pending.py",
        "        self._link(record, self._zone_end)\n        self._zone_end = record\n",
        "        self._link(record, None)\n        self._zone_end = record\n",
        "tests/engine/test_pending.py::test_time_order_is_the_released_first_then_by_time",
    ),
    Fault(
        "time-order-by-arrival",
        "Entries are claimed by the time of their delivery, oldest first.",
        "engine/pending.py",
        "earlier = self._times.add(time)",
        "earlier = self._times.add(time) and None",
        "tests/engine/test_pending.py::test_time_order_is_the_released_first_then_by_time",
    ),
    Fault(
        "index-loses-early-ids",
        "An entry that becomes pending again at an old id is found.",
        "engine/ordered.py",
        "piece.insert(at, number)",
        "piece.append(number)",
        "tests/engine/test_pending.py::test_the_index_by_id_is_a_sorted_dictionary",
        (*ASSERTION, "ExceptionGroup"),  # hypothesis tells of two ways to fail in one
    ),
    Fault(
        "delivery-not-counted",
        "Each delivery counts one.",
        "engine/stream_ops.py",
        "        found.assign(entry_id, holder, now, next_count(record.count))\n",
        "        found.assign(entry_id, holder, now, record.count)\n",
        f"{REFERENCE}::test_reading_again_counts_a_delivery_and_notes_the_time",
    ),
    Fault(
        "lag-of-a-gap-invented",
        "A lag that cannot be known is not told.",
        "engine/stream.py",
        "        if group.entries_read != UNKNOWN and not self.has_gap_after(group.last_id):\n",
        "        if group.entries_read != UNKNOWN:\n",
        f"{LAG}::test_a_deletion_ahead_makes_the_lag_unknown_until_it_is_passed",
    ),
    Fault(
        "lag-of-one-too-many",
        "A lag is exact.",
        "engine/stream.py",
        "                return self.entries_added - self.length + 1\n",
        "                return self.entries_added - self.length\n",
        f"{LAG}::test_a_group_at_the_first_entry_can_be_counted",
    ),
    Fault(
        "deletion-forgotten",
        "A deletion moves the largest deleted id.",
        "engine/stream.py",
        "        self.max_deleted = max(self.max_deleted, entry_id)\n",
        "",
        f"{LAG}::test_a_deletion_ahead_makes_the_lag_unknown_until_it_is_passed",
    ),
    Fault(
        "trimmed-entries-stay-pending",
        "DELREF takes the records of what it trims.",
        "engine/stream_ops.py",
        "    if unref and stream.groups:\n",
        "    if unref and not stream.groups:\n",
        "tests/commands/test_trimming.py::test_delref_removes_records_of_every_group",
    ),
    Fault(
        "needed-entries-trimmed",
        "ACKED keeps what a group has not been given.",
        "engine/stream.py",
        "group.last_id < entry_id or entry_id in group.pending",
        "entry_id in group.pending",
        "tests/commands/test_trimming.py::test_acked_passes_over_what_is_still_needed",
    ),
    Fault(
        "noack-leaves-a-record",
        "NOACK leaves nothing pending.",
        "engine/stream.py",
        "            if not noack:\n                for entry_id in ids:\n",
        "            if ids:\n                for entry_id in ids:\n",
        f"{REFERENCE}::test_noack_keeps_no_record",
    ),
    Fault(
        "position-not-moved",
        "An entry is delivered as new once in a group.",
        "engine/stream.py",
        "        group.last_id = ids[-1]\n",
        "        group.last_id = ids[0]\n",
        MACHINE,
        (*ASSERTION, "KeyError"),
    ),
    Fault(
        "duplicates-added",
        "A message that is sent again is added once.",
        "engine/stream_ops.py",
        "        stream.idempotence.remember(idmp[0], idmp[1], number)\n",
        "        stream.idempotence.producers.setdefault(idmp[0], {})\n",
        "tests/engine/test_idempotence.py::test_a_repeated_message_is_added_once",
    ),
    Fault(
        "patterns-without-a-bound",
        "No pattern keeps all clients waiting.",
        "glob.py",
        "        self._left -= units\n",
        "        self._left -= 0\n",
        "tests/commands/test_glob.py::test_an_event_that_cannot_be_compared_does_not_undo_the_change",
    ),
    Fault(
        "range-of-small-letters",
        "Patterns without case fit what they fit in Redis.",
        "glob.py",
        "    if first ^ 0x80 > last ^ 0x80:\n",
        "    if first ^ 0x80 > last ^ 0x80 > 255:\n",
        "tests/commands/test_glob.py::test_patterns_without_case_fit_what_they_fit_in_redis",
    ),
    Fault(
        "claims-into-the-past-look-at-all",
        "A command costs what it touches.",
        "engine/pending.py",
        "earlier = self._times.add(time)",
        "earlier = self._times.add(time) and max((one for one in self._ends if one < time), default=None)",
        "tests/commands/test_costs.py::test_claims_into_the_past_find_their_place_at_once",
    ),
    Fault(
        "repeated-claim-counts-once",
        "An id that XCLAIM names twice is claimed twice.",
        "commands/streams_pending.py",
        "        if entry in self._taken:\n            self.flush()\n",
        "",
        "tests/commands/test_costs.py::test_claiming_an_entry_twice_in_one_command_counts_twice",
    ),
)

"""The server's replies, redacted, in the file of a report."""

import json
from collections.abc import Sequence
from typing import IO

from millstream.client.line import Command, Reply
from millstream.client.recorded.json_replies import json_of
from millstream.client.recorded.report import words_of
from millstream.console.reporting.redact import Redactor

_ONE = 4 << 20  # characters of one reply
_NAMED = 1000  # replies that are named because they were left out


class ReportWriter:
    """Writes a report, one JSON object, as the replies come; memory does not grow with its size."""

    def __init__(self, file: IO[str], redactor: Redactor, most: int) -> None:
        self._file = file
        self._redactor = redactor
        self._most = most
        self._seen: set[tuple[int, tuple[bytes, ...]]] = set()
        self.left_out: dict[str, str] = {}  # Part that is not in it -> the reason
        self.size = 0  # Characters written
        self.replies = 0  # Number of replies in it

    @property
    def full(self) -> bool:
        """True if little more fits."""
        return self.size >= self._most * 9 // 10

    def begin(self, facts: dict[str, object]) -> None:
        """Write the facts that are known before the first question."""
        head = json.dumps(facts, indent=1).rstrip("}\n")
        self._write(f'{head},\n "asked": [')

    def take(self, node: int, commands: Sequence[Command], replies: Sequence[Reply]) -> None:
        """Write commands and their replies, each once."""
        for command, reply in zip(commands, replies, strict=True):
            self._take(node, command, reply)

    def _take(self, node: int, command: Command, reply: Reply) -> None:
        words = words_of(command)
        if (node, words) in self._seen:
            return
        one = {"node": node, "command": json_of(words), "reply": json_of(self._redactor.redacted(words, reply))}
        text = json.dumps(one, ensure_ascii=False, separators=(",", ":"))
        if len(text) > _ONE or self.size + len(text) > self._most:
            shown = b" ".join(words)[:80].decode(errors="backslashreplace")
            if len(self.left_out) < _NAMED:
                self.left_out[shown] = "too large" if len(text) > _ONE else "the report is full"
            return
        self._seen.add((node, words))
        self._write((",\n" if self.replies else "\n") + text)
        self.replies += 1

    def end(self, facts: dict[str, object]) -> None:
        """Write the facts that are known after the last reply."""
        tail = json.dumps({"left_out": self.left_out, **facts}, indent=1).lstrip("{\n")
        self._write(f"\n ],\n {tail.lstrip()}\n")

    def _write(self, text: str) -> None:
        self._file.write(text)
        self.size += len(text)

"""CLIENT REPLY, and CLIENT KILL of the same connection, inside a transaction: the parts of EXEC's reply that are sent.

They equal Redis's, which writes as it runs: the head of EXEC's array before the first command, then each reply unless
replies are off at that moment. So OFF in the middle cuts the array short, and ON in the middle leaves it without its
head. OFF and SKIP themselves have no reply. SKIP silences the command after EXEC, not the next one inside it, even if
ON comes in between. A connection that kills itself gets nothing after the reply to that command.
"""

from millstream.commands.context.session import Session
from millstream.commands.table.spec import Command
from millstream.node.clients.replies import Heard, pushes_in
from millstream.replies import Error, Raw, Reply


class Muting:
    """Follows the commands of one EXEC."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._begun = self._mode = session.reply_mode
        self._is_changed = self._skips = False
        self._wanted: list[bool] = []
        self._end: int | None = None  # number of replies after which the connection closes

    def note(self, row: Command, reply: Reply) -> None:
        """Record that a command of the transaction has run, with its reply."""
        session = self._session
        wanted = self._mode == "on"
        if row.name == "client|reply" and not isinstance(reply, Error):
            self._is_changed = True
            wanted = session.reply_mode == "on"
            if session.reply_mode == "skip":
                self._skips, session.reply_mode = True, self._mode
            self._mode = session.reply_mode
        self._wanted.append(wanted)
        if session.closing and self._end is None:
            self._is_changed, self._end = True, len(self._wanted)

    def heard(self, replies: list[Reply]) -> Reply:
        """Return EXEC's reply: the array, or the parts of it that Redis would have sent."""
        if not self._is_changed or len(replies) != len(self._wanted):
            return replies
        session = self._session
        sent: list[Reply] = []
        if self._begun == "on":
            sent.append(Raw([b"*%d\r\n" % len(replies)]))  # header of an array whose wanted items follow
        for reply, wanted in zip(replies[: self._end], self._wanted[: self._end], strict=True):
            sent += [reply] if wanted else pushes_in(reply)
        if session.reply_mode != "off":
            session.reply_mode = "skipping" if self._skips else "on"
        return Heard(sent)

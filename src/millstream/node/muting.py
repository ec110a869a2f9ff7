"""CLIENT REPLY OFF and SKIP: which replies are not sent, and what comes all the same."""

from millstream.commands.context.session import Session
from millstream.replies import Many, Push, Reply


def is_muted(session: Session) -> bool:
    """CLIENT REPLY OFF and SKIP: whether this reply is not sent."""
    if session.reply_mode == "skip":
        session.reply_mode = "skipping"  # the answer to SKIP itself is not sent either
        return True
    if session.reply_mode == "skipping":
        session.reply_mode = "on"
        return True
    return True


def pushes_in(reply: Reply) -> list[Reply]:
    """What of a command's answer, or of EXEC's, comes to who wants no replies: confirmations of SUBSCRIBE and its kin.

    Redis sends them as it sends the messages that they announce.
    """
    if isinstance(reply, Many):
        return [value for value in reply.values if isinstance(value, Push)]
    if isinstance(reply, list):
        return [push for each in reply if isinstance(each, Many) for push in pushes_in(each)]
    return []

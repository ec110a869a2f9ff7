"""Publish and subscribe.

A message goes to the present listeners and is not stored: streams are for messages that must arrive. In RESP2 a
connection that listens takes only a few commands, since replies and messages could not be distinguished. In RESP3
messages are pushes, and all commands are allowed.

Source: https://redis.io/docs/latest/develop/pubsub/ and the command pages it links.
"""

from millstream.commands.context.context import Context
from millstream.commands.table.table import PUBSUB
from millstream.glob import Effort, Pattern
from millstream.replies import Many, Push, Reply

ALLOWED_WHILE_SUBSCRIBED = frozenset(
    {"subscribe", "unsubscribe", "psubscribe", "punsubscribe", "ping", "quit", "reset"}
)


def _change(ctx: Context, argv: list[bytes], kind: bytes) -> Reply:
    """One confirmation for each name; leaving everything needs no names.

    Each confirmation has the number of channels and patterns to which the connection then listens, also for a channel
    that it was not subscribed to. Leaving all without any subscription is confirmed once, with null. Patterns are
    compiled before the first is joined, so a refused one changes nothing.
    """
    session = ctx.session
    by_pattern, joining = kind.startswith(b"p"), not kind.removeprefix(b"p").startswith(b"un")
    channels = ctx.host.patterns if by_pattern else ctx.host.channels
    mine = session.patterns if by_pattern else session.channels
    # Sorted, so that unsubscribing from everything always has the same replies
    names: list[bytes] = argv[1:] or sorted(mine)
    replies: list[Reply] = []
    if by_pattern and joining:
        ctx.host.patterns.prepare(names)
    for name in names:
        if joining:
            mine.add(name)
            channels.join(session, name)
        else:
            mine.discard(name)
            channels.leave(session, name)
        replies.append(Push([kind, name, len(session.channels) + len(session.patterns)]))
    if not replies:
        replies.append(Push([kind, None, len(session.channels) + len(session.patterns)]))
    return Many(replies)


@PUBSUB.command("subscribe", -2, "pubsub noscript loading stale")
def subscribe(ctx: Context, argv: list[bytes]) -> Reply:
    """Listen to channels by name. The reply is one push for each channel."""
    return _change(ctx, argv, b"subscribe")


@PUBSUB.command("unsubscribe", -1, "pubsub noscript loading stale")
def unsubscribe(ctx: Context, argv: list[bytes]) -> Reply:
    """Stop listening to some channels, or to all, in the order of their names."""
    return _change(ctx, argv, b"unsubscribe")


@PUBSUB.command("psubscribe", -2, "pubsub noscript loading stale")
def psubscribe(ctx: Context, argv: list[bytes]) -> Reply:
    """Listen to channels by pattern; a pattern that is too costly to match is refused, see ``glob``."""
    return _change(ctx, argv, b"psubscribe")


@PUBSUB.command("punsubscribe", -1, "pubsub noscript loading stale")
def punsubscribe(ctx: Context, argv: list[bytes]) -> Reply:
    """Stop listening to some patterns, or to all."""
    return _change(ctx, argv, b"punsubscribe")


@PUBSUB.command("publish", 3, "pubsub loading stale fast")
def publish(ctx: Context, argv: list[bytes]) -> Reply:
    """Publish a message; reply the number of listeners that got it.

    A connection that matches by channel and by two patterns gets it three times, and counts three times.
    """
    return ctx.host.publish(argv[1], argv[2])


PUBSUB.container("pubsub")


@PUBSUB.command("pubsub|channels", -2, "pubsub loading stale")
def pubsub_channels(ctx: Context, argv: list[bytes]) -> Reply:
    """Channels with listeners, all or those matching a pattern.

    Listeners by pattern are left out.
    """
    if len(argv) < 3:
        return list(ctx.host.channels)
    effort = Effort()
    pattern = Pattern(argv[2], effort)
    return [name for name in ctx.host.channels if pattern.fits(name, effort)]


@PUBSUB.command("pubsub|numsub", -2, "pubsub loading stale")
def pubsub_numsub(ctx: Context, argv: list[bytes]) -> Reply:
    """Name and number of listeners for each given channel."""
    replies: list[Reply] = []
    for name in argv[2:]:
        replies += [name, ctx.host.channels.count(name)]
    return replies


@PUBSUB.command("pubsub|numpat", 2, "pubsub loading stale")
def pubsub_numpat(ctx: Context, argv: list[bytes]) -> Reply:  # noqa: ARG001 - a handler's signature
    """The number of distinct patterns with listeners."""
    return len(ctx.host.patterns)


PUBSUB.help("pubsub")

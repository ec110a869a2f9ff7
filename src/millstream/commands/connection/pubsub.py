"""Publish and subscribe.

A message goes to the present listeners and is not kept: streams are for what must arrive. In RESP2 a connection that
listens takes only a few commands, since replies and messages could not be told apart; in RESP3 messages are pushes, and
all commands are fine.

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
    """One confirmation a name; leaving everything needs no names.

    Each confirmation has the number of channels and patterns that the connection then listens to, also for a channel it
    did not listen to. Leaving all of none is confirmed once, with null. Patterns are taken apart before the first is
    joined, so that a refusal leaves nothing half done.
    """
    session = ctx.session
    by_pattern, joining = kind.startswith(b"p"), not kind.removeprefix(b"p").startswith(b"un")
    channels = ctx.host.patterns if by_pattern else ctx.host.channels
    mine = session.patterns if by_pattern else session.channels
    # Sorted, so that leaving all has the same replies each time
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
    """Listen to channels by pattern; a pattern too costly to compare with names is refused, see ``glob``."""
    return _change(ctx, argv, b"psubscribe")


@PUBSUB.command("punsubscribe", -1, "pubsub noscript loading stale")
def punsubscribe(ctx: Context, argv: list[bytes]) -> Reply:
    """Stop listening to some patterns, or to all."""
    return _change(ctx, argv, b"punsubscribe")


@PUBSUB.command("publish", 3, "pubsub loading stale fast")
def publish(ctx: Context, argv: list[bytes]) -> Reply:
    """Publish; replies how many listeners got it.

    A connection with the channel and two fitting patterns gets it three times, and counts three.
    """
    return ctx.host.publish(argv[1], argv[2])


PUBSUB.container("pubsub")


@PUBSUB.command("pubsub|channels", -2, "pubsub loading stale")
def pubsub_channels(ctx: Context, argv: list[bytes]) -> Reply:
    """Channels with listeners, all or those matching a pattern.

    Listeners by pattern do not show here.
    """
    if len(argv) < 3:
        return list(ctx.host.channels)
    effort = Effort()
    pattern = Pattern(argv[2], effort)
    return [name for name in ctx.host.channels if pattern.fits(name, effort)]


@PUBSUB.command("pubsub|numsub", -2, "pubsub loading stale")
def pubsub_numsub(ctx: Context, argv: list[bytes]) -> Reply:
    """Name and number of listeners, for each channel asked for, 0 for one without listeners."""
    replies: list[Reply] = []
    for name in argv[2:]:
        replies += [name, ctx.host.channels.count(name)]
    return replies


@PUBSUB.command("pubsub|numpat", 2, "pubsub loading stale")
def pubsub_numpat(ctx: Context, argv: list[bytes]) -> Reply:  # noqa: ARG001 - a handler's signature
    """The number of different patterns with listeners, however many listen to each."""
    return len(ctx.host.patterns)


PUBSUB.help("pubsub")

"""``millstream group rewind``, ``create`` and ``rm``, ``consumer rm`` and ``stream rm``."""

import time
from typing import TYPE_CHECKING

import click

from millstream.cli.changes.changing import Ask, change, change_options
from millstream.cli.shared.output import exits
from millstream.errors import UsageError

if TYPE_CHECKING:
    from millstream.console.changes.positions import StreamPlace

_WIDE = {"max_content_width": 110}


@click.command(context_settings=_WIDE)
@click.argument("stream")
@click.argument("group")
@click.option("--to", "place", metavar="PLACE", help="Where it is to stand: see above.")
@click.option("--like", metavar="OTHER", help="Where this group of the same stream stands.")
@click.option("--even-if-moved", is_flag=True, help="Also if the group reads on meanwhile: see above.")
@change_options
def rewind(
    stream: str, group: str, *, place: str | None, like: str | None, even_if_moved: bool, **options: object
) -> None:
    """Set GROUP of STREAM to another place: what lies behind it is delivered again, or skipped.

    \b
    PLACE is one of
      1h-ago, or a time     what was added then and later is delivered again; 2026-03-01T12:00:00 is in UTC
      1763721600000-0       an entry's id: the last one that counts as delivered
      start, end            everything that is there again; nothing of it
      -100, +100            so many entries back, or on, from where the group stands

    Before anything changes you see the position, the next entry and the lag before and after, how many entries are
    delivered again or skipped, and how many of them are pending still. The entries read are set as well, where the
    server counts them, so that the lag stays known. Pending entries stay pending.

    If the group has moved on when you say yes, nothing is changed: pause its workers first (`millstream worker pause`).
    With --even-if-moved it is set to the place that was shown all the same, unless somebody has set it back meanwhile,
    or it is past a place that it was to skip to.

    \b
    Examples:
      millstream group rewind orders billing --to 1h-ago --dry-run
      millstream group rewind orders billing --to start
      millstream group rewind orders billing --to -100 --yes
      millstream group rewind orders billing --like shipping
      millstream group rewind orders billing --to 1h-ago --even-if-moved
    """
    from millstream.console.changes import making  # noqa: PLC0415 - help does not need it

    with exits("millstream group rewind"):
        if (place is None) == (like is None):
            raise UsageError("where to? say --to PLACE, or --like OTHER")
        there = _place(place, like)
        change(
            _ask(options),
            lambda line, tell: making.rewind(line, stream, group, there, tell, even_if_moved=even_if_moved),
        )


@click.command(context_settings=_WIDE)
@click.argument("stream")
@click.argument("group")
@click.option("--at", "place", metavar="PLACE", default="end", show_default=True, help="Where it begins: see above.")
@click.option("--like", metavar="OTHER", help="Where this group of the same stream stands.")
@click.option("--mkstream", is_flag=True, help="Make an empty stream where there is none.")
@change_options
def create(stream: str, group: str, *, place: str, like: str | None, mkstream: bool, **options: object) -> None:
    """Make GROUP of STREAM, which begins at PLACE: start, end, a time such as 1h-ago, or an entry's id.

    \b
    Examples:
      millstream group create orders billing                  what is added from now on
      millstream group create orders billing --at start       everything that is there
      millstream group create orders audit --at 1d-ago --yes
      millstream group create orders second --like billing
      millstream group create orders billing --mkstream       also where there is no stream yet
    """
    from millstream.console.changes import making  # noqa: PLC0415 - as above

    with exits("millstream group create"):
        there = _place(None if like is not None else place, like)
        change(_ask(options), lambda line, _: making.create(line, stream, group, there, mkstream=mkstream))


@click.command(context_settings=_WIDE)
@click.argument("stream")
@click.argument("group")
@change_options
def remove(stream: str, group: str, **options: object) -> None:
    """Remove GROUP of STREAM, with its position and what is pending in it.

    You see first how many entries are pending, and how many were never delivered. The line that makes it anew at the
    same place is shown; its pending entries are kept in the audit stream, up to 5,000 of them, and `millstream audit
    undo` puts them back.

    \b
    Examples:
      millstream group rm orders billing --dry-run
      millstream group rm orders billing
    """
    from millstream.console.changes import making  # noqa: PLC0415 - as above

    with exits("millstream group rm"):
        change(_ask(options), lambda line, _: making.remove_group(line, stream, group))


@click.command(context_settings=_WIDE)
@click.argument("stream")
@click.argument("group")
@click.argument("consumer")
@click.option("--claim-to", metavar="OTHER", help="Move what it holds to this consumer first.")
@change_options
def remove_consumer(stream: str, group: str, consumer: str, *, claim_to: str | None, **options: object) -> None:
    """Remove CONSUMER of GROUP of STREAM. What it holds is dropped by the server, unless --claim-to moves it first.

    Dropped entries are pending no more and were not processed: nobody is given them again. `millstream audit undo` puts
    up to 5,000 of them back. A consumer that is alive is made anew by its next read.

    \b
    Examples:
      millstream consumer rm orders billing web-1 --dry-run
      millstream consumer rm orders billing web-1 --claim-to web-2
    """
    from millstream.console.changes import making  # noqa: PLC0415 - as above

    with exits("millstream consumer rm"):
        change(_ask(options), lambda line, _: making.remove_consumer(line, stream, group, consumer, claim_to))


@click.command(context_settings=_WIDE)
@click.argument("stream")
@change_options
def remove_stream(stream: str, **options: object) -> None:
    """Remove STREAM with its entries and its groups, for good; `millstream export` keeps a copy.

    \b
    Examples:
      millstream stream rm orders --dry-run
      millstream stream rm orders
    """
    from millstream.console.changes import making  # noqa: PLC0415 - as above

    with exits("millstream stream rm"):
        change(_ask(options), lambda line, _: making.remove_stream(line, stream))


def _ask(options: dict[str, object]) -> Ask:
    """The options of ``change_options``."""
    return Ask(**options)  # type: ignore[arg-type] # click gives them as they are declared


def _place(text: str | None, like: str | None) -> "StreamPlace":
    from millstream.console.changes.positions import StreamPlace, place_of  # noqa: PLC0415 - as above

    if text is None:
        return StreamPlace("like", group=like or "")
    return place_of(text, time.time_ns() // 1_000_000)

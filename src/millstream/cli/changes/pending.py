"""``millstream pending ack``, ``claim``, ``nack`` and ``dead``."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from millstream.cli.changes.changing import Ask, change, change_options
from millstream.cli.shared.output import exits
from millstream.cli.shared.time_options import SPAN_HELP, span
from millstream.errors import UsageError

if TYPE_CHECKING:
    from millstream.console.changes.gather import Chosen
    from millstream.console.changes.pending import Mode

Command = TypeVar("Command", bound=Callable[..., Any])

_WIDE = {"max_content_width": 110}
_OWN = ("url", "form", "dry_run", "yes")


def _chosen(command: Command) -> Command:
    """The arguments and options that say which entries; they come as ``ids`` and the names of ``PendingChoice``."""
    for option in (
        click.option("--all", "everything", is_flag=True, help="Everything that is pending in the group."),
        click.option("--unowned", is_flag=True, help="Entries that nobody holds, since they were given back."),
        click.option("--deliveries", type=click.IntRange(1), metavar="N", help="Delivered so often at least."),
        click.option("--idle", metavar="SPAN", help=f"Last delivered so long ago at least: {SPAN_HELP}."),
        click.option("--consumer", metavar="NAME", help="Held by this consumer."),
        click.argument("ids", metavar="[ID]...", nargs=-1),
        click.argument("group"),
        click.argument("stream"),
    ):
        command = option(command)
    return command


@click.command(context_settings=_WIDE)
@_chosen
@click.option("--gone", is_flag=True, help="What is no longer in the stream: trimmed or deleted.")
@change_options
def ack(stream: str, group: str, ids: tuple[str, ...], **options: Any) -> None:
    """Acknowledge entries that are pending in GROUP of STREAM: they count as processed.

    Name entries by ID, or choose them by options, or say --all. They are changed by pages. One that was processed,
    claimed or given back since it was looked at is left alone, and the exit code is 1 then. `millstream audit undo`
    makes them pending again, with the same consumer and deliveries; not what is gone, which cannot be pending again.

    \b
    Examples:
      millstream pending ack orders billing 1763721600000-0
      millstream pending ack orders billing --consumer web-1 --idle 1h --dry-run
      millstream pending ack orders billing --deliveries 10 --yes
      millstream pending ack orders billing --gone            entries that were trimmed before they were done
    """
    from millstream.console.changes import making  # noqa: PLC0415 - help does not need it

    with exits("millstream pending ack"):
        chosen, words = _meant(ids, options), _words("ack", stream, group, ids, options)
        change(
            Ask(**{name: options[name] for name in _OWN}),
            lambda line, tell: making.acknowledge(line, stream, group, chosen, words, tell=tell),
        )


@click.command(context_settings=_WIDE)
@_chosen
@click.option("--to", metavar="CONSUMER", required=True, help="Who gets them.")
@change_options
def claim(stream: str, group: str, ids: tuple[str, ...], *, to: str, **options: Any) -> None:
    """Move entries that are pending in GROUP of STREAM to another consumer; their deliveries stay as they are.

    Name entries by ID, or choose them by options, or say --all. They are changed by pages. One that was processed,
    claimed or given back since it was looked at is left alone, and the exit code is 1 then. `millstream audit undo`
    gives them back to whom they were.

    \b
    Examples:
      millstream pending claim orders billing 1763721600000-0 --to web-2
      millstream pending claim orders billing --consumer web-1 --to web-2 --dry-run
    """
    from millstream.console.changes import making  # noqa: PLC0415 - as above

    with exits("millstream pending claim"):
        chosen = _meant(ids, options)
        words = _words("claim", stream, group, ids, options, "--to", to)
        change(
            Ask(**{name: options[name] for name in _OWN}),
            lambda line, tell: making.claim(line, stream, group, chosen, words, consumer=to, tell=tell),
        )


@click.command(context_settings=_WIDE)
@_chosen
@click.option(
    "--mode",
    type=click.Choice(("silent", "fail", "fatal")),
    default="fail",
    show_default=True,
    help="The delivery is not counted; it stays counted; nobody is to process the entry (only where there is XNACK).",
)
@change_options
def nack(stream: str, group: str, ids: tuple[str, ...], *, mode: "Mode", **options: Any) -> None:
    """Give entries that are pending in GROUP of STREAM back: any consumer may take them, at once.

    Name entries by ID, or choose them by options, or say --all. They are changed by pages. One that was processed,
    claimed or given back since it was looked at is left alone, and the exit code is 1 then. `millstream audit undo`
    gives them to whom they were. A server without XNACK (Redis before 8.8) has them held by a consumer named ''.

    \b
    Examples:
      millstream pending nack orders billing 1763721600000-0
      millstream pending nack orders billing --consumer web-1 --mode silent
    """
    from millstream.console.changes import making  # noqa: PLC0415 - as above

    with exits("millstream pending nack"):
        chosen = _meant(ids, options)
        words = _words("nack", stream, group, ids, options, "--mode", mode)
        change(
            Ask(**{name: options[name] for name in _OWN}),
            lambda line, tell: making.nack(line, stream, group, chosen, words, mode=mode, tell=tell),
        )


@click.command(context_settings=_WIDE)
@_chosen
@click.option("--reason", metavar="TEXT", help="The error that the letters have.")
@click.option("--to", metavar="KEY", help="Dead-letter stream, where it is not STREAM:dead.")
@change_options
def dead(stream: str, group: str, ids: tuple[str, ...], *, reason: str | None, to: str | None, **options: Any) -> None:
    """Make dead letters of entries that are pending in GROUP of STREAM: nobody tries them again.

    Name entries by ID, or choose them by options, or say --all. The letter is written and the entry acknowledged in one
    step. An entry that was processed, claimed or given back since it was looked at is left alone, and the exit code
    is 1 then. `millstream dead retry` puts a letter back; `millstream dead edit` corrects its entry first.

    \b
    Examples:
      millstream pending dead orders billing 1763721600000-0 --reason 'crashes every worker'
      millstream pending dead orders billing --deliveries 10 --dry-run
    """
    from millstream.clock import SystemClock  # noqa: PLC0415 - as above
    from millstream.console.changes.letters.setting_aside import REASON, Death, set_aside  # noqa: PLC0415 - as above

    with exits("millstream pending dead"):
        more = [word for name, value in (("--reason", reason), ("--to", to)) if value for word in (name, value)]
        chosen, words = _meant(ids, options), _words("dead", stream, group, ids, options, *more)
        death = Death(SystemClock().wall_time(), reason or REASON, to or "")
        change(
            Ask(**{name: options[name] for name in _OWN}),
            lambda line, tell: set_aside(line, stream, group, chosen, words, death, tell=tell),
        )


def _meant(ids: tuple[str, ...], options: dict[str, Any]) -> "Chosen":
    """Which entries: by id, or those that fit."""
    from millstream.console.changes.positions import entry_id  # noqa: PLC0415 - as above
    from millstream.console.model.pending import PendingChoice  # noqa: PLC0415 - as above

    idle = options["idle"]
    choice = PendingChoice(
        options["consumer"] or None,
        None if idle is None else span("--idle", idle),
        options["deliveries"],
        options["unowned"] or options["consumer"] == "",
        options.get("gone", False),
    )
    if ids and (options["everything"] or choice != PendingChoice()):
        raise UsageError("name entries by ID or choose them by options, not both")
    if ids:
        return tuple(dict.fromkeys(entry_id(each) for each in ids))
    if choice == PendingChoice() and not options["everything"]:
        raise UsageError("which entries? give their IDs, options such as --idle, or --all")
    return choice


def _words(
    verb: str, stream: str, group: str, ids: tuple[str, ...], options: dict[str, Any], *more: str
) -> tuple[str, ...]:
    """The command line again, for the preview and the audit stream.

    Args:
        verb: of the subcommand.
        stream: key of the stream.
        group: name of the group.
        ids: of entries.
        options: as they were given.
        more: options of this verb alone.
    """
    from millstream.console.model.names import command_words  # noqa: PLC0415 - as above

    words = list[str]()
    for name in ("consumer", "idle", "deliveries"):
        words += [f"--{name}", str(options[name])] if options[name] is not None else []
    flags = (("unowned", "--unowned"), ("gone", "--gone"), ("everything", "--all"))
    words += [flag for name, flag in flags if options.get(name)]
    return command_words(f"pending {verb}", stream, group, *ids, options=(*words, *more))

"""``millstream stream trim``: the oldest entries removed, after a look at who still needs them."""

import click

from millstream.cli.changes.changing import Ask, change, change_options
from millstream.cli.shared.output import exits
from millstream.cli.shared.time_options import TIME_HELP, instant
from millstream.errors import UsageError

_WIDE = {"max_content_width": 110}


@click.command(context_settings=_WIDE)
@click.argument("stream")
@click.option("--maxlen", type=click.IntRange(0), help="So many entries stay, the newest.")
@click.option("--minid", metavar="ID", help="What is older than this id goes.")
@click.option("--before", metavar="TIME", help=f"What was added before this time goes: {TIME_HELP}.")
@click.option("--approx", is_flag=True, help="Leave what the server keeps together with entries that stay: cheaper.")
@change_options
def trim(
    stream: str, *, maxlen: int | None, minid: str | None, before: str | None, approx: bool, **options: object
) -> None:
    """Remove the oldest entries of STREAM; first it shows how many go, and which groups still need some of them.

    A group needs what it has pending, and what it was not delivered yet. However the bound is given, what goes is what
    was shown: entries that are added meanwhile stay, and a group that was made meanwhile has it refused. Up to a
    million entries are counted.

    \b
    Examples:
      millstream stream trim orders --before 7d --dry-run
      millstream stream trim orders --maxlen 100000
      millstream stream trim orders --minid 1763721600000-0 --approx --yes
    """
    from millstream.console.changes import making  # noqa: PLC0415 - help does not need it
    from millstream.console.changes.positions import entry_id  # noqa: PLC0415 - as above

    with exits("millstream stream trim"):
        if sum(given is not None for given in (maxlen, minid, before)) != 1:
            raise UsageError("what goes? Give one of --maxlen, --minid and --before")
        oldest = None if minid is None else entry_id(minid)
        moment = instant("--before", before)
        if moment is not None:
            oldest = f"{max(moment, 0)}-0"
        change(
            Ask(**options),  # type: ignore[arg-type] # click gives them as they are declared
            lambda line, tell: making.trim_stream(
                line, stream, minid=oldest, maxlen=maxlen or 0, approximately=approx, tell=tell
            ),
        )

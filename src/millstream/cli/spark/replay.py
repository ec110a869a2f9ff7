"""``millstream replay``: write entries of an archive or a stream to a stream again."""

import click

from millstream.cli.shared.asking import replies_of
from millstream.cli.shared.output import Column, Output, context_option, output_option, subcommand
from millstream.cli.shared.servers import ServerUrl, server_and_rest
from millstream.cli.shared.signals import ended_by_signal
from millstream.cli.shared.time_options import instant
from millstream.client.url import SERVERS
from millstream.errors import UsageError
from millstream.paths import archive_place
from millstream.spark.archiving.replay_model import Replay, ReplayResult
from millstream.texts import plural

_COLUMNS = (
    Column("read", "count"),
    Column("skipped", "count", "left out by --where"),
    Column("written", "count", "written, all runs"),
    Column("resumed_after", title="resumed after"),
    Column("last", title="last entry"),
)


@subcommand()
@click.argument("source", type=ServerUrl(secret=True))
@click.argument("stream")
@click.option(
    "--to",
    "target",
    type=ServerUrl(secret=True),
    metavar="URL",
    help="URL of the server that receives the entries; or use --context.",
)
@click.option("--as", "into", metavar="KEY", help="Key of the stream at the target.  [default: STREAM]")
@click.option("--since", metavar="TIME", help="Replay entries from this time on.")
@click.option("--until", metavar="TIME", help="Replay entries before this time.")
@click.option("--where", multiple=True, metavar="FIELD=VALUE", help="Replay only entries with this value; repeatable.")
@click.option(
    "--speed", default="full", metavar="FACTOR", help="Speed: 1 as recorded, 10 ten times as fast, full without delays."
)
@click.option("--ids", type=click.Choice(["new", "keep"]), default="new", help="Ids of the entries at the target.")
@click.option("--id-field", metavar="NAME", help="Field that gets an entry's former id, with --ids new.")
@click.option(
    "--name", metavar="NAME", help="Name of this replay, to run it again.  [default: derived from the other options]"
)
@context_option
@output_option
def replay(  # noqa: PLR0917 - click passes every option by name
    source: str,
    stream: str,
    target: str | None,
    into: str | None,
    since: str | None,
    until: str | None,
    where: tuple[str, ...],
    speed: str,
    ids: str,
    id_field: str | None,
    name: str | None,
    form: str,
) -> None:
    """Replay entries of an archive or a stream into a stream, each once.

    SOURCE is the place of an archive that `millstream archive` wrote (a directory, s3://, gs:// or abfss://), or the
    URL of a server (or context:NAME); STREAM is the key there. Every transaction at the target holds entries and the
    replay's position. So a killed replay continues at its position when you run the same command again. Entries keep
    their order. A stream is replayed up to its end at the start of the command.

    \b
    Examples:
      millstream replay /data/archive orders --to redis://127.0.0.1:6400/0 --as orders:again
      millstream replay /data/archive orders --to redis://test:6379/0 --since 2026-03-01 --until 2026-03-02T12:00Z
      millstream replay redis://127.0.0.1:6400/0 orders --context test --speed 10
      millstream replay s3://bucket/orders orders --context test
      millstream replay /data/archive orders --to redis://127.0.0.1:6400/0 --as tea --where item=tea --ids keep

    Times are ISO (UTC unless they name a zone), milliseconds since 1970, or entry ids; --since is inclusive, --until is
    not. With --ids new, the field of --id-field holds the former id. With --ids keep, the target must be new, or have
    only lower ids. The position is a key at the target, millstream:replay:..., which expires 7 days after the end.

    \b
    Exit codes:
      0    done
      1    the replay could not continue: fix the cause and run the same command again
      2    the command line is invalid
      3    a server cannot be reached
      4    the named object does not exist
      5    refused
      130  stopped by SIGTERM or Ctrl-C

    Needs millstream[spark], without Java. docs/archive.md lists the promises.
    """
    if ids == "keep" and id_field is not None:
        raise UsageError("--id-field is for --ids new: with --ids keep the entries keep their ids")
    for option, value in (("--as", into), ("--id-field", id_field), ("--name", name)):
        if value == "":
            raise UsageError(f"{option} is empty: give it a value, or leave it out")
    to, _ = server_and_rest(() if target is None else (target,))
    first, end = instant("--since", since, fixed=True), instant("--until", until, fixed=True)
    if first is not None and end is not None and first >= end:
        raise UsageError(f"--until {until} is not after --since {since}: nothing would be replayed")
    what = Replay(
        _source(source),
        stream,
        to,
        into or stream,
        since_ms=first,
        until_ms=end,
        where=tuple(_pair(each) for each in where),
        speed=_speed(speed),
        ids="keep" if ids == "keep" else "new",
        id_field=None if id_field is None else id_field.encode(),
        name=name,
    )
    done = _run(what, Output(form))
    facts = {name: getattr(done, name) for name in ("read", "skipped", "written", "resumed_after", "last")}
    Output(form).report(facts, columns=_COLUMNS)
    if not done.finished:
        Output().say("millstream replay: stopped; run the same command again to continue")
        raise KeyboardInterrupt
    if done.before:
        Output().say(
            "millstream replay: this replay was done before: its "
            f"{plural(done.written, 'entry is', 'entries are')} in {what.into!r}, and "
            "nothing was written now; to replay them once more give it a --name"
        )


def _run(what: Replay, output: Output) -> ReplayResult:
    from millstream.spark.archiving.replay import replay as run  # noqa: PLC0415 - needs Arrow, an extra

    asked = (what.source, what.target) if what.source.startswith(SERVERS) else (what.target,)
    bar = output.progress({"replayed": "replaying"}, unit="entries")
    with replies_of(*asked), ended_by_signal() as ended, bar as tell:
        return run(what, ended, tell)


def _source(text: str) -> str:
    """Return the absolute location of an archive. A server's URL and any unknown text are checked on opening."""
    if "://" in text and not text.startswith(("file:", "s3", "gs:", "abfss:")):
        return text
    return str(archive_place(text))


def _pair(text: str) -> tuple[bytes, bytes]:
    name, mark, value = text.partition("=")
    if not mark:
        raise UsageError(f"--where {text}: it must be FIELD=VALUE, as in --where item=tea")
    return name.encode(), value.encode()


def _speed(text: str) -> float | None:
    if text == "full":
        return None
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        raise UsageError(f"--speed {text}: it must be full, or a factor such as 1, 0.5 or 10")
    return found

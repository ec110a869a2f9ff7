"""``millstream run``: run the subscribers of an app in worker processes."""

import asyncio
import importlib.util
import json
import logging
import os
import sys

import click

from millstream.cli.shared.output import context_option
from millstream.cli.shared.servers import only_given_url
from millstream.cli.shared.time_options import span
from millstream.client.url import check_remote
from millstream.errors import ConfigError, UsageError
from millstream.texts import plural
from millstream.worker.process.supervisor import Supervisor


@click.command(context_settings={"max_content_width": 100})
@click.argument("target", metavar="MODULE:APP")
@click.option(
    "--url",
    callback=only_given_url,
    help="URL of the server to read from. Default, in this order: the context of MILLSTREAM_CONTEXT, the app's URL, "
    "MILLSTREAM_URL, REDIS_URL, redis://127.0.0.1:6379/0.",
)
@context_option
@click.option("-w", "--workers", type=click.IntRange(1), default=1, help="Number of processes.")
@click.option(
    "--grace",
    metavar="SPAN",
    help="Time (30s, 2m) for running handlers at a stop; then their entries are released. Default: the app's.",
)
@click.option(
    "--kill-blocked-after",
    metavar="SPAN",
    help="Kill and restart a worker whose handler blocks its event loop, or which is stopped (SIGSTOP), for this long "
    "(2m); off disables it. It counts as a crash of that entry alone. Default: 2m, and off with --reload or under a "
    "debugger.",
)
@click.option(
    "--spare/--no-spare",
    default=True,
    show_default=False,
    help="Run entries that may have crashed a worker in a separate process, which is started when it is needed. "
    "Default: on, and off with --reload.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    help="Lowest level of messages that workers log to standard error.",
)
@click.option(
    "--health-port",
    type=click.IntRange(1, 65535),
    metavar="PORT",
    help="HTTP port of /healthz, /readyz and /metrics; further workers, then the pipelines, use the next ports.",
)
@click.option("--app-dir", type=click.Path(exists=True, file_okay=False), help="Directory to search first for MODULE.")
@click.option("--reload", is_flag=True, help="Restart the workers when a .py file changes (needs millstream[reload]).")
@click.option("--master", metavar="URL", help="Spark master that runs the pipelines. Default: local[2].")
@click.option(
    "--conf", multiple=True, metavar="NAME=VALUE", help="Setting of the Spark session, as for spark-submit; repeatable."
)
@click.option(
    "--history/--no-history",
    default=True,
    show_default=False,
    help="Write the history that the console's charts show: one of all workers does, up to 50 MB on the server "
    "(docs/console.md). Default: on, and off with App(registry=False).",
)
@click.option("--health-host", default="127.0.0.1", help="Address that --health-port listens at.")
@click.option(
    "--health-allow",
    multiple=True,
    metavar="NAME",
    help="Host name accepted at --health-port, besides addresses, loopback names and this machine's; * accepts any.",
)
def run(  # noqa: PLR0917 - click passes every option by name
    target: str,
    url: str | None,
    workers: int,
    grace: str | None,
    kill_blocked_after: str | None,
    spare: bool,
    log_level: str,
    health_port: int | None,
    health_host: str,
    health_allow: tuple[str, ...],
    app_dir: str | None,
    reload: bool,
    master: str | None,
    conf: tuple[str, ...],
    history: bool,
) -> None:
    """Run the subscribers and the pipelines of an app.

    MODULE:APP names an App in a module of the working directory or the Python path. For example, orders:app
    is `app` in orders.py, and orders:make_app() is the return value of `make_app`.

    \b
        # orders.py
        from millstream import App, StreamSub
        app = App()
    \b
        @app.subscriber(StreamSub("orders", group="billing", min_idle_time=10_000))
        async def bill(order: dict) -> None:
            print(order)
    \b
        $ millstream run orders:app --workers 4

    Functions decorated with @app.pipeline run on Spark, all in one process next to the workers (docs/spark/how-to.md).
    They need Java and millstream[spark].

    A crashed worker is restarted; the others claim its entries after min_idle_time. SIGTERM or Ctrl-C lets running
    handlers finish, releases all other entries at once, and exits with 0. A handler that runs ten seconds longer than
    the grace time is killed. A Ctrl-C after the first signal, or a SIGTERM more than two seconds after it, kills at
    once.

    \b
    Exit codes:
      69  the server cannot be reached, or refuses the login
      70  a process did not end in time, and its entries stay pending
      78  the app does not exist or is misconfigured
      1   anything else that went wrong
    """
    try:
        seconds = None if grace is None else span("--grace", grace, "s") / 1000
        kill_after = kill_limit(kill_blocked_after, reload=reload)
    except UsageError as error:
        raise click.UsageError(str(error)) from None
    # Workers are separate processes, so the environment passes the settings to them
    environment = dict(os.environ)
    environment["MILLSTREAM_SPARK"] = json.dumps(_confs(master, conf))
    environment["MILLSTREAM_LOG_LEVEL"] = log_level
    if app_dir is not None:
        environment["MILLSTREAM_APP_DIR"] = app_dir
    if history:
        environment["MILLSTREAM_HISTORY"] = "millstream.ops.history.keeping"
    watched = (app_dir or ".") if reload else None
    if reload and importlib.util.find_spec("watchfiles") is None:
        raise click.UsageError("--reload needs watchfiles: pip install 'millstream[reload]'")
    if health_port is not None:
        if health_port + workers - 1 > 65535:
            raise click.UsageError(
                f"--health-port {health_port} is too high: {plural(workers, 'worker needs', 'workers need')} as "
                "many ports, up to 65535"
            )
        environment["MILLSTREAM_HEALTH"] = f"{health_host}:{health_port}"
        environment["MILLSTREAM_HEALTH_ALLOW"] = " ".join(health_allow)
    try:
        # This import fails on an invalid setting, since it reads MILLSTREAM_FAILPOINTS
        if url:
            environment["MILLSTREAM_RUN_URL"] = check_remote(url)
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    logging.basicConfig(format="%(asctime)s %(levelname)s [%(process)d] %(name)s: %(message)s", level=log_level.upper())

    async def supervise() -> int:
        driver = "millstream.pipelines.driver"
        return await Supervisor(target, workers, seconds, environment, watched, driver, kill_after, spare).run()

    sys.exit(asyncio.run(supervise()))


def kill_limit(given: str | None, *, reload: bool) -> float | None:
    """Return the seconds after which a blocked worker is killed; None for never.

    With ``reload`` the default is never, since a developer may stop in a debugger.
    """
    if given is None:
        given = "off" if reload else "2m"
    if given.strip().lower() == "off":
        return None
    try:
        seconds = span("--kill-blocked-after", given, "s") / 1000
    except UsageError as error:
        raise UsageError(f"{error}. Use off to disable it.") from None
    if not seconds:
        raise UsageError(f"--kill-blocked-after {given!r} is invalid: the time is above zero. Use off to disable it.")
    return seconds


def _confs(master: str | None, given: tuple[str, ...]) -> dict[str, str]:
    """Return the settings of the Spark session by name."""
    found = {} if master is None else {"spark.master": master}
    for word in given:
        name, equals, value = word.partition("=")
        if not equals or not name.startswith("spark."):
            raise click.UsageError(f"--conf {word} is invalid: use NAME=VALUE, for example spark.driver.memory=2g")
        found[name] = value
    return found

"""The process that ``millstream run`` starts: ``python -m millstream.worker.child module:app``.

Two environment variables may name file descriptors. ``MILLSTREAM_LIFELINE`` becomes readable when the parent has ended.
``MILLSTREAM_READY`` gets a line with the app's grace time, then a line when reading begins. If the app has pipelines,
it gets one more line; a process with only pipelines ends after that. From the first line on, the parent knows how long
an orderly end may take.
"""

import importlib
import logging
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from millstream.client.url import check_remote
from millstream.errors import ConfigError
from millstream.logs import logger
from millstream.printable import without_password
from millstream.worker.app import App
from millstream.worker.handlers.frames import users_part
from millstream.worker.model.error_text import loggable, tame
from millstream.worker.monitoring.health import ALLOW_VARIABLE
from millstream.worker.process import senders
from millstream.worker.process.run import (
    ALONE,
    BESIDE,
    END,
    EXIT_CLEAN,
    EXIT_CONFIG,
    GRACE,
    OVERRUN,
    OWN,
    PIPELINES,
    READY,
    SPARE,
    run_in_process,
)
from millstream.worker.registry import overrun, watchdog
from millstream.worker.settlement import spare
from millstream.worker.subscriber import isolation

log = logger("millstream.worker")

Found = TypeVar("Found")


def main(target: str) -> int:
    """Find the app and run it; return the exit code.

    The code also goes to the supervisor, since the app's own code may exit with any code.
    """
    number = os.environ.pop("MILLSTREAM_READY", None)
    supervisor = None if number is None else int(number)
    if supervisor is not None:
        os.set_inheritable(supervisor, False)
    signals = os.environ.pop("MILLSTREAM_SIGNALS", None)
    if signals is not None:
        senders.report_to(int(signals))  # before any thread starts, since threads inherit the filter
    code = _run(target, supervisor)
    _say(supervisor, END + f"{code}\n".encode())
    return code


def _run(target: str, supervisor: int | None) -> int:
    app = prepared(target)
    if app is None:
        return EXIT_CONFIG
    if supervisor is not None:
        os.set_blocking(supervisor, False)  # a supervisor that does not read must not block this process
        kill_after = os.environ.pop("MILLSTREAM_KILL_BLOCKED_AFTER", None)
        consumer = os.environ.pop("MILLSTREAM_SPARE", None)
        if consumer is not None:
            here = os.environ.pop("MILLSTREAM_IS_SPARE", None)
            ends = int(os.environ.pop("MILLSTREAM_SPARE_ENDS", "-1"))
            if ends >= 0:
                os.set_inheritable(ends, False)
            call = None if here is not None else lambda: _say(supervisor, SPARE)
            spare.spare = spare.Spare(consumer, call, ends, int(here or 0))
            if here is not None:
                sys.addaudithook(partial(_tell_own_kill, supervisor, os.getpid()))
        overrun.supervised = True
        overrun.announce = lambda limit: _say(supervisor, OVERRUN + f"{limit:g}\n".encode())
        isolation.announce = lambda alone: _say(supervisor, ALONE if alone else BESIDE)
        if kill_after is not None:
            watchdog.supervision = watchdog.Supervision(os.getpid(), float(kill_after), supervisor)
    _keep_history(app)
    _say(supervisor, GRACE + f"{app.grace}\n".encode())
    pipelines = PIPELINES if app.pipelines else b""
    if pipelines and not app.subscriptions:
        _say(supervisor, pipelines)
        return EXIT_CLEAN
    lifeline = os.environ.get("MILLSTREAM_LIFELINE")
    return run_in_process(
        app,
        lifeline=int(lifeline) if lifeline else None,
        ready=lambda: _say(supervisor, READY + pipelines),
        health=_health(os.environ),
        health_allow=os.environ.get(ALLOW_VARIABLE, "").split(),
    )


def _keep_history(app: App) -> None:
    """Let the app write the history of its server, with the module that ``millstream run`` names."""
    named = os.environ.pop("MILLSTREAM_HISTORY", None)
    if named is None or not app.registry or spare.is_here():
        return
    keeping, stack = importlib.import_module(named).keeping, AsyncExitStack()

    async def begin() -> None:
        await stack.enter_async_context(keeping(app.url))

    app.after_startup(begin)
    app.on_shutdown(stack.aclose)


def prepared(target: str) -> App | None:
    """Set up logging and find the app, by environment variables; print an error and return None on failure."""
    level = os.environ.get("MILLSTREAM_LOG_LEVEL", "INFO")
    logging.basicConfig(format="%(asctime)s %(levelname)s [%(process)d] %(name)s: %(message)s", level=level.upper())
    try:
        app = find_app(target, os.environ.get("MILLSTREAM_APP_DIR"))
    except ConfigError as error:
        print(f"Error: {error}", file=sys.stderr)  # noqa: T201 - this is a program
        return None
    except SystemExit as error:
        hint = "Raise an exception, or move the exit into a function that the import does not call."
        print(f"Error: importing {target} called exit({error.code!r}). {hint}", file=sys.stderr)  # noqa: T201 - as above
        return None
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        shown = loggable(tame(error))
        log.exception("importing %s failed", target, exc_info=(type(shown), shown, users_part(shown.__traceback__)))
        return None
    grace = os.environ.get("MILLSTREAM_GRACE")
    if grace:
        app.grace = float(grace)
    url = os.environ.get("MILLSTREAM_RUN_URL")
    if url:
        app.url = url
    try:
        check_remote(app.url)
    except ConfigError as error:
        print(f"Error: {error}", file=sys.stderr)  # noqa: T201 - as above
        return None
    return app


def find_app(target: str, folder: str | None = None) -> App:
    """Return the app that ``module:name`` names, or that ``module:make_app()`` returns."""
    return find(target, App, "app", folder)


def find(target: str, kind: type[Found], word: str, folder: str | None = None) -> Found:
    """Return the object of a kind that ``module:name`` names, or that ``module:make()`` returns."""
    module_name, colon, attribute = target.removesuffix("()").partition(":")
    if not colon or not all(name.replace(".", "_").isidentifier() for name in (module_name, attribute)):
        raise ConfigError(
            f"{without_password(target)!r} is not an {word}. Give module:name, for example orders:{word} for "
            f"{word} in orders.py."
        )
    here = str(Path(folder or "").resolve())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module exists, but an import in it fails: the traceback is more useful than a message
        raise ConfigError(f"there is no module {error.name!r} in {here} or on the Python path") from None
    found: object = module
    for name in attribute.split("."):
        if not hasattr(found, name):
            apps = [key for key, value in vars(module).items() if isinstance(value, kind)]
            hint = f"; its {word}s: {', '.join(apps)}" if apps else ""
            raise ConfigError(f"module {module_name!r} has no {attribute!r}{hint}")
        found = getattr(found, name)
    if target.endswith("()"):
        if not callable(found):
            raise ConfigError(f"{target} cannot be called: {attribute} is a {type(found).__name__}")
        found = found()
    if not isinstance(found, kind):
        package = kind.__module__.partition(".")[0]
        raise ConfigError(f"{target} is a {type(found).__name__}, not a {package}.{kind.__name__}")
    return found


def _health(environment: Mapping[str, str]) -> tuple[str, int] | None:
    """Return the address of this worker's health endpoint; each further worker uses the next port."""
    host, colon, port = environment.get("MILLSTREAM_HEALTH", "").rpartition(":")
    if not colon:
        return None
    return host, int(port) + int(environment.get("MILLSTREAM_WORKER", "1")) - 1


def _tell_own_kill(supervisor: int, pid: int, event: str, words: tuple[object, ...]) -> None:
    """Report to the supervisor that code in this process kills it.

    Otherwise such an exit by SIGKILL would look like a kill from outside.
    """
    if event in ("os.kill", "os.killpg") and words[1] == signal.SIGKILL and words[0] in (pid, 0, -1, -pid):
        _say(supervisor, OWN)


def _say(supervisor: int | None, lines: bytes) -> None:
    if supervisor is not None:
        with suppress(OSError):
            os.write(supervisor, lines)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))

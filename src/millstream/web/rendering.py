"""Conversion of a page to bytes: the whole HTML, its JSON, or the part that changes. Everything is escaped."""

import hashlib
import json
import re
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from millstream._version import __version__
from millstream.ops import words
from millstream.ops.words import raw_line, shell_line
from millstream.ops.workers.status import process_of
from millstream.texts import json_text, plural, time_text
from millstream.web import page as links
from millstream.web.page import Asked, WebPage
from millstream.web.wording import LOSING, deed, label, short

STATIC = files("millstream.web") / "static"

FILES = {
    "console.css": "text/css; charset=utf-8",
    "console.js": "text/javascript; charset=utf-8",
    "charts.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
"""Every file that a page loads, with its type."""

_REST = b'<div id="notice"'  # beginning of the part after the bar
_COMMANDS = 40  # number of raw commands that a page shows
_LONG = 400  # characters of one command that are shown

_WORDS = ("name", "brief", "lines", "count", "rate", "span", "ago", "idle", "micros", "size")  # filters by these names

SECTIONS = (
    ("/", "Overview", "o"),
    ("/dead", "Dead letters", "d"),
    ("/handlers", "Handlers", "h"),
    ("/workers", "Workers", "w"),
    ("/alerts", "Alerts", "l"),
    ("/changes", "Changes", "e"),
    ("/schedules", "Schedules", "c"),
    ("/spark", "Spark", "q"),
    ("/archive", "Archive", "a"),
    ("/server", "Server", "s"),
)
"""The pages in the navigation, each with the key that follows ``g``.

The archive and schedules are shown only if there are some.
"""


def moment(milliseconds: int | None) -> Markup:
    """Return a time in UTC, to the second. Its tooltip has the milliseconds."""
    if milliseconds is None:
        return escape(words.DASH)
    whole = time_text(milliseconds)
    if "T" not in whole:  # no calendar has it
        return escape(whole)
    return Markup('<time datetime="{}" title="{}">{}</time>').format(whole, whole, whole[:19].replace("T", " "))


def ticks(text: str) -> Markup:
    """Return a sentence with the texts between backticks as code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))  # noqa: S704 - it is escaped


def static(name: str) -> bytes:
    """Return a static file of the console."""
    return (STATIC / name).read_bytes()


@cache
def version(name: str) -> str:
    """Return a version text for a file's address. It changes with the file, so browsers may cache the file for ever."""
    return hashlib.sha256(static(name)).hexdigest()[:12]


@cache
def environment() -> Environment:
    """Return the template environment. It escapes all values but own markup, and a missing name is an error."""
    made = Environment(
        loader=PackageLoader("millstream.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters.update({name: getattr(words, name) for name in _WORDS})
    made.filters.update(
        moment=moment,
        process=process_of,
        short=short,
        label=label,
        deed=deed,
        ticks=ticks,
        stamp=time_text,
        json=json_text,
    )
    made.globals.update(
        plural=plural, losing=LOSING, static=lambda name: f"/static/{name}?v={version(name)}", form_word=links.form_word
    )
    return made


def prepare() -> None:
    """Compile the templates, so that the first request need not wait for it."""
    for name in environment().list_templates():
        environment().get_template(name)


def html(page: WebPage, asked: Asked) -> bytes:
    """Return the whole page.

    Names are shown without halves of surrogate pairs; a remaining half must not fail the page.
    """
    text = environment().get_template("base.html").render(_context(page, asked))
    return text.encode(errors="backslashreplace")


def beginning(asked: Asked) -> bytes:
    """Return the beginning of a page that waits for its facts: the bar and a notice."""
    named = asked.words.get("group") or asked.words.get("key") or asked.words.get("id")
    title = next((title for path, title, _ in SECTIONS if path == asked.path), "Millstream")
    page = WebPage(
        "trouble", title if named is None else words.name(named), {}, {"words": "", "back": None}, live=False
    )
    return (
        html(page, asked).partition(_REST)[0] + environment().get_template("asking.html").render(asked=asked).encode()
    )


def rest(page: WebPage, asked: Asked) -> bytes:
    """Return the part of a page after :func:`beginning`."""
    whole = html(page, asked)
    return whole[whole.index(_REST) :]


def inner(page: WebPage, asked: Asked) -> str:
    """Return the content of the page's ``main`` element, the part that is refreshed."""
    return environment().get_template("main.html").render(_context(page, asked))


def twin(page: WebPage, asked: Asked) -> str:
    """Return the facts as JSON."""
    whole = {
        "page": page.name,
        "server": asked.watch.server.address,
        "at_ms": page.at_ms,
        "trouble": page.trouble or None,
        "shell": [shell_line(line) for line in page.shell],
        "commands": _commands(page),
        "commands_sent": page.sent,
        **page.facts,
    }
    return json_text(whole, indent=2) + "\n"


def event(kind: str, facts: dict[str, Any]) -> bytes:
    """Return the bytes of a server-sent event."""
    return f"event: {kind}\ndata: {json.dumps(facts)}\n\n".encode()


def _context(page: WebPage, asked: Asked) -> dict[str, Any]:
    """Return the values that the templates may use."""
    base, missing = asked.settings.base, _missing(asked)
    servers = enumerate(asked.settings.servers)
    return {
        "page": page,
        "asked": asked,
        "base": base,
        "link": asked.link,
        "here": asked.here,
        "now": page.at_ms,
        **page.view,
        "version": __version__,
        "sections": [
            (asked.link(path), title, path == asked.path, key) for path, title, key in SECTIONS if path not in missing
        ],
        "servers": [(each.name, links.address(f"{base}/", {}, number)) for number, each in servers],
        "twin": base + links.twin(asked.path, asked.query),
        "shell": [shell_line(line) for line in page.shell],
        "commands": _commands(page),
    }


def _missing(asked: Asked) -> set[str]:
    """Return the paths of pages without content."""
    archive = set() if asked.settings.archive is not None else {"/archive"}
    return archive if asked.path == "/schedules" or asked.watch.recurring else archive | {"/schedules"}


def _commands(page: WebPage) -> list[str]:
    return [words.brief(raw_line(command), _LONG) for command in page.commands[:_COMMANDS]]

"""Writes docs/promises.md from docs/promises.toml and the figures of the last campaigns; run by ``make docs``.

A campaign keeps what its last whole run came to in ``.campaigns/``; this script takes those figures over into
docs/figures.json, which is committed, and writes the page from there. A test compares page and data, so the page cannot
say what nobody measured.
"""

import json
import tomllib
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "promises.md"
PROMISES = ROOT / "docs" / "promises.toml"
FIGURES = ROOT / "docs" / "figures.json"
RECORDS = ROOT / ".campaigns"

HEAD = """\
# What is promised, and how it is known

*Written by `make docs` from `docs/promises.toml` and `docs/figures.json`; change those.*

Each promise names the tests that hold it. `make test` runs the small ones on every change. `make test-long` runs the
large ones, campaigns that go on where they were interrupted; the figure is that of the last whole run, with its day and
the commit it ran on. "Never run" means that no whole run is recorded. The machine of the figures has two cores, and was
shared.

## The three fsync modes

| `--fsync` | a reply means | the end of the process takes | the end of the machine takes |
|---|---|---|---|
| `always` (default) | the write is on the medium; many clients share one sync | nothing | nothing |
| `everysec` | the operating system has the write | nothing | what was acknowledged in the last second and one sync |
| `no` | the operating system has the write | nothing | what the kernel had not yet stored, some 30 seconds on Linux |

The end of the process is any: SIGTERM, SIGKILL, a crash. In every mode what is left is a prefix of the history: a later
write is never there without an earlier one, and a transaction is whole or absent. In every mode nobody is shown a write
whose reply could not have been sent yet. `--memory` keeps nothing.
"""


def load_figures() -> dict[str, dict[str, Any]]:
    """The recorded figures by campaign."""
    if not FIGURES.exists():
        return {}
    figures: dict[str, dict[str, Any]] = json.loads(FIGURES.read_text())
    return figures


def gathered(figures: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The figures with those of campaigns that were run in this checkout since; a later day wins."""
    found = dict(figures)
    for path in sorted(RECORDS.glob("*.json")):
        last = json.loads(path.read_text()).get("last", {})
        if "day" in last and last["day"] >= found.get(path.stem, {}).get("day", ""):
            found[path.stem] = last
    return dict(sorted(found.items()))


def parts() -> list[dict[str, Any]]:
    """The promises as they are written down."""
    found: list[dict[str, Any]] = tomllib.loads(PROMISES.read_text())["part"]
    return found


def figures_of(promise: dict[str, Any], figures: dict[str, dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    """The figures of a promise's campaigns."""
    patterns = promise.get("campaigns", [])
    return [(name, figure) for name, figure in figures.items() if any(fnmatch(name, pattern) for pattern in patterns)]


def last_figure(promise: dict[str, Any], figures: dict[str, dict[str, Any]]) -> str:
    """What the last whole runs came to, in words; one figure a pattern."""
    if "never" in promise:
        return str(promise["never"])
    if not promise.get("long") and not promise.get("campaigns"):
        return "no large one: all of it runs on every change"
    told = []
    for pattern in promise.get("campaigns", []):
        some = [figure for name, figure in figures.items() if fnmatch(name, pattern)]
        told.append(in_words(pattern, some))
    return "; ".join(told) or "never recorded"


def in_words(name: str, figures: list[dict[str, Any]]) -> str:
    """The sum of some figures of one kind."""
    if not figures:
        return f"`{name}`: never run"
    count, seconds = sum(one["count"] for one in figures), sum(one["seconds"] for one in figures)
    days = sorted({one["day"] for one in figures})
    commits = sorted({one["commit"] for one in figures})
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    campaigns = "" if len(figures) == 1 else f" in {len(figures)} campaigns"
    return f"`{name}`: {count:,} {figures[0]['unit']}{campaigns}, {seconds:,.0f} s, {when}, {', '.join(commits)}"


def repeated(promise: dict[str, Any]) -> str:
    """The commands that repeat a promise's tests."""
    lines = []
    if promise.get("small"):
        lines.append(f'make test ARGS="{" ".join(promise["small"])}"')
    if promise.get("long"):
        lines.append(f'make test-long ARGS="{" ".join(promise["long"])}"')
    return "\n".join(lines)


def section(part: dict[str, Any], figures: dict[str, dict[str, Any]]) -> str:
    """One part of the page."""
    text = f"\n## {part['title']}\n"
    for promise in part["promise"]:
        text += f"\n**{promise['says']}**\n\n"
        text += f"- last figure: {last_figure(promise, figures)}\n"
        for label, key in (("every change", "small"), ("large", "long")):
            if promise.get(key):
                text += f"- {label}: {', '.join(f'`{test}`' for test in promise[key])}\n"
        if commands := repeated(promise):
            text += f"\n```sh\n{commands}\n```\n"
    return text


def page(figures: dict[str, dict[str, Any]]) -> str:
    """The whole page."""
    return HEAD + "".join(section(part, figures) for part in parts())


if __name__ == "__main__":
    gathered_figures = gathered(load_figures())
    FIGURES.write_text(json.dumps(gathered_figures, indent=1) + "\n")
    PAGE.write_text(page(gathered_figures))

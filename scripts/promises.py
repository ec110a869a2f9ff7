"""Write docs/promises.md from docs/promises.toml and the figures of the last campaigns; run by ``make docs``.

A campaign keeps in ``.campaigns/`` the figures of its last whole run and the progress of a later one. This script
copies those figures into docs/figures.json, which is committed, and writes the page from there. A test compares page
and data, so the page cannot show figures that were not measured.
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
# Promises and their tests

*Written by `make docs` from `docs/promises.toml` and `docs/figures.json`; change those.*

Each promise names the tests that hold it. `make test-all` runs the small ones before every landing. `make test-long`
runs the large ones, campaigns of many pieces that continue after an interruption. The figure is that of the last whole
run, with its day and the commit on which it ended. "Begun" gives the progress of an unfinished run, and its failures.
"Never run" means that neither is recorded. A campaign ends at the first failure, so a whole run has none. The machine
of the figures has two cores, and was shared.

## The three fsync modes

| `--fsync` | a reply means | the end of the process takes | the end of the machine takes |
|---|---|---|---|
| `always` (default) | the write is on the medium; many clients share one sync | nothing | nothing |
| `everysec` | the operating system has the write | nothing | writes acknowledged in the last second and one sync |
| `no` | the operating system has the write | nothing | writes not yet stored by the kernel, some 30 seconds on Linux |

The process may end in any way: SIGTERM, SIGKILL, a crash. In every mode a prefix of the history is left: a later write
is never there without an earlier one, and a transaction is whole or absent. In every mode no client sees a write whose
reply could not have been sent yet. `--memory` keeps nothing.
"""


def load_figures() -> dict[str, dict[str, Any]]:
    """Return the recorded figures by campaign."""
    if not FIGURES.exists():
        return {}
    figures: dict[str, dict[str, Any]] = json.loads(FIGURES.read_text())
    return figures


def gathered(figures: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the figures with those of campaigns that were run in this checkout since; a later day wins.

    A figure is that of a whole run. A run begun since is in it as ``begun``, or alone if no run was whole.
    """
    found = dict(figures)
    for path in sorted(RECORDS.glob("*.json")):
        record = json.loads(path.read_text())
        known = dict(found.get(path.stem, {}))
        last, begun = record.get("last", {}), record.get("begun")
        if "day" in last and last["day"] >= known.get("day", ""):
            known = last
        if begun is not None and begun["day"] >= known.get("day", ""):
            known = known | {"begun": begun}
        if known:
            found[path.stem] = known
    return dict(sorted(found.items()))


def parts() -> list[dict[str, Any]]:
    """Return the promises from their file."""
    found: list[dict[str, Any]] = tomllib.loads(PROMISES.read_text())["part"]
    return found


def figures_of(promise: dict[str, Any], figures: dict[str, dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    """Return the figures of a promise's campaigns."""
    patterns = promise.get("campaigns", [])
    return [(name, figure) for name, figure in figures.items() if any(fnmatch(name, pattern) for pattern in patterns)]


def last_figure(promise: dict[str, Any], figures: dict[str, dict[str, Any]]) -> str:
    """Return the results of the last whole runs in words, one figure per pattern."""
    if "never" in promise and not promise.get("campaigns"):
        return str(promise["never"])
    if "measured" in promise:
        return f"measured by `{promise['measured']}`, depends on the machine: see [benchmarks.md](benchmarks.md)"
    if not promise.get("long") and not promise.get("campaigns"):
        return "no campaign: all of its tests run on every change"
    found = []
    for pattern in promise.get("campaigns", []):
        some = [figure for name, figure in figures.items() if fnmatch(name, pattern)]
        found.append(in_words(pattern, some, promise.get("number", {}).get(pattern, 1)))
    if "never" in promise:
        found[-1] += f". {promise['never']}"
    return "; ".join(found) or "never recorded"


def in_words(name: str, figures: list[dict[str, Any]], number: int = 1) -> str:
    """Return the results of the campaigns of one name: whole runs, begun ones, and campaigns without a run.

    Args:
        name: Name of the campaign, or a pattern of several.
        figures: Known figures.
        number: Number of campaigns with this name.
    """
    whole = [one for one in figures if "day" in one]
    begun = [one["begun"] for one in figures if "begun" in one]
    found = []
    if whole:
        campaigns = f" in {len(whole)} of {number} campaigns" if number > 1 else ""
        found.append(f"{summed(whole, campaigns)}")
    if begun:
        pieces, of = sum(one["pieces"] for one in begun), sum(one["of"] for one in begun)
        failed = "stopped at a failure" if any(one["failed"] for one in begun) else "no failure"
        found.append(f"{'begun' if not whole else 'another begun'}, {pieces} of {of} pieces: {summed(begun)}, {failed}")
    if number > 1 and whole and len(figures) < number:
        found.append(f"{number - len(figures)} never run")
    return f"`{name}`: {'; '.join(found) or 'never run'}"


def summed(figures: list[dict[str, Any]], campaigns: str = "") -> str:
    """Return the sum of some figures of one kind."""
    count, seconds = sum(one["count"] for one in figures), sum(one["seconds"] for one in figures)
    days = sorted({one["day"] for one in figures})
    commits = sorted({one["commit"] for one in figures})
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    return f"{count:,} {figures[0]['unit']}{campaigns}, {seconds:,.0f} s, {when}, {', '.join(commits)}"


def repeated(promise: dict[str, Any]) -> str:
    """Return the commands that repeat a promise's tests."""
    lines = []
    if promise.get("small"):
        lines.append(f'make test-all ARGS="{" ".join(promise["small"])}"')
    if promise.get("long"):
        lines.append(f'make test-long ARGS="{" ".join(promise["long"])}"')
    return "\n".join(lines)


def section(part: dict[str, Any], figures: dict[str, dict[str, Any]]) -> str:
    """Return one part of the page."""
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
    """Return the whole page."""
    return HEAD + "".join(section(part, figures) for part in parts())


def promised(figures: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the figures that a promise shows, without records of removed campaigns."""
    promises = [promise for part in parts() for promise in part["promise"]]
    return dict(sorted({name: one for promise in promises for name, one in figures_of(promise, figures)}.items()))


if __name__ == "__main__":
    gathered_figures = promised(gathered(load_figures()))
    FIGURES.write_text(json.dumps(gathered_figures, indent=1) + "\n")
    PAGE.write_text(page(gathered_figures))

"""Memory, rewriting and start by the number of entries, hot and cold, as pictures and a section of the page.

A hot server and a cold one grow to four sizes. At each size the script reads the resident memory, rewrites the log, and
starts the server from its snapshot.
"""

import json
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.server import page, pictures
from bench.server.servers import load_average, machine
from bench.tier.places import Place, base_memory, fill, millstream, settled
from bench.tier.results import Result
from bench.tier.standing import limit_for, restart, rewrite

PART, PICTURES = "tier-curves", page.PICTURES / "tier"
BEGIN = "<!-- begin: written by bench.tier curves -->\n"
COLORS = {"hot": "#b3261e", "cold": "#1a5fb4"}
CURVES = {
    "Resident memory by entries": (" MB", "resident memory of the server"),
    "Start by entries": (" s", "processor time of a start"),
    "Rewriting by entries": (" s", "processor time of the child"),
    "Memory of a rewriting by entries": (" MB", "largest memory of the child"),
}
"""Unit and vertical axis of each curve."""
STARTS = 2

TEXT = """\
`.venv/bin/python -m bench.tier curves`: {day}, commit {commit}, {cores} cores ({processor}) shared with other work, \
load average {load[0]:g} to {load[1]:g}, Python {python}, {minutes:.0f} minutes.

Two servers grow to each size, one without a tier (hot) and one with `maxmemory {limit}` and `tier yes` (cold). At \
each size their logs are rewritten, so each rewriting reads the log of all entries since the size before. The times \
are seconds of processor; of {starts} starts the faster one counts."""


def grown(folder: Path, entries: int, output: Path | None) -> Iterator[Result]:
    """Yield ratios at a tenth, three tenths, one and three times the entries, and write the curves."""
    before, begun = load_average(), time.monotonic()
    limit = limit_for(entries, base_memory(folder))
    found: dict[str, dict[str, dict[str, float]]] = {name: {kind: {} for kind in COLORS} for name in CURVES}
    sizes = [max(entries * tenths // 10, 1) for tenths in (1, 3, 10, 30)]
    cold = millstream(folder / "cold", "cold", f"maxmemory={limit}", "tier=yes")
    with millstream(folder / "hot", "hot") as hot, cold:
        for old, size in zip([0, *sizes], sizes, strict=False):
            for place in (hot, cold):
                for name, value in zip(CURVES, _measured(place, old, size), strict=True):
                    found[name][place.name][str(size)] = float(f"{value:.4g}")
            for name, by_kind in found.items():
                ratio = by_kind["cold"][str(size)] / max(by_kind["hot"][str(size)], 0.01)
                yield Result("curves", f"{size:,} entries: {name.partition(' by ')[0].lower()}, cold to hot", ratio)
            about = machine(before, time.monotonic() - begun) | {"limit": limit, "starts": STARTS}
            _keep({"about": about, "found": found}, output)  # the largest size takes longer than all before it


def _keep(found: dict[str, Any], output: Path | None) -> None:
    """Keep the results so far."""
    target = output or page.RESULTS
    results = (json.loads(target.read_text()) if target.exists() else {}) | {PART: found}
    target.write_text(json.dumps(results, indent=1) + "\n")
    if output is None:
        write(results)


def _measured(place: Place, old: int, size: int) -> tuple[float, float, float, float]:
    """Let a server grow to a size; return its value of each curve."""
    took = fill(place.server, size - old, old)
    _say(f"{place.name}, {size:,} entries: filled in {took:.0f} s")
    if place.name == "cold":
        settled(place.server.client)
    resident = place.server.memory()
    peak, spent, _ = rewrite(place)
    _say(f"resident {resident / 1e6:.0f} MB; rewriting took {spent:.2f} s of processor, {peak / 1e6:.0f} MB")
    start = min(restart(place) for _ in range(STARTS))
    _say(f"a start took {start:.2f} s of processor")
    return resident / 1e6, start, spent, peak / 1e6


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def write(results: dict[str, Any]) -> None:
    """Write the section of the page and the pictures."""
    page.PAGE.write_text(page.placed(page.PAGE.read_text(), BEGIN, section(results)))
    pictures.draw({name: picture(name, found) for name, found in results[PART]["found"].items()}, PICTURES)


def picture(name: str, found: dict[str, dict[str, float]]) -> str:
    """Draw a curve with a line for each server."""
    unit, up = CURVES[name]
    return pictures.plot(found, COLORS, f"{name}: {up}", unit, ("entries", up))


def section(results: dict[str, Any]) -> str:
    """Return the section as Markdown."""
    about = results[PART]["about"]
    limit = f"{about['limit'] / (1 << 20):.0f}mb"
    text = TEXT.format(**(about | {"limit": limit, "minutes": about["took"] / 60}))
    parts = [textwrap.fill(each, 120, break_on_hyphens=False) + "\n\n" for each in text.split("\n\n")]
    for name, found in results[PART]["found"].items():
        rows = [[kind, *map(page.digits, by_size.values())] for kind, by_size in found.items()]
        sizes = [f"{int(size):,}" for size in found["hot"]]
        picture_path = f"{page.PICTURES.name}/{PICTURES.name}/{pictures.file_name(name)}"
        parts.append(f"![{name}]({picture_path})\n\n")
        parts.append(page.table([f"{name},{CURVES[name][0]}", *sizes], rows) + "\n")
    return "".join(parts).rstrip("\n") + "\n"

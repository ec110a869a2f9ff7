"""Runs tests under coverage and lists the modules they leave under a bound; run by ``make coverage``.

Branches count, and so does what other processes run: a server that a test starts, and each process of pytest-xdist. A
process that is killed leaves no figures, so what only killed processes run is listed too low.
"""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
BOUND = 80.0
"""Per cent of the lines and branches of a module; under it the module is listed."""


def coverage(*words: str) -> int:
    """One command of coverage's; its exit code."""
    return subprocess.run([sys.executable, "-m", "coverage", *words], cwd=ROOT, check=False).returncode


def listed(report: dict[str, dict[str, dict[str, dict[str, float]]]], bound: float = BOUND) -> list[str]:
    """The modules under ``bound``, the least covered first, as lines; ``report`` is coverage's JSON."""
    shares = {name: facts["summary"]["percent_covered"] for name, facts in report["files"].items()}
    under = sorted((share, name) for name, share in shares.items() if share < bound)
    return [f"{share:5.1f} %  {name}" for share, name in under]


def main(arguments: list[str]) -> int:
    """Run pytest with ``arguments``, then say what is under the bound; pytest's exit code."""
    coverage("erase")
    ended = coverage("run", "-m", "pytest", *arguments)
    coverage("combine", "--quiet")
    file = ROOT / ".coverage.json"
    coverage("json", "--quiet", "-o", str(file))
    report = json.loads(file.read_text())
    under = listed(report)
    print(f"\n{len(under)} of {len(report['files'])} modules are under {BOUND:.0f} %:", *under, sep="\n")
    print(f"{report['totals']['percent_covered']:5.1f} %  of all lines and branches")
    return ended


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

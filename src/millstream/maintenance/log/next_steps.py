"""Advice on a damaged log, with the same text for every command that finds damage."""

from pathlib import Path


def safety_steps(home: Path) -> list[str]:
    """Return the first steps, best first. With a copy, every later step can be repeated."""
    return [
        f"Copy {home} to another disk before anything else, and look for what damages files there.",
        "If there is a backup, restore it: `millstream restore BACKUP NEW_DIR`.",
    ]


def dump_step(home: Path) -> str:
    """Return the step that shows the remaining records."""
    return f"See every record that can still be read: `millstream log dump {home} --past-damage`."

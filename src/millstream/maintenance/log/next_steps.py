"""Advice on a damaged log, in the same words for every finder of the damage."""

from pathlib import Path


def safety_steps(home: Path) -> list[str]:
    """The steps before all others, best first: with a copy every later step can be tried again."""
    return [
        f"Copy {home} to another disk before anything else, and look for what damages files there.",
        "If there is a backup, restore it: `millstream restore BACKUP NEW_DIR`.",
    ]


def dump_step(home: Path) -> str:
    """The command that shows what is left."""
    return f"See every record that can still be read: `millstream log dump {home} --past-damage`."

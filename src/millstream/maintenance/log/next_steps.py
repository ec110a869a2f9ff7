"""What to do about a damaged log, in the same words whoever finds the damage."""

from pathlib import Path


def safety_steps(home: Path) -> list[str]:
    """What comes before all else, best first: whatever is tried next, the copy can be tried again."""
    return [
        f"Copy {home} to another disk before anything else, and look for what damages files there.",
        "If there is a backup, restore it: `millstream restore BACKUP NEW_DIR`.",
    ]


def dump_step(home: Path) -> str:
    """How to see what is left."""
    return f"See every record that can still be read: `millstream log dump {home} --past-damage`."

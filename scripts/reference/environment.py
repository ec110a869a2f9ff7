"""The table of environment variables for users, and those that Millstream's processes set for one another."""

import re
from pathlib import Path

from scripts.reference.markdown import code, prose, table

SOURCE = Path(__file__).parents[2] / "src"

VARIABLES = {
    "MILLSTREAM_URL": "the server, for every part: commands, workers, Spark, `millstream.connect`",
    "REDIS_URL": "the same where MILLSTREAM_URL is not set",
    "MILLSTREAM_REQUIREPASS": "password of the default user, for `millstream serve`",
    "MILLSTREAM_MASTERUSER": "user with which `millstream serve` logs in to the server that it follows",
    "MILLSTREAM_MASTERAUTH": "password of that user",
    "MILLSTREAM_CONTEXT": "the context to use, a named server (docs/contexts.md)",
    "MILLSTREAM_COMPLETE_TIMEOUT": "seconds that completion by Tab waits for the server's names; 0.5 unless given",
    "MILLSTREAM_CONSOLE_PASSWORD": "password that browsers must send to `millstream console`",
    "MILLSTREAM_ALERT_WEBHOOK": "URL that `millstream alert watch` tells of alerts",
    "MILLSTREAM_ALERT_SECRET": "secret that signs its requests",
    "MILLSTREAM_CORE": "`python` or `native`: which core is used; `native` makes it an error if there is none",
}
#: Set by ``millstream run`` for the processes that it starts, or by tests.
INTERNAL = frozenset(
    f"MILLSTREAM_{word}"
    for word in [
        "APP_DIR",
        "FAILPOINTS",
        "GRACE",
        "HEALTH",
        "HISTORY",
        "IS_SPARE",
        "KILL_BLOCKED_AFTER",
        "HEALTH_ALLOW",
        "LIFELINE",
        "LOG_LEVEL",
        "READY",
        "RUN_URL",
        "SIGNALS",
        "SPARE",
        "SPARE_ENDS",
        "SPARK",
        "WORKER",
    ]
)


def named(source: Path = SOURCE) -> set[str]:
    """Return every variable that the source names."""
    texts = (path.read_text() for path in source.rglob("*.py"))
    return {name for text in texts for name in re.findall(r"[\"']((?:MILLSTREAM|REDIS)_[A-Z_]+)[\"']", text)}


def variables() -> str:
    """Return the table of variables.

    Raises:
        ValueError: The source names a variable that is neither described here nor internal.
    """
    if unknown := named() - set(VARIABLES) - INTERNAL:
        raise ValueError(f"variables that nobody describes: {', '.join(sorted(unknown))}")
    return "\n" + table(["variable", "meaning"], [(code(name), prose(says)) for name, says in VARIABLES.items()]) + "\n"

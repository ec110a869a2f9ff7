"""The tables of CONFIG's parameters: those that can be set, and the fixed ones."""

from scripts.reference.markdown import code, meaning, table

from millstream.commands.context.config import PARAMETERS, Config, Parameter

#: Where the page of the server says more.
MORE = {
    "requirepass": "see [Users](#users)",
    "aclfile": "see [Users](#users)",
    "auto-aof-rewrite-percentage": "see [rewriting the log](#rewriting-the-log)",
    "disk-free-floor": "see [when the disk is full](#when-the-disk-is-full-or-fails)",
    "busy-reply-threshold": "see [scripts](scripting.md)",
    "tls-port": "see [TLS](#tls)",
}

#: Values that `millstream serve` without options sets.
SERVED = {"bind": "127.0.0.1", "port": "6379", "dir": "./millstream-data", "appendonly": "yes"}


def table_of_parameters() -> str:
    """Return the table of parameters that CONFIG SET changes."""
    return _table([each for each in PARAMETERS.values() if each.mutable], "default")


def table_of_facts() -> str:
    """Return the table of parameters that CONFIG SET does not change, with their default."""
    return _table([each for each in PARAMETERS.values() if not each.mutable], "default")


def _table(parameters: list[Parameter], head: str) -> str:
    texts = Config().texts() | SERVED
    rows = [
        (code(each.name), texts[each.name] or "(none)", meaning(each.says, MORE.get(each.name))) for each in parameters
    ]
    return "\n" + table(["parameter", head, "meaning"], rows) + "\n"

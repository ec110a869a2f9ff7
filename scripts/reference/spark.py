"""The tables of Spark's options, from the declarations of their names."""

from collections.abc import Callable

from scripts.reference.markdown import code, meaning, table

from millstream.spark.options.names import APPEND, BATCH, GROUP, LOOKUP, OPTIONS, STREAM, VIEW, WRITE, Option

#: Option -> where a page says more.
MORE = {
    "failOnDataLoss": "[what is lost and what is not](explanation.md#exactly-once-and-its-limits)",
    "group": "[show a query's progress](how-to.md#show-a-querys-progress-to-redis-tools)",
    "readFrom": "[read from replicas](how-to.md#read-from-replicas)",
    "archive": "[the archive](../archive.md)",
    "pushdown": "[filters and columns](#filters-and-columns)",
    "includeHeaders": "[headers](#headers)",
    "view": "[views](#views)",
    "mode": "[mode `group`](#options-of-mode-group)",
}


def reading() -> str:
    """Return the options of ``load()``."""
    return _table(BATCH, STREAM)


def writing() -> str:
    """Return the options of ``save()`` and ``start()``."""
    return _table(WRITE, APPEND)


def of_groups() -> str:
    """Return the options of mode ``group``: its own with their text, the others by name."""
    known = [name for name, each in OPTIONS.items() if GROUP in each.uses]
    own = [name for name in known if set(OPTIONS[name].uses) == {GROUP}]
    rows = [[code(name), OPTIONS[name].default, meaning(OPTIONS[name].says, MORE.get(name))] for name in own]
    rows.append([", ".join(code(name) for name in known if name not in own), "", "as above"])
    return "\n" + table(["option", "default", "meaning"], rows) + "\n"


def of_views() -> str:
    """Return the options of views."""
    known = [code(name) for name, each in OPTIONS.items() if VIEW in each.uses]
    return "\nOptions: " + ", ".join(known) + ".\n\n"


def of_hashes() -> str:
    """Return the options of a read of hashes."""
    known = [(name, each) for name, each in OPTIONS.items() if LOOKUP in each.uses]
    own = [(name, each) for name, each in known if each.uses == (LOOKUP,)]
    rows = [[code(name), meaning(each.says, None)] for name, each in own]
    rows.append([", ".join(code(name) for name, each in known if (name, each) not in own), "as above"])
    return "\n" + table(["option", "meaning"], rows) + "\n"


def _table(*uses: str) -> str:
    rows = [
        (code(name), _kind(each, *uses), each.default, meaning(each.says, MORE.get(name)))
        for name, each in OPTIONS.items()
        if set(each.uses) & set(uses)
    ]
    return "\n" + table(["option", "kind", "default", "meaning"], rows) + "\n"


def _kind(each: Option, one: str, other: str) -> str:
    both = one in each.uses and other in each.uses
    if one == WRITE:
        return "both" if one in each.uses else "batch"
    return "both" if both else one if one in each.uses else other


BLOCKS: dict[str, Callable[[], str]] = {
    "spark options for reading": reading,
    "spark options for writing": writing,
    "spark options of mode group": of_groups,
    "spark options of views": of_views,
    "spark options of hashes": of_hashes,
}

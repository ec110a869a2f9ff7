"""The import rules of ARCHITECTURE.md as tables, and functions that list the violations.

Each function takes the modules of a source tree and returns one line for each violation, so that tests can plant one.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterable

from support.source import Import, Module, part_of

# Leaves: one error tree, the clock protocol, times as people write them, what a signal asks for, the reply values,
# patterns of keys, names of local files, text for terminals, values as text, scales and columns of drawings, the
# choice between C and Python. All may use them, and they use only each other.
LEAVES = frozenset(
    "errors clock times ending replies glob paths printable texts scales logs failpoints core _version".split()  # noqa: SIM905 - shorter than quoted words
)

# The compiled part, written in C, without a Python source
COMPILED = "_native"

# part -> the other parts it may import, beside the leaves. Dependencies point one way: engine <- commands <- node <-
# server. Only the node joins commands with the log and the wire. Parts that work against any server reach it by a
# client.
MAY_IMPORT: dict[str, frozenset[str]] = {
    "errors": frozenset(),
    "clock": frozenset(),
    "times": frozenset(),
    "ending": frozenset(),
    "replies": frozenset(),
    "glob": frozenset(),
    "paths": frozenset(),
    "printable": frozenset(),
    "texts": frozenset(),
    "scales": frozenset(),
    "logs": frozenset(),
    "failpoints": frozenset(),
    "core": frozenset({COMPILED}),  # the one door to it
    COMPILED: frozenset(),
    "_version": frozenset(),
    "protocol": frozenset(),
    "persistence": frozenset(),
    "engine": frozenset(),
    "commands": frozenset({"engine"}),
    "replication": frozenset({"engine"}),
    "node": frozenset({"engine", "commands", "protocol", "persistence", "replication"}),
    "server": frozenset({"node", "commands", "protocol", "persistence", "replication"}),
    "embedded": frozenset({"node", "commands", "protocol", "persistence"}),
    "client": frozenset({"embedded"}),  # for memory:// and file://, and only then loaded
    "worker": frozenset({"client"}),
    "spark": frozenset({"client"}),
    # An app's declarations are the worker's and its run is Spark's. Neither imports the other: this joins them.
    "pipelines": frozenset({"client", "worker", "spark"}),
    "ops": frozenset({"client", "worker", "spark"}),  # of these two only OPS_READS
    "web": frozenset({"ops", "client", "worker"}),  # of this one only OPS_READS
    "dashboards": frozenset(),  # text alone
    "maintenance": frozenset(
        {"engine", "node", "persistence", "replication", "client"}
    ),  # reads a log; asks a server for its settings
    "migrate": frozenset({"client", "engine"}),  # of the engine RDB files and payloads, which it reads and writes
    "cli": frozenset(),  # by subcommand, below
    "outbox": frozenset({"worker"}),  # its names for users
    "compat": frozenset({"client", "worker"}),  # other libraries' names on the worker
    "testing": frozenset({"embedded", "client", "server", "worker"}),  # fixtures for users' tests
    "": frozenset({"worker", "client", "embedded"}),  # ``from millstream import App``, on first use
}

# The modules that ops and web may read of workers: their records on the server. Neither handlers nor PySpark come with
# it.
OPS_READS = (
    "millstream.worker.registry",
    "millstream.worker.model.pause",
    "millstream.spark.monitoring.store",
    "millstream.spark.monitoring.record",
    "millstream.spark.model.keys",  # of commit records
    "millstream.spark.archiving.manifest",
    "millstream.spark.archiving.directory",
)

# cli/<name>.py -> the parts it is the door to. The top layer: nothing imports it.
CLI_DOORS: dict[str, frozenset[str]] = {
    "main": frozenset(),
    "shared.output": frozenset(),  # what every subcommand shows its facts with
    "shared.exposition": frozenset(),  # figures as Prometheus reads them
    "shared.time_options": frozenset(),  # times and lengths of time in options
    "shared.confirm": frozenset(),  # the question before what cannot be undone
    "shared.extras": frozenset(),  # what to install for a package that is missing
    "server.serve": frozenset({"server", "commands"}),
    "worker.run": frozenset({"worker", "client"}),
    "worker.outbox": frozenset({"worker", "client"}),
    "worker.dead": frozenset({"worker", "client", "ops"}),
    "worker.letter_changes": frozenset({"worker", "client", "ops"}),
    "worker.editor": frozenset({"client"}),  # a text in the user's editor
    "worker.letters": frozenset({"worker", "client"}),
    "shared.config_files": frozenset({"client"}),  # the files that name servers
    "shared.servers": frozenset({"client"}),  # the choice of the server
    "shared.completing": frozenset({"client", "worker"}),  # names of a server, for a shell
    "contexts.context": frozenset(),
    "contexts.config": frozenset({"client"}),  # for what is secret in a URL
    "shared.asking": frozenset({"client"}),  # a question by the subcommands that take --url
    "worker.worker": frozenset({"worker", "client"}),
    "worker.job": frozenset({"ops"}),
    "worker.handlers": frozenset({"ops"}),
    "partitions.balance": frozenset({"client", "ops"}),
    "partitions.owners": frozenset({"client", "ops"}),
    "worker.orders": frozenset({"worker", "client", "ops"}),
    "spark.sql": frozenset({"spark", "client"}),
    "spark.recover": frozenset({"spark", "client"}),
    "demo": frozenset(),
    "dashboards": frozenset({"dashboards"}),
    "server.log": frozenset({"maintenance", "persistence"}),
    "server.backup": frozenset({"maintenance"}),
    "server.restore": frozenset({"maintenance"}),
    "migrate": frozenset({"migrate", "client"}),
    "compare": frozenset({"migrate", "client"}),
    "server.replicas": frozenset({"ops"}),
    "server.failover": frozenset({"ops", "client"}),
    "server.doctor": frozenset({"maintenance", "ops", "client"}),
    "spark.archive": frozenset({"spark"}),
    "spark.replay": frozenset({"spark", "client"}),
    "shared.lazy": frozenset(),  # groups of subcommands
    "console.console": frozenset({"ops", "web", "client"}),
    "console.servers": frozenset({"client"}),  # as a command line names them
    "alerts.alert": frozenset({"ops", "client"}),
    "console.nouns": frozenset(),  # tables of subcommands
    "console.shown": frozenset({"ops"}),  # how groups are shown
    "console.watching": frozenset({"client"}),  # the same question again and again
    "console.stream": frozenset({"ops", "client"}),
    "console.balance": frozenset({"ops", "client"}),
    "console.group": frozenset({"ops", "client"}),
    "console.consumer": frozenset({"ops", "client"}),
    "console.owners": frozenset({"ops", "client"}),
    "console.check": frozenset({"ops", "client"}),
    "console.checked": frozenset({"ops"}),  # as Nagios and Prometheus read it
    "console.server": frozenset({"ops", "client"}),
    "console.places": frozenset({"ops", "client"}),
    "console.report": frozenset({"ops", "client"}),
    "console.pending": frozenset({"ops", "client"}),
    "changes.changing": frozenset({"ops", "client"}),  # preview, question, change: what all changes do
    "changes.commands": frozenset({"ops", "client"}),  # the command of each declared action
    "changes.options": frozenset({"ops"}),  # the words of actions as options
    "changes.audit": frozenset({"ops", "client"}),
    "shared.paths": frozenset(),  # of this machine
    "shared.secret_files": frozenset(),  # files that no other user reads
    "shared.signals": frozenset(),  # how long commands hear that they are to end
    "spark.queries": frozenset({"spark"}),
    "later.later": frozenset({"ops", "client"}),
    "later.schedule": frozenset({"ops", "client"}),
    "later.limit": frozenset({"ops"}),
    "entries.choosing": frozenset({"ops"}),  # which entries, and how their values are decoded
    "entries.shown": frozenset({"ops"}),  # entries on standard output
    "entries.tail": frozenset({"ops", "client"}),
    "entries.get": frozenset({"ops"}),
    "entries.gaps": frozenset({"ops"}),
    "entries.add": frozenset({"ops", "client", "worker"}),  # entries as an app publishes them
}

# The package itself names the worker's API for users' code; the parts use only the version.
USERS = frozenset({"", "cli"})
FROM_ROOT = frozenset({"millstream.__version__"})

# The folders of ops that have the fixed modules: status, reading and, where a person may change something, changes
NOUNS = (
    *("streams", "groups", "pending", "entries", "letters", "workers", "server", "spark", "findings"),
    *("later", "schedules", "jobs", "limits", "handlers", "alerts"),
)

# Modules and packages that are PURE: no I/O, no clock, no random source; time is an argument.
PURE = (
    "millstream.engine",
    "millstream.replication",
    "millstream.worker.model.answers",
    "millstream.worker.model.known_options",
    "millstream.worker.model.lifecycle",
    "millstream.worker.model.pause",
    "millstream.worker.model.retry",
    "millstream.worker.registry.facts",
    "millstream.client.dead_letter.letter",
    "millstream.client.dead_letter.tries",
    "millstream.client.later.timetable",
    "millstream.client.limits.rate",
    "millstream.client.partitions.layout",
    "millstream.client.slots",
    "millstream.client.jsontext",
    "millstream.client.ranges",
    "millstream.spark.model.offsets",
    "millstream.spark.model.packing",
    "millstream.spark.model.claims",
    "millstream.spark.model.bounds",
    "millstream.spark.archiving.manifest",
    "millstream.spark.archiving.tables.columns",
    "millstream.spark.archiving.tables.shape",
    "millstream.spark.archiving.tables.table",
    "millstream.spark.monitoring.progress",
    "millstream.spark.monitoring.record",
    "millstream.dashboards.boards",
    "millstream.dashboards.grafana",
    "millstream.ops.actions",
    "millstream.ops.plan",
    "millstream.ops.words",
    *(f"millstream.ops.{noun}.status" for noun in NOUNS),
    "millstream.ops.findings.advice",
    "millstream.ops.findings.causes",
    "millstream.ops.findings.check",
    "millstream.ops.findings.memory",
    "millstream.ops.payloads",
    *(f"millstream.ops.history.{name}" for name in ("model", "sampling", "windows")),
    *(f"millstream.ops.server.{name}" for name in ("replicas", "retention")),
    "millstream.client.payloads.envelope",
)

# Modules that read or wait for the world outside the arguments.
IMPURE_MODULES = frozenset(
    """
    asyncio concurrent contextvars ctypes fcntl fileinput getpass glob http importlib io locale logging mmap
    multiprocessing os pathlib platform queue random sched secrets select selectors shutil signal socket socketserver
    sqlite3 ssl subprocess sys tempfile threading time urllib uuid warnings
    """.split()  # noqa: SIM905 - a list of forty quoted words is harder to read
)
IMPURE_CALLS = frozenset({"open", "print", "input", "exec", "eval", "__import__"})
IMPURE_METHODS = (".now", ".utcnow", ".today", ".fromtimestamp")
DATE_NAMES = frozenset({"datetime", "date"})

# asyncio has one home on each side of the wire: the server's shell and what drives a client.
ASYNC_PARTS = frozenset({"server", "embedded", "client", "worker", "pipelines", "ops", "web", "cli"})

# third-party package -> (parts that may import it, the extra of pyproject.toml that brings it; "" is the core)
THIRD_PARTY: dict[str, tuple[frozenset[str], str]] = {
    "click": (frozenset({"cli"}), ""),
    "cronsim": (frozenset({"client"}), ""),
    "tomlkit": (frozenset({"cli"}), ""),
    "hiredis": (frozenset({"protocol", "engine", "replication", "node", "embedded", "client", "spark", "migrate"}), ""),
    "lupa": (frozenset({"node"}), "server"),
    "msgpack": (frozenset({"persistence", "node", "maintenance", "ops"}), ""),
    "xxhash": (frozenset({"engine"}), ""),
    "redis": (frozenset({"embedded", "client", "worker", "compat", "spark", "testing", "migrate", "maintenance"}), ""),
    "msgspec": (frozenset({"worker"}), "dev"),  # only where a handler's own annotations are its structs
    "opentelemetry": (frozenset({"worker"}), "otel"),
    "pytest": (frozenset({"testing"}), "dev"),
    "rich": (frozenset({"cli", "web", "server"}), ""),
    "uvloop": (frozenset({"server"}), "server"),
    "pydantic_core": (frozenset({"worker"}), "worker"),
    "pydantic": (frozenset({"worker"}), "worker"),
    "prometheus_client": (frozenset({"worker", "pipelines"}), "metrics"),
    "watchfiles": (frozenset({"worker"}), "reload"),
    "fast_depends": (frozenset({"worker"}), "worker"),
    "pyspark": (frozenset({"spark", "pipelines"}), "spark"),
    "pyarrow": (frozenset({"spark"}), "spark"),
    "pandas": (frozenset({"spark"}), "spark"),
    "numpy": (frozenset({"spark"}), "spark"),
    "fastavro": (frozenset({"spark"}), "avro"),
    "deltalake": (frozenset({"spark"}), "lake"),
    "obstore": (frozenset({"spark"}), "lake"),
    "pyiceberg": (frozenset({"spark"}), "lake"),
    "sqlalchemy": (frozenset({"spark", "worker", "cli"}), "outbox"),
    "requests": (frozenset({"spark"}), "lake"),  # which comes with pyiceberg
    "starlette": (frozenset({"web"}), "console"),
    "uvicorn": (frozenset({"web"}), "console"),
    "jinja2": (frozenset({"web"}), "console"),
    "markupsafe": (frozenset({"web"}), "console"),  # which comes with jinja2
}

# Distributions whose name differs from that of their module.
DISTRIBUTIONS = {"opentelemetry": "opentelemetry-api"}

# Bytes from a socket, a log or a dump never become code.
UNPICKLERS = frozenset({"pickle", "marshal", "shelve", "cloudpickle", "dill", "jsonpickle"})

# Names that open a connection; nothing outside the client may use them.
CONNECTS = frozenset({"Redis", "StrictRedis", "RedisCluster", "Sentinel", "ConnectionPool", "from_url"})


def _internal(module: Module) -> Iterable[tuple[Import, str]]:
    """Yield imports of other parts of millstream, with the part."""
    for found in module.imports:
        if found.package == "millstream":
            part = part_of(found.name)
            yield found, part if part in MAY_IMPORT else ""


def is_pure(name: str) -> bool:
    """Return True if a dotted module name is one of the PURE modules, or inside one."""
    return any(name == pure or name.startswith(f"{pure}.") for pure in PURE)


def layering(modules: Iterable[Module]) -> list[str]:
    """List parts that import against the allowed direction."""
    broken = []
    for module in modules:
        if module.name.startswith("pyspark_millstream"):
            allowed: frozenset[str] = frozenset({"spark"})
        elif module.part == "cli":
            allowed = CLI_DOORS.get(module.name.removeprefix("millstream.cli."), frozenset())
        else:
            allowed = MAY_IMPORT.get(module.part, frozenset())
        for found, part in _internal(module):
            if part == "":
                fine = found.name in FROM_ROOT or module.part in USERS
            else:
                fine = part in allowed | LEAVES | {module.part}
            if not fine:
                broken.append(f"{module.place}:{found.line} imports {found.name}")
    return broken


def ops_reads(modules: Iterable[Module]) -> list[str]:
    """List the imports of ops and web from worker and spark, except for the records that those keep on the server."""
    return [
        f"{module.place}:{found.line} imports {found.name}"
        for module in modules
        if module.part in {"ops", "web"}
        for found, part in _internal(module)
        if part in {"worker", "spark"}
        and not any(found.name == name or found.name.startswith(f"{name}.") for name in OPS_READS)
    ]


def unknown_parts(modules: Iterable[Module]) -> list[str]:
    """List parts and subcommands without a row in the tables of allowed imports."""
    broken = []
    for module in modules:
        if module.name.startswith("millstream") and module.part not in MAY_IMPORT:
            broken.append(f"{module.place}: no row in MAY_IMPORT")
        door = module.name.removeprefix("millstream.cli.")
        if module.part == "cli" and not module.is_package and door not in CLI_DOORS:
            broken.append(f"{module.place}: no row in CLI_DOORS")
    return broken


def impure(modules: Iterable[Module]) -> list[str]:
    """List I/O, clocks and random sources in PURE modules, and their imports of other modules."""
    broken = []
    for module in modules:
        if not is_pure(module.name):
            continue
        for found in module.imports:
            if found.package in IMPURE_MODULES:
                broken.append(f"{module.place}:{found.line} imports {found.name}")
            elif found.package == "millstream" and not _pure_enough(found.name):
                broken.append(f"{module.place}:{found.line} imports {found.name}, which is not PURE")
        for name, call in module.calls:
            reads_date = name.endswith(IMPURE_METHODS) and not DATE_NAMES.isdisjoint(name.split("."))
            if name in IMPURE_CALLS or reads_date:
                broken.append(f"{module.place}:{call.lineno} calls {name}")
    return broken


def _pure_enough(name: str) -> bool:
    """Return True for PURE modules, the simple leaves, and the type of a clock's reading (not a clock)."""
    if name.startswith("millstream.clock"):
        return name == "millstream.clock.Now"
    return is_pure(name) or part_of(name) in LEAVES or is_pure(name.rpartition(".")[0])


def asyncio_outside_the_shells(modules: Iterable[Module]) -> list[str]:
    """List imports of asyncio below the server's shell, where everything is a plain function."""
    return [
        f"{module.place}:{found.line} imports {found.name}"
        for module in modules
        if module.part not in ASYNC_PARTS
        for found in module.imports
        if found.package in {"asyncio", "uvloop"}
    ]


def third_party(modules: Iterable[Module]) -> list[str]:
    """List packages imported by a part that does not need them, or that no row names."""
    own = {"millstream", "pyspark_millstream"} | set(sys.stdlib_module_names)
    broken = []
    for module in modules:
        for found in module.imports:
            if found.package in own:
                continue
            allowed = THIRD_PARTY.get(found.package, (frozenset[str](), ""))[0]
            if module.part not in allowed:
                broken.append(f"{module.place}:{found.line} imports {found.name}")
    return broken


def unpickling(modules: Iterable[Module]) -> list[str]:
    """List imports of modules that could turn bytes into code."""
    return [
        f"{module.place}:{found.line} imports {found.name}"
        for module in modules
        for found in module.imports
        if found.package in UNPICKLERS
    ]


def connecting(modules: Iterable[Module]) -> list[str]:
    """List connections opened without ``millstream.client``."""
    return [
        f"{module.place}:{call.lineno} calls {name}"
        for module in modules
        if module.part != "client"
        for name, call in module.calls
        if name.rpartition(".")[2] in CONNECTS
    ]


MOST_MODULES = 15
"""Maximum number of modules in a folder, including ``__init__``."""


def wide_folders(modules: Iterable[Module]) -> list[str]:
    """List folders with too many modules."""
    counts = Counter(module.place.rpartition("/")[0] for module in modules)
    return [f"{folder}: {count} modules" for folder, count in sorted(counts.items()) if count > MOST_MODULES]


MOST_NAMESAKES = 4
FIXED_NAMES = frozenset({"__init__", "status", "reading", "changes"})
"""File names that each object folder of ops has."""


def worn_names(modules: Iterable[Module]) -> list[str]:
    """List file names that too many modules share."""
    counts = Counter(module.place.rpartition("/")[2].removesuffix(".py") for module in modules)
    return [
        f"{name}.py: {count} modules"
        for name, count in sorted(counts.items())
        if count > MOST_NAMESAKES and name not in FIXED_NAMES
    ]


def file_circles(modules: Iterable[Module]) -> list[str]:
    """List circles of modules that import each other, including types and deferred imports."""
    return _circles(_graph(modules, lambda name: name))


def room_circles(modules: Iterable[Module]) -> list[str]:
    """List circles of folders that import each other. Modules directly in a part count as separate folders."""
    every = list(modules)
    inside = {each.name: each.name.rpartition(".")[0] for each in every if each.name.count(".") > 2}
    return _circles(_graph(every, lambda name: inside.get(name, name)))


def _graph(modules: Iterable[Module], room: Callable[[str], str]) -> dict[str, set[str]]:
    """Return the graph of imports between the modules' folders."""
    every = list(modules)
    known = {each.name for each in every}
    graph: dict[str, set[str]] = {room(each.name): set() for each in every}
    for each in every:
        for found in each.imports:
            target = found.name if found.name in known else found.name.rpartition(".")[0]
            if target not in known or part_of(found.name) == COMPILED:  # what is compiled imports nothing
                continue
            graph[room(each.name)].add(room(target))
    return {name: targets - {name} for name, targets in graph.items()}


def _circles(graph: dict[str, set[str]]) -> list[str]:
    """Return each group of nodes that reach one another, as one line."""
    reached = {name: _reachable(graph, name) for name in graph}
    groups = {tuple(sorted(other for other in far if name in reached[other])) for name, far in reached.items()}
    return [" <-> ".join(group) for group in sorted(groups) if group]


def _reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    """Return the nodes reachable from a node; the node itself only if imports lead back to it."""
    found: set[str] = set()
    ahead = list(graph[start])
    while ahead:
        name = ahead.pop()
        if name not in found:
            found.add(name)
            ahead += graph[name]
    return found

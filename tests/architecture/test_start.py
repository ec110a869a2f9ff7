"""The command line starts fast because it loads only the modules of the subcommand."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from millstream.cli.console import nouns
from millstream.cli.main import COMMANDS
from millstream.cli.shared.lazy import NounGroup
from millstream.ops.every import BY_NAME
from support.layers import NOUNS

# Modules that a server's start does not need: drawing, Lua, compressors, another's client, snapshot makers
LATE = {"rich", "lupa", "tempfile", "bz2", "lzma", "redis", "pydantic", "pyarrow", "importlib.resources", "shutil"}
LATE_OF_OURS = {
    "millstream.node.log.compaction",
    "millstream.node.log.snapshot",
    "millstream.client",
    "millstream.worker",
}
HEAVY = {"pyspark", "pyarrow", "pandas", "numpy", "redis", "pydantic", "fast_depends", "rich", "uvloop"}


SERVING = """
import asyncio, sys
from millstream.server.process import banner, RecoveryProgress
from millstream.cli.server.serve import serve
from millstream.server.app import Server
from millstream.server.settings import Settings

async def start():
    server = Server(Settings(port=0, directory={directory}))
    with RecoveryProgress(sys.stderr) as progress:
        await server.start()
        banner(server)
        progress.tell("load", 1 << 30, 1 << 30)
    await server.stop()

asyncio.run(start())
"""


def modules_of(code: str) -> set[str]:
    """Return every module that a new interpreter has loaded after ``code``."""
    script = f"import sys, json\n{code}\njson.dump(sorted(sys.modules), sys.stdout)"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    found: list[str] = json.loads(ended.stdout.splitlines()[-1])
    return set(found)


def loaded_by(code: str) -> set[str]:
    """Return the outermost names of the modules that a new interpreter has loaded after ``code``."""
    return {name.partition(".")[0] for name in modules_of(code)}


@pytest.mark.parametrize(
    "code",
    [
        "import millstream",
        "import millstream.server.process",
        "from millstream.cli.main import main\nmain(['--help'], standalone_mode=False)",
        "from millstream.cli.main import main\nmain(['serve', '--help'], standalone_mode=False)",
        "from millstream.cli.main import main\nmain(['log', 'check', '--help'], standalone_mode=False)",
        "from millstream.cli.main import main\nmain(['backup', '--help'], standalone_mode=False)",
    ],
    ids=["import", "server", "help", "serve-help", "log-help", "backup-help"],
)
def test_start_loads_nothing_heavy(code: str) -> None:
    """Help and the server's start load no heavy package that they do not use."""
    loaded = loaded_by(code)
    assert "millstream" in loaded
    assert sorted(loaded & HEAVY) == []


@pytest.mark.parametrize("noun", [name for name, (place, _) in COMMANDS.items() if "nouns" in place])
def test_help_of_a_noun_loads_no_command(noun: str) -> None:
    """The help of a noun such as ``millstream pending --help`` loads none of its commands' modules."""
    loaded = modules_of(f"from millstream.cli.main import main\nmain([{noun!r}, '--help'], standalone_mode=False)")
    assert sorted({name.partition(".")[0] for name in loaded} & (HEAVY | {"asyncio"})) == []
    ours = {name for name in loaded if name.startswith(("millstream.ops.", "millstream.client."))}
    assert ours <= {f"millstream.ops.{folder}" for folder in NOUNS}


def test_nouns_list_their_declared_actions() -> None:
    """The help of a noun lists every action with the line of its declaration."""
    listed = {
        f"{group.name} {verb}": line
        for group in vars(nouns).values()
        if isinstance(group, NounGroup)
        for verb, line in group.lines()
    }
    missing = {name: one.says for name, one in BY_NAME.items() if listed.get(name) != one.says}
    assert missing == {"stream add": "Add entries."}  # whose command has more ways to say what is added


def test_the_measurement_sees_what_is_loaded() -> None:
    """The measurement of loaded modules finds an import."""
    assert "redis" in loaded_by("import millstream.client.connect")


@pytest.mark.parametrize("kept", [False, True], ids=["memory", "directory"])
def test_a_server_starts_without_what_it_needs_later(kept: bool, tmp_path: Path) -> None:
    """A server starts without the modules for pictures, scripts and snapshots, which load when used."""
    directory = f"__import__('pathlib').Path({str(tmp_path / 'data')!r})" if kept else "None"
    loaded = modules_of(SERVING.format(directory=directory))
    assert "millstream.node.node" in loaded
    assert sorted(loaded & (LATE | LATE_OF_OURS)) == []

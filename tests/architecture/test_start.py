"""The command line starts fast because it loads only what the subcommand needs."""

import json
import subprocess
import sys

import pytest

HEAVY = {"pyspark", "pyarrow", "pandas", "numpy", "redis", "pydantic", "fast_depends", "rich", "uvloop"}


def loaded_by(code: str) -> set[str]:
    """Outermost names of every module a fresh interpreter has after running ``code``."""
    script = f"import sys, json\n{code}\njson.dump(sorted(sys.modules), sys.stderr)"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return {name.partition(".")[0] for name in json.loads(ended.stderr)}


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
    """Help in a tenth of a second, a server in two: nothing that only a part of ours needs is loaded."""
    loaded = loaded_by(code)
    assert "millstream" in loaded
    assert sorted(loaded & HEAVY) == []


def test_the_measurement_sees_what_is_loaded() -> None:
    """The test above would pass for ever if it could not see an import."""
    assert "redis" in loaded_by("import millstream.client.connect")

"""The public names are a list, so that none is added or removed by accident."""

import ast
import importlib.metadata
import pkgutil

import pytest

import millstream
import millstream.spark
from support.source import ROOT

PUBLIC = {
    "AlreadySettledError",
    "App",
    "BatchError",
    "Depends",
    "Disconnected",
    "EntryLostError",
    "FatalError",
    "Fire",
    "Job",
    "JobCancelledError",
    "JobDeadError",
    "JobState",
    "Limit",
    "Message",
    "Middleware",
    "Nack",
    "PayloadError",
    "Reject",
    "Retry",
    "Router",
    "Sink",
    "Source",
    "StreamSub",
    "Timeout",
    "__version__",
    "connect",
    "connect_async",
    "once",
    "once_sync",
    "open_store",
}


def test_public_names_are_the_list() -> None:
    """Each public name can be imported, and ``dir`` shows exactly these."""
    assert set(dir(millstream)) == PUBLIC
    assert [name for name in PUBLIC if getattr(millstream, name, None) is None] == []


def test_type_checkers_see_the_same_names() -> None:
    """Names that load on first use are declared for type checkers, from the same modules."""
    tree = ast.parse((ROOT / "src/millstream/__init__.py").read_text())
    declared = {
        alias.asname: node.module
        for block in tree.body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert set(declared) == PUBLIC - {"__version__"}
    assert {name: getattr(millstream, name).__module__ for name in declared} == declared


def test_package_is_typed_and_versioned() -> None:
    """The package has type information, and its version is that of the distribution."""
    assert (ROOT / "src/millstream/py.typed").exists()
    assert importlib.metadata.version("millstream") == millstream.__version__


@pytest.mark.parametrize("package", [millstream, millstream.spark], ids=lambda package: package.__name__)
def test_no_module_takes_a_public_name(package) -> None:
    """No module has the name of a public function, which its import would hide."""
    modules = {found.name for found in pkgutil.iter_modules(package.__path__)}
    assert modules & (PUBLIC if package is millstream else set(package.__all__)) == set()

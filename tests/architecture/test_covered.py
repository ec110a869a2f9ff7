"""What `make coverage` lists."""

import importlib.util
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "covered.py"


def test_modules_under_the_bound_are_listed_the_least_covered_first() -> None:
    """The list is looked through from the top; a module at the bound is not on it."""
    found = importlib.util.spec_from_file_location("covered", SCRIPT)
    assert found is not None
    assert found.loader is not None
    script = importlib.util.module_from_spec(found)
    found.loader.exec_module(script)
    shares = {"src/a.py": 79.9, "src/b.py": 0.0, "src/c.py": 80.0}
    report = {"files": {name: {"summary": {"percent_covered": share}} for name, share in shares.items()}}
    assert script.listed(report) == ["  0.0 %  src/b.py", " 79.9 %  src/a.py"]

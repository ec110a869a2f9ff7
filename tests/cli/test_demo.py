"""``millstream demo``: the demo is an example, and the command names its place."""

import pytest
from click.testing import CliRunner

from millstream.cli.main import main
from support.source import ROOT


@pytest.mark.parametrize("words", [["demo"], ["demo", "--help"]])
def test_the_place_of_the_demo_is_named(words: list[str]) -> None:
    """``millstream demo`` ends with code 0 and names the clone, ``make demo`` and the page."""
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0
    said = " ".join(done.output.split())
    assert "examples/flights" in said
    assert "clone" in said
    assert "`make demo`" in said
    assert "docs/demo.md" in said
    assert (ROOT / "docs/demo.md").is_file()

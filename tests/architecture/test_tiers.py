"""Two tiers of tests: the names in the list exist, and CI runs both."""

from support.source import ROOT
from support.tiers import FULL, SPARK


def test_what_the_tiers_name_is_there() -> None:
    """The files and tests that the tiers name exist."""
    for name in (*FULL, *SPARK):
        file, _, test = name.partition("[")[0].partition("::")
        assert (ROOT / file).exists(), name
        assert not test or f"def {test}(" in (ROOT / file).read_text(encoding="utf-8"), name


def test_ci_runs_both_tiers() -> None:
    """CI runs both tiers of tests."""
    lines = (ROOT / ".ci/run").read_text(encoding="utf-8").splitlines()
    assert "make test" in lines
    assert "make test-rest" in lines

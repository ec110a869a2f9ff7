"""The reference is generated from the code: it is current and complete, and undocumented parts are errors."""

import ast
from pathlib import Path

import click
import pytest
from scripts.reference import blocks, command_line, environment, errors, markdown, python

from millstream.worker.monitoring.metrics import family
from support.source import ROOT, modules

PAGES = blocks.pages()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_says_what_the_code_says(page: Path) -> None:
    """Each page of the reference equals what ``make docs`` generates."""
    assert page.read_text() == blocks.rewritten(page.read_text())


def test_every_block_is_on_one_page() -> None:
    """Every generated block is on exactly one page."""
    assert sorted(name for names in PAGES.values() for name in names) == sorted(blocks.BLOCKS)


def test_a_page_cannot_ask_for_a_block_that_is_not_there() -> None:
    """A page that names an unknown block is an error, and a page without blocks stays unchanged."""
    assert blocks.rewritten("# One\n") == "# One\n"
    with pytest.raises(KeyError, match="none"):
        blocks.rewritten("<!-- begin: none, written by make docs -->\n<!-- end -->\n")


def test_commands_of_the_server_are_there_with_their_options() -> None:
    """docs/compatibility.md shows for every command and option its Redis version and its status."""
    page = (ROOT / "docs/compatibility.md").read_text()
    assert "| XREADGROUP |" in page
    assert "| | `CLAIM` | 8.4.0 | same |" in page
    assert "| limited: IFDEQ, IFDNE and DIGEST are missing |" in page
    assert "| BGSAVE | | 1.0.0 | [differs](#saving) |" in page


def test_every_command_is_there_with_every_option() -> None:
    """The reference has a heading for each subcommand, and each of its options below it."""
    page = (ROOT / "docs/reference/command-line.md").read_text()
    for name, command in command_line.commands():
        if name == "millstream":
            continue
        _, heading, rest = page.partition(f"\n{'#' * len(name.split())} {name}\n")
        assert heading, name
        section = rest.partition("\n## ")[0].partition("\n### ")[0]
        options = [option for option in command.params if isinstance(option, click.Option) and not option.hidden]
        assert [word for option in options for word in option.opts if word not in section] == [], name


def test_an_option_without_help_is_an_error() -> None:
    """An option without help ends the generation with an error."""
    option, bare = click.Option(["--one"], help="One."), click.Option(["--two"])
    context = click.Context(click.Command("count", params=[option, bare]), info_name="millstream count")
    assert command_line.row(option, context) == ("`--one TEXT`", "", "One.")
    with pytest.raises(ValueError, match="millstream count: --two has no help"):
        command_line.row(bare, context)


def test_help_keeps_what_it_has_laid_out() -> None:
    """Help text keeps its examples as code, and special characters of Markdown and HTML are escaped."""
    shown = command_line.help_text("Count <these> with *.\n\n\b\nExamples:\n  millstream count\n\nSee `a_b*`.")
    assert shown == "Count &lt;these> with \\*.\n\nExamples:\n\n```\nmillstream count\n```\n\nSee `a_b*`.\n"


def test_every_metric_is_declared() -> None:
    """Every metric family is created from its declaration."""
    makers = {"CounterMetricFamily", "GaugeMetricFamily", "HistogramMetricFamily", "InfoMetricFamily"}
    made = [
        module.place
        for module in modules(ROOT / "src")
        if "MetricFamily" in module.text
        for node in ast.walk(module.tree)
        if isinstance(node, ast.alias) and node.name in makers
    ]
    assert set(made) == {"src/millstream/worker/monitoring/metrics.py"}
    with pytest.raises(KeyError):
        family("millstream_undeclared")


def test_an_argument_without_a_text_is_an_error() -> None:
    """A public function with an undocumented argument ends the generation with an error."""

    def documented(one: int, two: str = "x") -> None:
        """Do it.

        Args:
            one: how often.
            two: what,
                in two lines.
        """

    def left_out(one: int) -> None:
        """Do it."""

    assert python.arguments("f", documented) == [("`one`", "", "how often."), ("`two`", "`'x'`", "what, in two lines.")]
    with pytest.raises(ValueError, match="f: the docstring says nothing of 'one'"):
        python.arguments("f", left_out)


def test_an_error_without_advice_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each error class documents its cause and its remedy, and is in the tree of errors.py."""
    every = errors.classes()
    tree = (ROOT / "src/millstream/errors.py").read_text().partition('"""\n')[0]
    assert [name for name in every if name not in tree] == []
    bare = errors.ErrorClass("BareError", "MillstreamError", "millstream.errors", "Something is wrong.", None)
    monkeypatch.setattr(errors, "classes", lambda: {**every, "BareError": bare})
    with pytest.raises(ValueError, match="BareError"):
        errors.reference()


def test_every_environment_variable_is_known(tmp_path: Path) -> None:
    """Every environment variable that the source names is documented or listed as internal."""
    assert environment.named() == set(environment.VARIABLES) | environment.INTERNAL
    (tmp_path / "x.py").write_text('os.environ["MILLSTREAM_NEW"]')
    assert environment.named(tmp_path) == {"MILLSTREAM_NEW"}


def test_a_role_with_a_target_leaves_its_text() -> None:
    """A reference with a target is shown by its text alone."""
    assert (
        markdown.prose("as :meth:`Job.state <a.b.Job.state>` or :class:`~a.Job` has it") == "as `state` or `Job` has it"
    )

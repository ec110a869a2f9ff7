"""Files, commands, make targets and links that the documents name exist."""

import ast
import re
from pathlib import Path

import pytest

from millstream.cli.main import COMMANDS
from millstream.commands.table.table import every
from support.source import ROOT

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
# Files that running makes; a fresh clone does not have them.
ELSEWHERE = (
    *("demo-out/", "grafana/", "prometheus/"),  # made by running
    *("integration/", "sentinel/", "unit/", "src/redis-server"),  # of a checkout of Redis
)
# The possible beginnings of a short path in backticks: ``engine/ids.py`` is src/millstream/engine/ids.py.
BASES = ("", "src", "src/millstream", "src/millstream/engine", "src/millstream/client")


def links(page: Path) -> list[str]:
    """Return relative links to other pages, without their anchors."""
    return re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())


def missing_links(page: Path) -> list[str]:
    """Return relative links to missing files."""
    return [link for link in links(page) if not (page.parent / link).exists()]


def anchors_of(page: Path) -> set[str]:
    """Return the anchors of a page's headings."""
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)$", prose, flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def missing_anchors(page: Path) -> list[str]:
    """Return links to missing headings, of this page or another."""
    found = re.findall(r"\]\(([^)#:]*)#([^)]*)\)", page.read_text())
    pairs = [(page.parent / link if link else page, anchor) for link, anchor in found]
    return [anchor for target, anchor in pairs if target.is_file() and anchor not in anchors_of(target)]


def missing_files(page: Path) -> list[str]:
    """Return files and folders named in backticks that do not exist."""
    named = re.findall(r"`((?:\w[\w.-]*/)+(?:[\w.-]+)?|[\w-]+\.py)`", page.read_text())
    # A page may have its reader write a file first
    written = re.findall(r"^```python\n# (\S+)$", page.read_text(), flags=re.MULTILINE)
    named = [name for name in named if not name.startswith(ELSEWHERE) and name not in written]
    missing, beside = [], ROOT
    for name in named:
        found = [ROOT / base / name for base in BASES if (ROOT / base / name).exists()]
        if not found and "/" not in name and (beside / name).exists():
            continue  # a bare name stands beside the last path before it
        if found and "/" in name:
            beside = found[0] if found[0].is_dir() else found[0].parent
        missing += [] if found else [name]
    return missing


def missing_targets(page: Path) -> list[str]:
    """Return ``make`` targets that the Makefile lacks."""
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"(?:`|^)make ([a-z][a-z0-9 -]*[a-z0-9])", page.read_text(), flags=re.MULTILINE)
    words = {word for line in targets for word in line.split()}
    return [word for word in sorted(words) if not re.search(rf"^{word}:", makefile, flags=re.MULTILINE)]


def missing_commands(page: Path) -> list[str]:
    """Return subcommands in shell lines or code that ``millstream`` lacks."""
    named = set(re.findall(r"(?:^\$? ?|`)millstream ([a-z]+)", page.read_text(), flags=re.MULTILINE))
    return sorted(named - set(COMMANDS))


CHECKS = [missing_links, missing_anchors, missing_files, missing_targets, missing_commands]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_page_names_only_what_exists(page: Path, check) -> None:
    """Every link, file, make target and subcommand that a document names exists."""
    assert check(page) == []


def test_checks_see_what_is_missing(tmp_path: Path) -> None:
    """Each check of the documents finds a planted fault."""
    page = tmp_path / "page.md"
    page.write_text("[a](none.md) [b](#none) `engine/none.py` `make coffee` and `millstream sing`\n")
    assert [check(page) for check in CHECKS] == [["none.md"], ["none"], ["engine/none.py"], ["coffee"], ["sing"]]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_in_documents_is_python(page: Path) -> None:
    """Python examples in the documents parse, and their imports from millstream work."""
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("millstream"):
                module = __import__(node.module or "", fromlist=["x"])
                assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == []


def test_every_page_is_in_the_list_of_pages() -> None:
    """docs/README.md and its sublists name every page of docs."""
    docs = ROOT / "docs"
    lists = [docs / "README.md", docs / "decisions" / "README.md", docs / "how-to" / "README.md"]
    listed = {(page.parent / link).resolve() for page in lists for link in links(page)} | {docs / "README.md"}
    assert [page for page in docs.rglob("*.md") if page.resolve() not in listed] == []


def test_a_decision_is_a_screen_with_its_reasons() -> None:
    """A decision record has context, decision and consequences in at most 40 lines, and a unique number."""
    records = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
    assert len({path.name[:4] for path in records}) == len(records) <= 45
    for path in records:
        text = path.read_text()
        assert re.findall(r"^## (.*)$", text, flags=re.MULTILINE) == ["Context", "Decision", "Consequences"], path.name
        assert text.startswith(f"# {int(path.name[:4])}. "), path.name
        assert len(text.splitlines()) <= 40, path.name


def test_the_figures_of_the_readme_are_measured() -> None:
    """Each rate in the README is also in docs/benchmarks.md."""
    section = (ROOT / "README.md").read_text().partition("## Speed")[2].partition("\n## ")[0]
    figures = re.findall(r"\d+,\d{3}|\d\.\d\d", section)
    assert len(figures) > 10
    measured = (ROOT / "docs" / "benchmarks.md").read_text()
    assert [figure for figure in figures if figure not in measured] == []


def test_the_map_has_every_folder() -> None:
    """The table in ARCHITECTURE.md names exactly the folders of each part."""
    table = (ROOT / "ARCHITECTURE.md").read_text().partition("| its folders |")[2].partition("\n\n")[0]
    folders_in: dict[str, set[str]] = {}
    parts: list[str] = []
    for first, *_, last in (line.strip("|").split("|") for line in table.splitlines() if line.startswith("| ")):
        parts = re.findall(r"`(\w+)/`", first) or parts  # a row without one belongs to the part before
        for part in parts:
            folders_in.setdefault(part, set()).update(re.findall(r"`(\w+)`", last))
    for part, listed in folders_in.items():
        folders = {init.parent.name for init in (ROOT / "src/millstream" / part).glob("*/__init__.py")}
        assert listed == folders, part


def test_the_map_fits_two_screens() -> None:
    """ARCHITECTURE.md has at most 140 lines of 120 columns, and walks of at most eight steps."""
    lines = (ROOT / "ARCHITECTURE.md").read_text().splitlines()
    assert len(lines) <= 140
    assert [line for line in lines if len(line) > 120] == []
    walks = re.findall(r"^## The path of [^\n]*\n(.*?)(?=^## )", "\n".join(lines), flags=re.DOTALL | re.MULTILINE)
    assert len(walks) == 5
    assert all(3 < len(re.findall(r"^\d\. ", walk, flags=re.MULTILINE)) <= 8 for walk in walks)


def test_what_differs_is_explained_on_the_page() -> None:
    """Each difference on docs/compatibility.md has a heading with an explanation, and each link leads to one."""
    page = (ROOT / "docs/compatibility.md").read_text()
    headings = re.findall(r"^##+ (.*)$", page, flags=re.MULTILINE)
    anchors = {re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    assert {row.document.differs for row in every() if row.document.differs} <= anchors
    assert set(re.findall(r"\]\(#([^)]*)\)", page)) <= anchors

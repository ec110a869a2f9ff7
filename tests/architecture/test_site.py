"""The documents as a site: every page is in the nav, all resources are local, and llms.txt lists every page."""

import logging
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import Abort
from scripts import site_hooks

from support.source import ROOT

DOCS = ROOT / "docs"

# Old features of Python and its libraries that the theme still uses
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def built(site: Path, **options: object) -> Path:
    """Build the site as ``make site`` does, with options in place of those of mkdocs.yml."""
    config = load_config(str(ROOT / "mkdocs.yml"), strict=True, site_dir=str(site), **options)
    config.plugins.on_startup(command="build", dirty=False)
    build(config)
    return site


@pytest.fixture(scope="module", autouse=True)
def _quiet() -> Iterator[None]:
    """Suppress the theme's advice about its successor."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("NO_MKDOCS_2_WARNING", "1")
        yield


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the whole site, which fails for any broken link, anchor or page."""
    return built(tmp_path_factory.mktemp("site"))


BESIDE = [{"Home": "index.md"}, {"Project": sorted(set(site_hooks.BESIDE.values()) - {"index.md"})}]


class Addresses(HTMLParser):
    """Parser for the resources that a page loads, and for its links."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        is_loaded = tag in {"script", "img", "iframe", "source"} or (
            tag == "link" and (named.get("rel") or "") not in {"canonical", "next", "prev", "alternate"}
        )
        self.loaded += [value for key in ("src", "href") if is_loaded and (value := named.get(key))]


def loaded_from_elsewhere(page: Path) -> list[str]:
    """Return scripts, styles, fonts and pictures of a page that are not files of the site."""
    addresses = Addresses()
    addresses.feed(page.read_text())
    return [each for each in addresses.loaded if re.match(r"[a-z]+:|//", each)]


def test_nothing_is_loaded_from_elsewhere(site: Path, tmp_path: Path) -> None:
    """The site loads nothing from other servers, and the check finds a foreign font."""
    pages = list(site.rglob("*.html"))
    assert len(pages) > 60
    assert [each for page in pages for each in loaded_from_elsewhere(page)] == []
    (tmp_path / "page.html").write_text(
        '<link rel="stylesheet" href="https://fonts.example/css"><a href="https://x">x</a>'
    )
    assert loaded_from_elsewhere(tmp_path / "page.html") == ["https://fonts.example/css"]


def test_every_document_is_a_page(site: Path) -> None:
    """Every document is a page of the site, except docs/README.md, whose content is on the home page."""
    documents = {page.relative_to(DOCS) for page in DOCS.rglob("*.md")} - {Path("README.md")}
    pages = {page.relative_to(site) for page in site.rglob("*.md")}
    beside = {Path(page) for page in site_hooks.BESIDE.values()}
    assert pages == documents | beside


def test_llms_txt_lists_every_page(site: Path) -> None:
    """llms.txt lists each page's Markdown once with a summary, and llms-full.txt contains all of them."""
    rows = re.findall(r"^- \[(.+)\]\((\S+)\): (.+)$", (site / "llms.txt").read_text(), flags=re.MULTILINE)
    pages = sorted(page.relative_to(site).as_posix() for page in site.rglob("*.md"))
    assert sorted(path for _, path, _ in rows) == pages
    whole = (site / "llms-full.txt").read_text()
    assert [path for path in pages if (site / path).read_text().strip() not in whole] == []


def test_code_in_tables_is_shown_without_marks_of_a_forge(site: Path) -> None:
    """An escaped bar in a table's code is shown without its backslash."""
    page = (site / "compatibility/index.html").read_text()
    assert "[KEEPREF | DELREF | ACKED]" in page
    assert "\\|" not in page


def test_what_leads_nowhere_ends_the_build(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The strict build reports broken links and anchors, pictures from other servers, and pages missing in the nav."""
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "one.md").write_text("# One\n\n[a](two.md) [b](#there) ![c](https://example.org/c.png)\n")
    (docs / "three.md").write_text("# Three\n")
    nav = [*BESIDE, {"One": "one.md"}]
    with caplog.at_level(logging.WARNING), pytest.raises(Abort, match="in strict mode"):
        built(tmp_path / "site", docs_dir=str(docs), nav=nav)
    assert all(fault in caplog.text for fault in ("'two.md'", "'#there'", "https://example.org/c.png", "three.md"))


def test_a_pattern_of_the_nav_is_its_pages(tmp_path: Path) -> None:
    """A pattern in the nav stands for its pages in alphabetical order, except those named elsewhere."""
    for name in ("b", "a", "titled", "README"):
        (tmp_path / f"{name}.md").touch()
    nav = [{"Guides": ["*.md"]}, {"Reference": [{"A title": "titled.md"}]}]
    pages = [{"Guides": ["a.md", "b.md"]}, {"Reference": [{"A title": "titled.md"}]}]
    assert site_hooks.expanded(nav, tmp_path) == pages


def test_links_between_files_become_links_between_pages() -> None:
    """Links between files become links between pages. Files without a page become their name, and code is unchanged."""
    pages = {"index.md", "project/SECURITY.md", "server.md", "worker/tutorial.md"}
    linked = site_hooks.linked
    assert linked("[a](docs/server.md#users)", "index.md", pages) == "[a](server.md#users)"
    assert linked("[a](../../README.md#x)", "worker/tutorial.md", pages) == "[a](../index.md#x)"
    assert linked("[a](../docs/README.md)", "server.md", pages) == "[a](index.md)"
    assert linked("[a](docs/server.md)", "project/SECURITY.md", pages) == "[a](../server.md)"
    assert linked("[the licence](LICENSE)", "index.md", pages) == "the licence"
    assert linked("```\n[a](LICENSE)\n```", "index.md", pages) == "```\n[a](LICENSE)\n```"
    assert linked("[a](none.md)", "index.md", pages) == "[a](none.md)"

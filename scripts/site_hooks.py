"""MkDocs hooks for the site: pages from beside docs/, patterns in the nav, and llms.txt.

The documents stay as they are read on a forge: their links are those between files of the repository, and are turned
into links between pages here. A file without a page on the site is shown by its name, since there is no public
address of the repository yet.

llms.txt (https://llmstxt.org) lists the pages of the nav as plain Markdown, each under its title with its first
sentence; llms-full.txt contains all of them.
"""

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation, Section
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]

#: File of the repository -> page of the site.
BESIDE = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "project/ARCHITECTURE.md",
    "CHANGELOG.md": "project/CHANGELOG.md",
    "CONTRIBUTING.md": "project/CONTRIBUTING.md",
    "SECURITY.md": "project/SECURITY.md",
}
#: For readers of a forge; on the site the nav and the home page stand in its place.
LIST_OF_PAGES = "docs/README.md"

_LINK = re.compile(r"(?<!!)\[((?:[^][]|\[[^][]*\])*)\]\(([^()\s]+)\)")
_CODE = re.compile(r"`[^`\n]+`")
_FENCE = re.compile(r"(^ *```.*?^ *```[ ]*$)", re.DOTALL | re.MULTILINE)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Replace patterns in the nav by their pages, so that a new guide is in the nav automatically."""
    config.nav = expanded(config.nav or [], Path(config.docs_dir))
    return config


def expanded(nav: list[Any], docs: Path) -> list[Any]:
    """Return a nav with ``how-to/*.md`` and other patterns replaced by the pages that it does not name elsewhere."""
    return _expanded(nav, docs, {*_paths(nav), LIST_OF_PAGES.removeprefix("docs/")})


def _expanded(nav: list[Any], docs: Path, named: set[str]) -> list[Any]:
    found: list[Any] = []
    for item in nav:
        if isinstance(item, str) and "*" in item:
            pages = sorted(path.relative_to(docs).as_posix() for path in docs.glob(item))
            found += [page for page in pages if page not in named]
        elif isinstance(item, dict):
            found += [
                {title: _expanded(inner, docs, named) if isinstance(inner, list) else inner}
                for title, inner in item.items()
            ]
        else:
            found.append(item)
    return found


def _paths(nav: list[Any]) -> Iterator[str]:
    for item in nav:
        for inner in item.values() if isinstance(item, dict) else [item]:
            yield from _paths(inner) if isinstance(inner, list) else [inner]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from beside docs/."""
    for source, page in BESIDE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, files: Files, **_: object) -> str:
    """Turn links between files of the repository into links between pages."""
    pages = {file.src_uri for file in files.documentation_pages()}
    text = linked(markdown, page.file.src_uri, pages)
    page.meta["text"] = text
    if page.is_homepage:
        page.meta["hide"] = ["navigation"]  # it is alone in its section
    return without_escaped_bars(text)


def linked(markdown: str, page: str, pages: set[str]) -> str:
    """Return the Markdown of a page with the links of the site.

    Args:
        markdown: Text in the repository.
        page: Path of the page on the site.
        pages: All paths on the site.
    """
    source = source_of(page)

    def replaced(found: re.Match[str]) -> str:
        text, target = found.groups()
        if re.match(r"[a-z]+:|#", target):
            return found.group()
        path, _, anchor = target.partition("#")
        repository_path = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        at = page_of(repository_path)
        if at not in pages:
            return text if (ROOT / repository_path).exists() else found.group()
        to = posixpath.relpath(at, posixpath.dirname(page) or ".")
        return f"[{text}]({to}{'#' + anchor if anchor else ''})"

    def outside_code(text: str) -> str:
        return _LINK.sub(replaced, text)

    parts = _FENCE.split(markdown)
    return "".join(part if at % 2 else outside_code(part) for at, part in enumerate(parts))


def without_escaped_bars(markdown: str) -> str:
    """Remove the backslash before bars in a table's code, which Python-Markdown would show."""
    row = re.compile(r"^\|.*$", re.MULTILINE)
    return row.sub(lambda found: _CODE.sub(lambda code: code.group().replace(r"\|", "|"), found.group()), markdown)


def source_of(page: str) -> str:
    """Return the path of a site's page in the repository."""
    return next((source for source, at in BESIDE.items() if at == page), f"docs/{page}")


def page_of(source: str) -> str:
    """Return the site's page of a file in the repository, or a path without a page for other files."""
    if source == LIST_OF_PAGES:
        return BESIDE["README.md"]
    return BESIDE.get(source) or (source.removeprefix("docs/") if source.startswith("docs/") else f"/{source}")


_nav: list[Navigation] = []


def on_nav(nav: Navigation, **_: object) -> Navigation:
    """Keep the nav for :func:`on_post_build`."""
    _nav[:] = [nav]
    return nav


def on_post_build(config: MkDocsConfig) -> None:
    """Write llms.txt, llms-full.txt and each page's Markdown beside its HTML."""
    site = Path(config.site_dir)
    head = f"# {config.site_name}\n\n> {config.site_description}\n"
    lines, whole = [head], [head]
    for title, pages in sections(_nav[0]):
        lines.append(f"\n## {title}\n\n")
        for page in pages:
            text = str(page.meta["text"])
            (site / page.file.src_uri).parent.mkdir(parents=True, exist_ok=True)
            (site / page.file.src_uri).write_text(text, encoding="utf-8")
            lines.append(f"- [{page.title}]({config.site_url or ''}{page.file.src_uri}): {first_sentence(text)}\n")
            whole.append(f"\n<!-- {page.file.src_uri} -->\n\n{text.strip()}\n")
    (site / "llms.txt").write_text("".join(lines), encoding="utf-8")
    (site / "llms-full.txt").write_text("".join(whole), encoding="utf-8")


def sections(nav: Navigation) -> Iterator[tuple[str, list[Page]]]:
    """Yield the nav's first level: each section's title and all pages below it."""
    for item in nav.items:
        if isinstance(item, Section):
            yield item.title, list(_pages(item))
        elif isinstance(item, Page):
            yield str(item.title), [item]


def _pages(section: Section) -> Iterator[Page]:
    for item in section.children:
        if isinstance(item, Section):
            yield from _pages(item)
        elif isinstance(item, Page):
            yield item


def first_sentence(markdown: str) -> str:
    """Return a page's first sentence below its heading, as plain text in one line."""
    prose = _FENCE.sub("", markdown)
    for paragraph in re.split(r"\n\s*\n", prose):
        text = " ".join(paragraph.split())
        if text and text[0] not in "#|<*-":
            plain = _LINK.sub(lambda found: found.group(1), text)
            return re.split(r"(?<=\.)\s+(?=[A-Z`])", plain, maxsplit=1)[0]
    return ""

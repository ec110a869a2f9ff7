"""The differences of a package index's page from the repository: addresses, and a README with absolute links.

In the repository links are relative, so that they work in a checkout, in a fork and on a branch. On a package index
they would be broken, so the build makes them absolute. The repository's public address is in one place, pyproject.toml
(``[tool.hatch.metadata.hooks.custom]``, ``repository``). While that is empty, because there is no public address yet,
the package has no URLs, and the README's relative links become plain text.

The build backend runs it for the metadata of a wheel, an sdist or an editable installation.
"""

import re
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface

# A link of Markdown to something beside the page: no scheme, not within the page
_RELATIVE = re.compile(r"(!?)\[([^\]]*)\]\((?!#|[a-z][a-z0-9+.-]*:)([^)\s]+)\)")


class PackageIndexHook(MetadataHookInterface):
    """Fills in ``readme`` and ``urls``, which pyproject.toml declares as dynamic."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, object]) -> None:
        """Set both.

        Raises:
            ValueError: The address is not one that a package index would show as a link.
        """
        address = checked(self.config.get("repository", ""))
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": for_index(text, address)}
        metadata["urls"] = urls(address)


def checked(address: str) -> str:
    """Return the repository's address without a slash at its end; empty for none.

    Raises:
        ValueError: It is not an https address.
    """
    if address and not re.fullmatch(r"https://[^/\s]+/[^\s]+", address):
        raise ValueError(
            f"repository = {address!r} in [tool.hatch.metadata.hooks.custom] of pyproject.toml is no https address of "
            "a repository, such as https://github.com/somebody/millstream; leave it empty while there is none"
        )
    return address.rstrip("/")


def urls(address: str) -> dict[str, str]:
    """Return the project's addresses by the labels that package indexes use; none without a repository."""
    if not address:
        return {}
    return {
        "Repository": address,
        "Documentation": f"{address}/blob/HEAD/docs/README.md",
        "Changelog": f"{address}/blob/HEAD/CHANGELOG.md",
        "Issues": f"{address}/issues",
        "Security": f"{address}/blob/HEAD/SECURITY.md",
    }


def for_index(text: str, address: str) -> str:
    """Return a page of the repository's root without relative links."""
    if not address:
        return _RELATIVE.sub(r"\2", text)
    return _RELATIVE.sub(
        lambda link: f"{link[1]}[{link[2]}]({address}/{'raw' if link[1] else 'blob'}/HEAD/{link[3]})", text
    )

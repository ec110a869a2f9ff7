"""Text files of the package: scripts that other programs run."""

from importlib import resources


def text(package: str, name: str) -> str:
    """The text of a file next to the modules of a package, also where the package is in a zip."""
    return resources.files(package).joinpath(name).read_text(encoding="utf-8")

"""The pages of a package index: addresses from one place, and a README without broken links."""

import re
import shutil
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
ADDRESS = "https://example.org/somebody/millstream"
RELATIVE = re.compile(r"\]\((?!https://|#)")


@pytest.fixture
def metadata(tmp_path: Path) -> Callable[[str], ProjectMetadata]:
    """Return a function that builds the metadata of a release with a repository address."""

    def made(address: str) -> ProjectMetadata:
        for name in ("README.md", "LICENSE", "scripts/pypi.py", "src/millstream/_version.py"):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tmp_path / name)
        text = (ROOT / "pyproject.toml").read_text()
        assert text.count("\nrepository = ") == 1, "the address stands in one place"
        (tmp_path / "pyproject.toml").write_text(re.sub(r'(?m)^repository = ".*"', f'repository = "{address}"', text))
        return ProjectMetadata(str(tmp_path), PluginManager())

    return made


def test_links_on_the_index_lead_into_the_repository(metadata: Callable[[str], ProjectMetadata]) -> None:
    """With a repository address, the README's links on the index are absolute and lead to existing files."""
    core = metadata(ADDRESS + "/").core
    assert not RELATIVE.search(core.readme)
    targets = re.findall(rf"\]\({re.escape(ADDRESS)}/blob/HEAD/([^)#]+)", core.readme)
    assert len(targets) > 10
    assert [target for target in targets if not (ROOT / target).exists()] == []
    assert core.urls["Repository"] == ADDRESS
    assert {"Documentation", "Changelog", "Issues", "Security"} < set(core.urls)
    for url in core.urls.values():
        assert url.startswith(ADDRESS)


def test_without_an_address_nothing_leads_nowhere(metadata: Callable[[str], ProjectMetadata]) -> None:
    """Without a repository address, the README on the index has no relative links, and no URL is invented."""
    core = metadata("").core
    assert not RELATIVE.search(core.readme)
    assert "docs/promises.md" in core.readme
    assert core.urls == {}


def test_an_address_that_is_none_is_refused(metadata: Callable[[str], ProjectMetadata]) -> None:
    """A repository address that is not https is refused with the line to correct."""
    with pytest.raises(ValueError, match=r"pyproject\.toml is no https address"):
        _ = metadata("git@example.org:somebody/millstream.git").core.urls


def pinned() -> dict[str, str]:
    """Return the version of each name in constraints.txt."""
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in (line.split("==") for line in lines)}


def wanted() -> list[Requirement]:
    """Return the requirements of the project's own tests."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    names = [
        *project["dependencies"],
        *(line for name in ("dev", "demo", "metrics", "reload") for line in extras[name]),
    ]
    names += [line for name in ("server", "worker", "spark") for line in extras[name]]
    return [need for need in map(Requirement, names) if need.name != "millstream"]


def test_what_ci_installs_is_fixed_and_allowed() -> None:
    """Each dependency has one version in constraints.txt, within the bounds that users get."""
    versions = pinned()
    missing = [need.name for need in wanted() if canonicalize_name(need.name) not in versions]
    outside = [str(need) for need in wanted() if not need.specifier.contains(versions[canonicalize_name(need.name)])]
    assert (missing, outside) == ([], [])


def plan(*words: str) -> str:
    """Return the commands that make would run for an empty folder."""
    found = subprocess.run(["make", "-n", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    return found.stdout


def test_installing_goes_by_the_constraints_unless_the_newest_are_asked_for() -> None:
    """``make install`` installs the versions of constraints.txt. The newest ones go into a separate environment."""
    for extra in ("demo", "dev"):
        assert f"scripts/install.sh none/bin/python {extra} -c constraints.txt" in plan("install", "VENV=none")
    newest = plan("test", "VENV=.venv-newest", "CONSTRAINTS=")
    assert "-c constraints.txt" not in newest
    assert "--upgrade --upgrade-strategy eager" in newest
    assert ".venv-newest/bin/python -m pytest" in newest


def test_the_demo_waits_for_nothing_that_only_the_tests_need() -> None:
    """``make demo`` installs no packages that only the tests need."""
    assert [line for line in plan("demo", "VENV=none").splitlines() if "install.sh" in line] == [
        "scripts/install.sh none/bin/python demo -c constraints.txt"
    ]

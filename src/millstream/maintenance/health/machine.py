"""Diagnosis of this machine: Python, libraries, limits."""

import platform
import resource
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version

from millstream import core
from millstream._version import __version__
from millstream.maintenance.health.findings import Finding

# Packages whose versions a bug report should name
_NEEDED = ("click", "hiredis", "msgpack", "redis", "rich")
USEFUL = {
    "uvloop": "the server falls back to the slower event loop of Python",
    "lupa": "without it the server runs no Lua scripts (EVAL)",
}
_DESCRIPTORS = 10_032  # 10,000 clients and the server's own needs


def diagnose_machine(useful: Mapping[str, str] = USEFUL) -> Iterator[Finding]:
    """Yield versions and limits of this process. A server started from here would have the same."""
    yield Finding("ok", "millstream", f"Millstream {__version__}, Python {platform.python_version()}")
    yield Finding("ok", "libraries", ", ".join(f"{name} {version(name)}" for name in _NEEDED))
    for name, why in useful.items():
        try:
            yield Finding("ok", name, f"{name} {version(name)}")
        except PackageNotFoundError:
            yield Finding("note", name, f"{name} is not installed", why, "pip install 'millstream[server]'")
    yield _core()
    yield _descriptors()


def _core() -> Finding:
    if core.NAME == core.NATIVE:
        return Finding("ok", "core", core.NATIVE)
    if core.IS_CHOSEN:
        return Finding("ok", "core", f"{core.PYTHON}, as {core.VARIABLE} demands; the native one is faster")
    return Finding(
        "note",
        "core",
        f"{core.PYTHON}: the native core is not installed",
        "the server runs on its Python double, which is slower",
        core.REMEDY,
    )


def _descriptors() -> Finding:
    # Only the hard limit matters, because the server raises the soft one itself
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < _DESCRIPTORS:
        return Finding(
            "warning",
            "descriptors",
            f"a process may have {hard} open files",
            "each client needs one: a server started here takes fewer clients than the 10,000 it would",
            "raise the limit: `ulimit -Hn 65536`, or LimitNOFILE= in the service's unit",
        )
    return Finding("ok", "descriptors", f"{soft} open files at first, {'no limit' if hard < 0 else hard} at most")

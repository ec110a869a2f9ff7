"""Build a release into dist/ and test it: the sdist, the native wheel of this machine and the pure wheel.

Each is installed in a separate environment, as a user would, and runs a smoke test there. Run by ``make release``.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from email.parser import HeaderParser
from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"

MOST_MB = 30
"""Maximum download of ``pip install millstream[server]`` in megabytes."""

SMOKE = """
import pathlib, subprocess, sys, millstream
from millstream import core

assert core.NAME == sys.argv[1], f"the {core.NAME} core is installed instead of the {sys.argv[1]} one"
with millstream.connect("memory://", decode_responses=True) as client:
    client.xadd("numbers", {"n": "1"}, id="1-1")
    assert client.xrange("numbers") == [("1-1", {"n": "1"})]
words = [pathlib.Path(sys.executable).with_name("millstream"), "serve", "--memory", "--port", sys.argv[2]]
with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
    try:
        url = server.stdout.readline().split()[-1]
        with millstream.connect(url, decode_responses=True) as client:
            assert client.xadd("numbers", {"n": "2"}, id="2-1") == "2-1"
    finally:
        server.terminate()
print(f"Millstream {millstream.__version__} with the {core.NAME} core answers")
"""


def run(*words: str | Path, folder: Path = ROOT, **environment: str) -> None:
    """Run a program; a failure ends the release."""
    subprocess.run([*map(str, words)], cwd=folder, env=os.environ | environment, check=True)


def built() -> tuple[Path, Path, Path]:
    """Build the sdist, and both wheels from it; return sdist, native wheel and pure wheel."""
    shutil.rmtree(DIST, ignore_errors=True)
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", DIST)
    (sdist,) = DIST.glob("*.tar.gz")
    with tempfile.TemporaryDirectory() as work:
        with tarfile.open(sdist) as archive:
            archive.extractall(work, filter="data")
        source = Path(work, sdist.name.removesuffix(".tar.gz"))
        for name in ("native", "python"):
            run(
                sys.executable,
                "-m",
                "hatchling",
                "build",
                "-t",
                "wheel",
                "-d",
                DIST,
                folder=source,
                MILLSTREAM_CORE=name,
            )
    (pure,) = DIST.glob("*-none-any.whl")
    (native,) = set(DIST.glob("*.whl")) - {pure}
    return sdist, native, pure


def check_metadata(wheel: Path) -> None:
    """Check that an index accepts the metadata, and that the wheel contains no tests and no source of the core.

    Raises:
        SystemExit: One of these is wrong.
    """
    with ZipFile(wheel) as archive:
        names = archive.namelist()
        (place,) = [name for name in names if name.endswith(".dist-info/METADATA")]
        headers = HeaderParser().parsestr(archive.read(place).decode())
    missing = [
        name for name in ("Name", "Version", "Summary", "Requires-Python", "License-Expression") if not headers[name]
    ]
    stray = [name for name in names if name.startswith(("tests/", "examples/", "millstream/_core/"))]
    if missing or stray or headers["Description-Content-Type"] != "text/markdown":
        raise SystemExit(f"{wheel.name} cannot be released: {missing=} {stray=} {headers['Description-Content-Type']}")


def try_out(made: Path, core: str, port: int) -> None:
    """Install one file with the extra ``server`` in a clean environment, and run the smoke test there.

    Raises:
        SystemExit: It is too large.
    """
    with tempfile.TemporaryDirectory() as work:
        run(sys.executable, "-m", "venv", work)
        python = Path(work, "bin/python")
        run(
            python,
            "-m",
            "pip",
            "download",
            "--quiet",
            "-d",
            Path(work, "files"),
            f"{made}[server]",
            MILLSTREAM_CORE=core,
        )
        size = sum(path.stat().st_size for path in Path(work, "files").iterdir()) / 1e6
        if size > MOST_MB:
            raise SystemExit(
                f"{made.name}[server] is {size:.1f} MB, more than {MOST_MB}: find the dependency that grew"
            )
        run(python, "-m", "pip", "install", "--quiet", f"{made}[server]", MILLSTREAM_CORE=core)
        run(python, "-c", SMOKE, core, str(port), folder=Path(work))
    print(f"{made.name}[server] works, and is {size:.1f} MB with its dependencies", flush=True)


def main() -> None:
    """Build all, and check and test each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=6499, help="free port for the smoke test (default 6499)")
    port = parser.parse_args().port
    sdist, native, pure = built()
    for wheel in (native, pure):
        check_metadata(wheel)
    for made, core in ((sdist, "native"), (native, "native"), (pure, "python")):
        try_out(made, core, port)
    print("Ready to publish:", *(path.name for path in sorted(DIST.iterdir())), sep="\n  ")


if __name__ == "__main__":
    main()

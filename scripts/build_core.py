"""Compile the native core: ``scripts/build_core.py`` puts it beside the package's source, ``--sanitize`` with checks.

It needs only the C compiler that Python names, with Python's own flags. No build package is fetched, so it works
without
a network. The build backend (``scripts/build_hook.py``) calls the same function.
"""

import argparse
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "src/millstream/_core"
PACKAGE = ROOT / "src/millstream"

OURS = [
    "-std=gnu11",
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
    "-Wno-unused-parameter",
    "-Wno-missing-field-initializers",
    # Else a function is up to 8 % slower when another one before it grows
    "-falign-functions=64",
    "-falign-loops=32",
]
# What reads or writes where it must not ends the process, with where it was
SANITIZERS = [
    "-O1",
    "-g",
    "-UNDEBUG",
    "-fno-omit-frame-pointer",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover",
]


class CompilerError(Exception):
    """Error for a core that cannot be compiled here, with the reason and the compiler's output."""


def _words(variable: str) -> list[str]:
    """Return the words of a build variable of this Python, or of the environment."""
    return shlex.split(os.environ.get(variable) or sysconfig.get_config_var(variable) or "")


def digest() -> str:
    """Return the digest of all compiled sources, which the module keeps to detect other sources."""
    found = hashlib.sha256()
    for source in sorted(SOURCES.iterdir()):
        found.update(source.name.encode() + b"\0" + source.read_bytes())
    return found.hexdigest()


def build(folder: Path, *, sanitize: bool = False) -> Path:
    """Compile the core into a folder.

    Args:
        folder: Folder for the module; an existing one is replaced, and running processes keep theirs.
        sanitize: True for address and undefined-behaviour sanitizers.

    Returns:
        The module's file.

    Raises:
        CompilerError: There is no compiler, or it refused.
    """
    target = folder / f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"
    linker = _words("LDSHARED")
    if "CC" in os.environ:
        linker[:1] = _words("CC")
    if not linker or shutil.which(linker[0]) is None:
        raise CompilerError(f"there is no C compiler ({' '.join(linker[:1]) or 'none is named'})")
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        raise CompilerError("Python's headers are missing (Debian has them in python3-dev)")
    new = target.with_suffix(".new")
    sources = sorted(map(str, SOURCES.glob("*.c")))
    flags = [*_words("CFLAGS"), *_words("CCSHARED"), *OURS, *(SANITIZERS if sanitize else []), *_words("ARCHFLAGS")]
    include = (f"-I{sysconfig.get_path('include')}", f'-DMADE_FROM="{digest()}"')
    ran = subprocess.run(
        [*linker, *flags, *include, *sources, "-o", str(new)], capture_output=True, text=True, check=False
    )
    if ran.returncode:
        new.unlink(missing_ok=True)
        raise CompilerError(f"the C compiler refused:\n{ran.stderr}")
    sys.stderr.write(ran.stderr)
    new.replace(target)
    return target


def main() -> None:
    """Build in place and print the path."""
    parser = argparse.ArgumentParser(description="Compile the native core beside the package's source.")
    parser.add_argument("--sanitize", action="store_true", help="with address and undefined-behaviour sanitizers")
    parser.add_argument("--into", type=Path, default=PACKAGE, help="another folder to put it into")
    parser.add_argument("--if-possible", action="store_true", help="without a compiler say so, and be content")
    chosen = parser.parse_args()
    try:
        print(build(chosen.into, sanitize=chosen.sanitize))
    except CompilerError as error:
        message = f"millstream: the native core was not built, its Python double will run: {error}"
        if not chosen.if_possible:
            sys.exit(message)
        print(message)


if __name__ == "__main__":
    main()

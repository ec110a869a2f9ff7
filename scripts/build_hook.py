"""Put the native core into a wheel or an editable installation, if a C compiler can make it.

Without a compiler the package is the pure one: the engine's Python classes do everything. A user should not have to
install a compiler to try the program; INFO, ``millstream doctor`` and the start-up line report which one runs.
``MILLSTREAM_CORE=python`` in the build's environment makes the pure wheel on purpose, ``native`` fails without a core.

The build backend runs it for a wheel or an editable installation.
"""

import os
import runpy
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class NativeCoreHook(BuildHookInterface[Any]):
    """Compiles before the files are gathered."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and name the result; ``version`` is ``editable`` or ``standard``.

        Raises:
            SystemExit: There is no compiler or it refused, and the environment requires the native core.
        """
        wanted = os.environ.get("MILLSTREAM_CORE", "")
        if wanted == "python":
            return
        tools = runpy.run_path(str(Path(self.root) / "scripts/build_core.py"))
        self._folder = tempfile.TemporaryDirectory()
        folder = tools["PACKAGE"] if version == "editable" else Path(self._folder.name)
        try:
            made = tools["build"](folder)
        except tools["CompilerError"] as error:
            if wanted == "native":
                sys.exit(
                    f"millstream: the native core was not built: {error}\n"
                    "Mend that, or build without MILLSTREAM_CORE=native for the Python core"
                )
            sys.stderr.write(f"millstream: installed without its native core, which makes it faster: {error}\n")
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        if version != "editable":
            build_data["force_include"][str(made)] = f"millstream/{made.name}"

"""Build the compiled backend. All metadata is in pyproject.toml; only the extension is here.

Two environment variables are read:

``KVFAST_BUILD_EXT``
    ``auto`` (default): build the extension; where that fails, warn and install without it.
    ``yes``: a failure to build it fails the installation. ``no``: do not build it.
``KVFAST_SANITIZE``
    Sanitizers to build with, as ``-fsanitize`` takes them: ``address``, ``address,undefined``, ``thread``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

BACKEND: Final = "kvfast_ext.cython_backend"
MODULES: Final = ("_native", "_store")
FOLDER: Final = Path(*BACKEND.split("."))
DIRECTIVES: Final = {
    "language_level": "3",
    "binding": True,
    "embedsignature": True,
}


def build_mode() -> str:
    """Return the checked value of KVFAST_BUILD_EXT."""
    mode = os.environ.get("KVFAST_BUILD_EXT") or "auto"
    if mode not in ("auto", "yes", "no"):
        raise SystemExit(f"KVFAST_BUILD_EXT must be auto, yes or no, not {mode!r}")
    return mode


def compiler_flags() -> tuple[list[str], list[str]]:
    """Return what to give the compiler and the linker."""
    sanitize = os.environ.get("KVFAST_SANITIZE")
    if not sanitize:
        return ["-std=c++17", "-O2", "-g0"], []
    checked = [f"-fsanitize={sanitize}", "-fno-omit-frame-pointer"]
    return ["-std=c++17", "-O1", "-g", *checked], checked


def extensions(mode: str) -> list[Extension]:
    """Return the extension modules, as C++ that Cython wrote."""
    if mode == "no":
        return []
    from Cython.Build import cythonize

    compile_args, link_args = compiler_flags()
    modules = [
        Extension(
            f"{BACKEND}.{name}",
            sources=[str(FOLDER / f"{name}.pyx")],
            include_dirs=[str(FOLDER / "src")],
            depends=sorted(str(header) for header in (FOLDER / "src").glob("*.hpp")),
            libraries=["dl"] if sys.platform.startswith("linux") else [],
            extra_compile_args=compile_args,
            extra_link_args=link_args,
            language="c++",
        )
        for name in MODULES
    ]
    cythonized: list[Extension] = cythonize(modules, build_dir="build/cython", compiler_directives=DIRECTIVES)
    for module in cythonized:
        module.optional = mode == "auto"  # cythonize() makes new objects and forgets it
    return cythonized


class BuildTogether(build_ext):
    """Build both modules or none: a half-built backend would be found, and fail to load."""

    def initialize_options(self) -> None:
        super().initialize_options()
        # Neither the environment nor a switch of it shows in the files' times.
        self.force = True

    def build_extensions(self) -> None:
        self._failed: list[str] = []
        super().build_extensions()
        if self._failed:
            for module in self.extensions:
                Path(self.get_ext_fullpath(module.name)).unlink(missing_ok=True)
            print(_NOT_BUILT.format(names=", ".join(self._failed)), file=sys.stderr, flush=True)

    def build_extension(self, ext: Extension) -> None:
        try:
            super().build_extension(ext)
        except Exception:
            self._failed.append(ext.name)
            raise  # swallowed by build_extensions() where the module is optional, and only there


_NOT_BUILT: Final = """
*** kvfast: the compiled backend could not be built ({names}; the compiler's words are above).
*** This installation polls with the "python" backend: correct, and several times slower.
*** To get the compiled one, install a C++17 compiler and the Python headers, and run the
*** installation again with KVFAST_BUILD_EXT=yes, which stops where something is missing.
"""


setup(ext_modules=extensions(build_mode()), cmdclass={"build_ext": BuildTogether})

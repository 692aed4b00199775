"""Check what an sdist and a wheel hold: ``check_dist.py DIST_FOLDER TREE``."""

from __future__ import annotations

import sys
import tarfile
import zipfile
from pathlib import Path, PurePosixPath

PACKAGES = ("kvfast/", "kvfast_ext/")
TYPES = {".py", ".pyi"}  # nothing else of a package goes into a wheel, no Cython and no C++, but for
DATA = {"kvfast/bench/bare_loop.cpp"}  # what `kvfast bench` compiles where it runs
MODULES = ("kvfast_ext/cython_backend/_native.", "kvfast_ext/cython_backend/_store.")
NOT_IN_SDIST = {".gitignore"}
BUILT = {"build", "dist", "kvfast.egg-info", "__pycache__", ".venv", ".git"}


def tree_files(tree: Path) -> set[str]:
    """Return the files of a checkout, without what a build left there."""
    names = (path.relative_to(tree) for path in tree.rglob("*") if path.is_file())
    return {
        name.as_posix()
        for name in names
        if not BUILT & set(name.parts) and name.suffix not in (".pyc", ".so") and ".cache" not in name.name
    }


def wheel_complaints(wheel: Path, tree: Path) -> list[str]:
    """Return what is wrong with a wheel."""
    names = {name for name in zipfile.ZipFile(wheel).namelist() if not name.endswith("/")}
    code = {name for name in names if ".dist-info/" not in name}
    package_files = {name for name in tree_files(tree) if name.startswith(PACKAGES)}
    wanted = {name for name in package_files if PurePosixPath(name).suffix in TYPES}
    wanted |= DATA | {f"{package}py.typed" for package in PACKAGES}
    modules = {name for name in code if name.startswith(MODULES) and name.endswith(".so")}
    complaints = [f"wheel lacks {name}" for name in sorted(wanted - names)]
    complaints += [f"wheel should not hold {name}" for name in sorted(code - wanted - modules)]
    if len(modules) != len(MODULES):
        complaints.append(f"wheel holds the compiled modules {sorted(modules)}, expected {len(MODULES)}")
    stubs = {name.removesuffix(".pyi") + "." for name in names if name.endswith(".pyi")}
    complaints += [f"wheel has no stub for {module}" for module in MODULES if module not in stubs]
    if not any(name.endswith("/licenses/LICENSE") for name in names):
        complaints.append("wheel has no licence")
    return complaints


def sdist_complaints(sdist: Path, tree: Path) -> list[str]:
    """Return what is wrong with an sdist: all that the tree holds must be in it."""
    with tarfile.open(sdist) as archive:
        names = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    return [f"sdist lacks {name}" for name in sorted(tree_files(tree) - names - NOT_IN_SDIST)]


def main(dist: Path, tree: Path) -> int:
    """Print what is wrong, and return how much that is."""
    (wheel,), (sdist,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    complaints = wheel_complaints(wheel, tree) + sdist_complaints(sdist, tree)
    for complaint in complaints:
        print(complaint)
    print(f"{wheel.name}, {sdist.name}: {len(complaints)} complaints")
    return min(len(complaints), 1)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))

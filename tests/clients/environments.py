"""An environment of its own for each client: dask_mars, the client, what its tests need, and its tests."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from tests.clients.suites import Suite

ROOT = Path(__file__).parent.parent.parent
#: Made by this package and kept from run to run; not under version control.
CLIENTS = ROOT / ".clients"

_ALWAYS = ("pytest>=8.3", "pytest-timeout>=2.3", "pytest-xdist>=3.6")


def python(suite: Suite) -> Path:
    """Return the interpreter of a suite's environment, and make that where it is missing or has changed."""
    folder = CLIENTS / suite.environment
    requirements = "\n".join(sorted({suite.package, *suite.needs, *_ALWAYS}))
    installed = folder / "installed.txt"
    if not installed.exists() or installed.read_text() != requirements:
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, "--editable", f"{ROOT}[distributed]", *requirements.split("\n")], check=True)
        installed.write_text(requirements)
    return folder / "bin" / "python"


def source(suite: Suite) -> Path:
    """Return the folder of a suite's source distribution or repository, fetched where it is missing."""
    folder = CLIENTS / "sources" / f"{suite.distribution}-{suite.version}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        fetch = _clone if suite.repository else _download
        fetch(suite, folder)
    return folder


def _clone(suite: Suite, folder: Path) -> None:
    address, _, tag = suite.repository.partition("@")
    # Its tests alone: beside the package they would not import the one that is installed.
    clone = ["git", "clone", "--quiet", "--depth", "1", "--branch", tag, "--sparse", address, str(folder)]
    subprocess.run(clone, check=True)
    subprocess.run(["git", "-C", str(folder), "sparse-checkout", "set", *suite.targets], check=True)


def _download(suite: Suite, folder: Path) -> None:
    name = suite.distribution
    archives = CLIENTS / "archives" / name
    shutil.rmtree(archives, ignore_errors=True)
    pip = [str(python(suite)), "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", name]
    subprocess.run([*pip, f"{name}=={suite.version}", "--dest", str(archives)], check=True)
    (archive,) = archives.iterdir()
    with tarfile.open(archive) as opened:
        opened.extractall(archives, filter="data")
    (unpacked,) = (path for path in archives.iterdir() if path.is_dir())
    unpacked.rename(folder)


def versions(suite: Suite) -> str:
    """Return the versions of the client and of Dask, as installed."""
    name = suite.distribution
    program = "import sys; from importlib.metadata import version as v; print(*map(v, sys.argv[1:]))"
    command = [str(python(suite)), "-c", program, name, "dask", "numpy"]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return f"{name} {found[0]}, dask {found[1]}, numpy {found[2]}"

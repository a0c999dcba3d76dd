"""Releases on the package registry: the newest one, and the sources of one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from following.packages import Package

CACHE = Path(os.environ.get("ROPETOOL_CACHE") or Path.home() / ".cache" / "ropetool") / "follow"
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")
FROM_SOURCE = ("llama-cpp-python",)  # whose wheels hold no C++ code


def newest(name: str) -> str:
    """Return the newest release of a package. Raises: SystemExit if the registry does not answer."""
    done = subprocess.run([*PIP, "index", "versions", name], capture_output=True, text=True, check=False)
    match = re.search(r"\(([\w.]+)\)", done.stdout)
    if match is None:
        raise SystemExit(f"the registry gives no release of {name}: {done.stderr.strip()[-200:]}")
    return match[1]


def unpacked(package: Package, release: str) -> Path:
    """Return a folder with the files of a release that compute rotations, downloaded once.

    Raises: SystemExit if the release cannot be downloaded.
    """
    folder = CACHE / f"{package.name}-{release}"
    if folder.exists():
        return folder
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        archive = _downloaded(package, release, Path(scratch))
        files = Path(scratch, "files")
        files.mkdir()
        _extract(archive, files)
        inner = files if archive.suffix == ".whl" else next(files.iterdir())
        shutil.move(inner, folder)
    return folder


def installed(name: str, release: str) -> Path:
    """Return a folder for PYTHONPATH with a release and what it needs, installed once. torch is not in it.

    Raises: SystemExit if the release cannot be installed.
    """
    folder = CACHE / f"{name}-{release}-installed"
    if not folder.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
            order = [
                *PIP,
                "install",
                "-qq",
                "--no-warn-conflicts",
                "--target",
                f"{scratch}/files",
                f"{name}=={release}",
            ]
            done = subprocess.run(order, capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(f"{name} {release} cannot be installed: {done.stderr.strip()[-300:]}")
            shutil.move(f"{scratch}/files", folder)
    return folder


def _downloaded(package: Package, release: str, folder: Path) -> Path:
    binary = "--no-binary" if package.name in FROM_SOURCE else "--only-binary"
    order = [*PIP, "download", "-qq", "--no-deps", binary, ":all:", f"{package.name}=={release}", "--dest", str(folder)]
    done = subprocess.run(order, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{package.name} {release} cannot be downloaded: {done.stderr.strip()[-300:]}")
    return next(path for path in folder.iterdir() if path.suffix in (".whl", ".gz"))


def _extract(archive: Path, folder: Path) -> None:
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            wheel.extractall(folder, [name for name in wheel.namelist() if name.endswith(".py")])
    else:
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="data")

"""Releases on the package registry: the newest one, and the sources of one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from following.packages import Package
from ropetool import machine

ROOT = Path(__file__).resolve().parents[2]
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")


def newest(name: str) -> str:
    """Return the newest release of a package. Raises: SystemExit if the registry does not answer."""
    done = subprocess.run([*PIP, "index", "versions", name], capture_output=True, text=True, check=False)
    match = re.search(r"\(([\w.]+)\)", done.stdout)
    if match is None:
        raise SystemExit(f"the registry gives no release of {name}: {done.stderr.strip()[-200:]}")
    return match[1]


def unpacked(package: Package, release: str) -> Path:
    """Return a folder with the sources of a release, downloaded once.

    Raises: SystemExit if the release cannot be downloaded.
    """
    order = 'source scripts/lib.sh; use_package; use_peers_folder; unpack_peer "$@" >&2; echo "$peers/$1-$2"'
    environment = {**os.environ, "ROPETOOL_PYTHON": sys.executable}
    done = subprocess.run(
        ["bash", "-euc", order, "bash", package.name, release], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{package.name} {release} cannot be downloaded")
    return Path(done.stdout.strip())


def installed(name: str, release: str) -> Path:
    """Return a folder for PYTHONPATH with a release and what it needs, installed once. torch is not in it.

    Raises: SystemExit if the release cannot be installed.
    """
    cache = machine.cache() / "follow"
    folder = cache / f"{name}-{release}-installed"
    if not folder.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            files = str(Path(scratch, "files"))
            order = [*PIP, "install", "-qq", "--no-warn-conflicts", "--target", files, f"{name}=={release}"]
            done = subprocess.run(order, capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(f"{name} {release} cannot be installed: {done.stderr.strip()[-300:]}")
            shutil.move(files, folder)
    return folder

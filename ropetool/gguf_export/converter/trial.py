"""One token through a converter's file in a process of its own: what llama.cpp takes for impossible ends its process."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from ropetool.errors import CorruptFile

_PLACE = re.compile(r"\.(?:c|cpp|h):\d+: ")  # in ggml's last words: GGML_ASSERT or "fatal error"
_CHILD = """
import sys
from ropetool.errors import RopetoolError
from ropetool.verification.runners.llama_runner import LlamaRunner
try:
    list(LlamaRunner(sys.argv[1], device="cpu").logits([0]))
except RopetoolError:
    pass  # which is told in this process, in its own words
"""


def check_runs(file: Path) -> None:
    """Return if llama.cpp survives the file, or is not installed.

    Raises: CorruptFile with its last words where it ends the process.
    """
    if find_spec("llama_cpp") is None:
        return
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, str(file)], capture_output=True, text=True, errors="replace", check=False
    )
    if done.returncode >= 0:
        return
    said = [line for line in done.stderr.splitlines() if _PLACE.search(line)]
    raise CorruptFile(
        f"llama.cpp ends its process over the converter's file: {said[0].strip()[:200] if said else 'without a word'}",
        where=str(file),
    )

"""Run one token of a converter's file in a child process, because llama.cpp ends its process at an impossible state."""

from __future__ import annotations

import re
import subprocess
from importlib.util import find_spec
from pathlib import Path

from ropetool.errors import CorruptFile
from ropetool.gguf_export import children

_PLACE = re.compile(r"\.(?:c|cpp|h):\d+: ")  # in ggml's last words: GGML_ASSERT or "fatal error"
SECONDS = 600  # for one token; each PACE bytes of the file add one second
PACE = 10 << 20  # bytes that a slow disk reads in a second
_REFUSED = 3  # exit code of the child if llama.cpp does not load or run the file
_CHILD = f"""
import sys
from ropetool.errors import RopetoolError
from ropetool.verification.runners.llama_runner import LlamaRunner
try:
    list(LlamaRunner(sys.argv[1], device="cpu").logits([0]))
except RopetoolError as error:
    print(error.message)
    sys.exit({_REFUSED})
"""


def check_runs(file: Path) -> None:
    """Check that llama.cpp loads and runs the file. Returns without a check if llama.cpp is not installed.

    The logits of remote code are not compared.
    Raises: CorruptFile with llama.cpp's error, with its last output if it crashes, or if it exceeds SECONDS and the
    time for the file's size.
    """
    if find_spec("llama_cpp") is None:
        return
    seconds = SECONDS + file.stat().st_size // PACE
    try:
        done = subprocess.run(
            children.python(_CHILD, str(file)), env=children.environment(), capture_output=True, text=True,
            errors="replace", check=False, timeout=seconds,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise CorruptFile(
            f"llama.cpp did not run one token of the converter's file within {seconds:g} seconds", where=str(file),
            try_="export again on an idle machine, or with --no-check",
        ) from None  # fmt: skip
    if done.returncode == _REFUSED:
        raise CorruptFile(f"llama.cpp cannot use the converter's file: {done.stdout.strip()[:300]}", where=str(file))
    if done.returncode == 0:
        return
    if done.returncode > 0:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise CorruptFile(f"ropetool could not test the converter's file: {last[0][:300]}", where=str(file))
    aborts = [line for line in done.stderr.splitlines() if _PLACE.search(line)]
    raise CorruptFile(
        f"llama.cpp aborts on the converter's file: {aborts[0].strip()[:200] if aborts else 'without a message'}",
        where=str(file),
    )

"""Run a real server in the background: llama-server, or vLLM on a CPU.

ROPETOOL_LLAMA_SERVER is the path of a llama-server, and ROPETOOL_ENGINE_VLLM is a Python with vLLM.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

PORT = 8977
URL = f"http://127.0.0.1:{PORT}"
PATIENCE = 240  # seconds for a server to come up
FOR_VLLM = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1"}


def needed(name: str) -> str:
    """Return a variable of the environment. Raises: SystemExit if it is not set."""
    return os.environ.get(name) or sys.exit(f"{name} is not set")


def llama_server(file: Path, context: int, options: Sequence[str] = ()) -> list[str]:
    """Return the command of a llama-server for a GGUF file. context: tokens."""
    return [needed("ROPETOOL_LLAMA_SERVER"), "-m", str(file), "-c", str(context), *options]


def vllm(folder: Path, dtype: str, context: int, options: Sequence[str] = ()) -> list[str]:
    """Return the command of a vLLM server for a checkpoint. context: tokens."""
    return [
        needed("ROPETOOL_ENGINE_VLLM"), "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder), "--dtype", dtype,
        "--enforce-eager", "--max-model-len", str(context), *options,
    ]  # fmt: skip


@contextmanager
def running(command: Sequence[str], log: Path) -> Iterator[str]:
    """Yield the address of a server, and end it after that.

    Raises: SystemExit with the end of its output if it stops.
    """
    environment = {**os.environ, **FOR_VLLM}
    environment.pop("PYTHONPATH", None)  # an engine sees its own environment only
    with log.open("w", encoding="utf-8") as output:
        process = subprocess.Popen([*command, "--port", str(PORT)], stdout=output, stderr=output, env=environment)
    try:
        for _ in range(PATIENCE):
            if process.poll() is not None:
                raise SystemExit(f"{' '.join(command)}: {log.read_text(encoding='utf-8')[-2000:]}")
            if _is_up():
                break
            time.sleep(1)
        yield URL
    finally:
        process.terminate()
        process.wait()


def _is_up() -> bool:
    try:
        with urllib.request.urlopen(f"{URL}/health", timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False

"""Run a real server in the background: llama-server, or vLLM on a CPU.

ROPETOOL_LLAMA_SERVER is the path of a llama-server, and ROPETOOL_ENGINE_VLLM is a Python with vLLM.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

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
def running(
    command: Sequence[str],
    log: Path,
    *,
    port: int = 0,
    health: str = "/health",
    variables: Mapping[str, str] = FOR_VLLM,
) -> Iterator[str]:
    """Yield the address of a server, and end it after that.

    port: 0 for a free one. health: the page that answers once the server is up. variables: of its environment.
    Raises: RuntimeError with the end of its output if it stops, or does not answer in time.
    """
    # Without a handler, a signal would end the script and leave the server behind.
    handler = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    environment = {**os.environ, **variables}
    environment.pop("PYTHONPATH", None)  # an engine sees its own environment only
    with log.open("w", encoding="utf-8") as output:
        with socket.socket() as free:
            free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            free.bind(("127.0.0.1", port))  # an error if another program has it
            port = free.getsockname()[1]
        order = [*command, "--port", str(port)]
        process = subprocess.Popen(order, stdout=output, stderr=output, env=environment, start_new_session=True)
    url = f"http://127.0.0.1:{port}"
    try:
        end = time.monotonic() + PATIENCE
        while not _is_up(url + health):
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"{' '.join(command)}: {log.read_text(encoding='utf-8')[-2000:]}")
            time.sleep(1)
        yield url
    finally:
        with suppress(ProcessLookupError):  # it has ended
            os.killpg(process.pid, signal.SIGTERM)  # its workers too
        process.wait()
        signal.signal(signal.SIGTERM, handler)


def _is_up(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False

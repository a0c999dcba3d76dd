#!/usr/bin/env python3
"""Ask LiteLLM's proxy in front of llama.cpp servers, as `ropetool extend --variants` configures them. See README.md.

scripts/routing/routed.py MODEL.gguf --python PYTHON [--variants 16k]
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import secrets
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
TEXT = ROOT / "ropetool/texts/austen-emma.txt.xz"
RUSSIAN = "Все люди рождаются свободными и равными в своем достоинстве и правах. "  # noqa: RUF001
PROXY_PORT = 4000
STARTING = 1200  # seconds, for a busy machine


@contextmanager
def running(log: Path, *command: str, **environment: str) -> Iterator[None]:
    """Run a program in the background, with its output in a file."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env={**os.environ, **environment})
        try:
            yield
        finally:
            process.terminate()
            process.wait()


def asked(url: str, data: Any = None, key: str = "") -> tuple[Any, Any]:
    """Return the headers and the JSON of an answer."""
    headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
    body = None if data is None else json.dumps(data).encode()
    with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=3600) as answer:
        return answer.headers, json.load(answer)


def wait_for(url: str, key: str = "") -> None:
    """Return when a server answers."""
    for _ in range(STARTING // 2):
        try:
            asked(url, key=key)
            return
        except OSError:
            time.sleep(2)
    sys.exit(f"{url} did not answer within {STARTING} seconds")


def prompts(contexts: list[int]) -> Iterator[tuple[str, str, int]]:
    """Yield prompts: a title, the text, and the index of the server that should answer."""
    with lzma.open(TEXT, "rt", encoding="utf-8") as file:
        novel = file.read()
    yield "a short prompt", novel[:2000], 0
    for index, context in enumerate(contexts[1:], 1):  # about 4.4 characters for a token
        yield f"a prompt of about 0.6 times {context} tokens", novel[: int(0.6 * context * 4.4)], index
    yield (
        "a prompt that LiteLLM counts too low",
        RUSSIAN * (contexts[0] // 51),
        1,
    )  # it counts 37 tokens each, SmolLM2 55


def server(options: argparse.Namespace, model: dict[str, Any], port: str) -> list[str]:
    """Return the command of the server of a model: llama-server if its path is given, else llama-cpp-python's."""
    path, context, threads = model["path"], str(model["context"]), options.threads
    if options.llama_server:
        settings = ["-m", path, "-c", context, "--alias", model["name"], "-t", threads, "-tb", threads]
        return [options.llama_server, *settings, "--port", port]
    settings = ["--model", path, "--n_ctx", context, "--model_alias", model["name"]]
    settings += ["--n_threads", threads, "--n_threads_batch", threads]
    return [options.python, "-m", "llama_cpp.server", *settings, "--port", port]


def main() -> None:
    """Extend, serve, ask, and compare the answering server with the expected one."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--python", required=True, help="a Python with litellm[proxy] and llama-cpp-python[server]")
    parser.add_argument("--llama-server", metavar="PATH", help="a llama-server, in place of llama-cpp-python[server]")
    parser.add_argument("--variants", default="16k")
    parser.add_argument(
        "--threads", default=str(os.cpu_count()), help="threads of each server; 1 is faster on a busy machine"
    )
    options, more = parser.parse_known_args()
    key, wrong = f"sk-{secrets.token_urlsafe(24)}", 0
    with tempfile.TemporaryDirectory() as folder, ExitStack() as servers:
        extend = [
            "extend",
            options.model,
            "--method",
            "yarn",
            "--variants",
            options.variants,
            "-o",
            folder,
            "--json",
            *more,
        ]
        done = subprocess.run([sys.executable, "-m", "ropetool", *extend], check=True, stdout=subprocess.PIPE, cwd=ROOT)
        written = json.loads(done.stdout)
        config = Path(written["routing"]["litellm"])
        for entry, model in zip(yaml.safe_load(config.read_text())["model_list"], written["models"], strict=False):
            url = entry["litellm_params"]["api_base"]
            port = url.removesuffix("/v1").rpartition(":")[2]
            log = Path(folder, f"{port}.log")
            servers.enter_context(running(log, *server(options, model, port)))
            wait_for(f"{url}/models")
        proxy = [str(Path(options.python).with_name("litellm")), "--config", str(config), "--host", "127.0.0.1"]
        log = Path(folder, "proxy.log")
        known = {"LITELLM_MASTER_KEY": key, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        servers.enter_context(running(log, *proxy, "--port", str(PROXY_PORT), **known))
        wait_for(f"http://127.0.0.1:{PROXY_PORT}/v1/models", key)
        names = [model["name"] for model in written["models"]]
        for what, text, index in prompts([model["context"] for model in written["models"]]):
            request = {
                "model": written["model_group"],
                "messages": [{"role": "user", "content": text}],
                "max_tokens": 8,
            }
            try:
                headers, answer = asked(f"http://127.0.0.1:{PROXY_PORT}/v1/chat/completions", request, key)
            except urllib.error.HTTPError as error:
                print(f"WRONG  {what}: {error.read().decode()[:300]}")
                wrong += 1
                continue
            base = headers["x-litellm-model-api-base"]
            right = base.endswith(f":{8081 + index}/v1")
            wrong += not right
            print(
                f"{'right' if right else 'WRONG'}  {what}: {answer['usage']['prompt_tokens']} tokens, answered by {base}, expected "
                f"{names[index]}, after {headers['x-litellm-attempted-fallbacks']} fallbacks",
                flush=True,
            )
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()

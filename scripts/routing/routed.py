#!/usr/bin/env python3
"""Ask LiteLLM's proxy in front of llama-servers, as `ropetool extend --variants` configures them. See README.md.

scripts/routing/routed.py MODEL.gguf --litellm PROGRAM [--variants 16k]
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
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "scripts"))

import serving

TEXT = ROOT / "ropetool/texts/austen-emma.txt.xz"
RUSSIAN = "Все люди рождаются свободными и равными в своем достоинстве и правах. "  # noqa: RUF001
PROXY_PORT = 4000


def asked(url: str, data: Any, key: str) -> tuple[Any, Any]:
    """Return the headers and the JSON of an answer."""
    headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
    request = urllib.request.Request(url, json.dumps(data).encode(), headers)
    with urllib.request.urlopen(request, timeout=3600) as answer:
        return answer.headers, json.load(answer)


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


def main() -> None:
    """Extend, serve, ask, and compare the answering server with the expected one."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--litellm", required=True, help="the program litellm, of an environment with litellm[proxy]")
    parser.add_argument("--variants", default="16k")
    parser.add_argument(
        "--threads", default=str(os.cpu_count()), help="threads of each server; 1 is faster on a busy machine"
    )
    options, more = parser.parse_known_args()
    key, wrong = f"sk-{secrets.token_urlsafe(24)}", 0
    with tempfile.TemporaryDirectory() as folder, ExitStack() as servers:
        extend = ["extend", options.model, "--method", "yarn", "--variants", options.variants, "-o", folder, "--json"]
        command = [sys.executable, "-m", "ropetool", *extend, *more]
        written = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=ROOT).stdout)
        config = Path(written["routing"]["litellm"])
        for entry, model in zip(yaml.safe_load(config.read_text())["model_list"], written["models"], strict=False):
            port = int(entry["litellm_params"]["api_base"].removesuffix("/v1").rpartition(":")[2])
            threads = ["--alias", model["name"], "-t", options.threads, "-tb", options.threads]
            server = serving.llama_server(model["path"], model["context"], threads)
            servers.enter_context(serving.running(server, Path(folder, f"{port}.log"), port=port))
        proxy = [options.litellm, "--config", str(config), "--host", "127.0.0.1"]
        known = {"LITELLM_MASTER_KEY": key, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        log = Path(folder, "proxy.log")
        url = servers.enter_context(
            serving.running(proxy, log, port=PROXY_PORT, health="/health/liveliness", variables=known)
        )
        names = [model["name"] for model in written["models"]]
        for what, text, index in prompts([model["context"] for model in written["models"]]):
            messages = [{"role": "user", "content": text}]
            request = {"model": written["model_group"], "messages": messages, "max_tokens": 8}
            try:
                headers, answer = asked(f"{url}/v1/chat/completions", request, key)
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

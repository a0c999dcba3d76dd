#!/usr/bin/env python3
"""Answer the kit through a server with OpenAI's completions interface, started anew for each case:

    python drivers/run_server.py KIT OUT.json --name vLLM --release 0.32.0 --start \\
        'python -m vllm.entrypoints.openai.api_server --model {path} --port {port} --max-model-len {context} --dtype float32'

The likeliest next tokens are asked for, behind each prompt. A server may name them by token ids ("token_id:65", or `id`), or by
their text, which is one byte here.
"""

import concurrent.futures
import contextlib
import json
import os
import shlex
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request

import answering

LIKELIEST = 20
START, ANSWER = 240, 50  # seconds until the server must be there, and for a prompt: all within the limit of a case


def prepare(arguments):
    return {"engine": arguments.name, "release": arguments.release, "versions": {"interface": "/v1/completions"}}


def answer(job, arguments):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    order = [part.format(path=job["path"], port=port, context=job["context"]) for part in shlex.split(arguments.start)]
    url = f"http://127.0.0.1:{port}"
    server = subprocess.Popen(order, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        model = _wait(server, url)
        given = {}
        for rows in answering.steps(job):
            with concurrent.futures.ThreadPoolExecutor(len(rows)) as requests:
                prompts = [job["prompts"][row.prompt] for row in rows]
                answers = requests.map(lambda ids: _ask(url, model, ids), prompts)
                for row, (likeliest, cached) in zip(rows, answers, strict=True):
                    if row.kept and not cached:
                        raise answering.Unsupported("the server does not say that it kept tokens in a cache")
                    given[row.prompt] = {"next": likeliest}
        return answering.in_order(given)
    finally:
        with contextlib.suppress(ProcessLookupError):  # it has ended
            os.killpg(server.pid, signal.SIGKILL)  # its workers too
        server.wait()


def _wait(server, url):
    """Return the name by which the server serves the model."""
    end = time.monotonic() + START
    while time.monotonic() < end:
        if server.poll() is not None:
            raise ValueError(f"the server ended with {server.returncode}")
        try:
            return _json(f"{url}/v1/models", None)["data"][0]["id"]
        except (OSError, ValueError):  # not there yet, or still loading
            time.sleep(1)
    raise ValueError(f"the server does not answer within {START} seconds")


def _ask(url, model, ids):
    """Return the log probabilities of the likeliest next tokens, and the number of tokens that came from a cache."""
    asked = {"model": model, "prompt": ids, "max_tokens": 1, "temperature": 0, "logprobs": LIKELIEST}
    try:
        found = _json(f"{url}/v1/completions", {**asked, "return_tokens_as_token_ids": True})
    except urllib.error.HTTPError as error:
        raise ValueError(f"{len(ids)} tokens: {error.code}, {error.read().decode('utf-8', 'replace')}") from error
    given = found["choices"][0]["logprobs"]
    details = (found.get("usage") or {}).get("prompt_tokens_details") or {}
    cached = details.get("cached_tokens") or 0
    if "content" in given:
        return {one["id"]: one["logprob"] for one in given["content"][0]["top_logprobs"]}, cached
    named = {_token(text): value for text, value in given["top_logprobs"][0].items()}
    return {token: value for token, value in named.items() if token is not None}, cached


def _token(text):
    """Return the id of a token by its name; None for bytes that are no text by themselves."""
    if text.startswith("token_id:"):
        return int(text.partition(":")[2])
    return ord(text) if len(text) == 1 and text.isascii() else None


def _json(url, body):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=ANSWER) as answered:
        return json.load(answered)


OPTIONS = [
    ("--start", {"required": True, "help": "the command that serves {path} at {port}, for {context} tokens"}),
    ("--name", {"default": "server", "help": "of the engine, for the table"}),
    ("--release", {"default": "unknown", "help": "of the engine, for the table"}),
]

if __name__ == "__main__":
    answering.main("server", "hf", prepare, answer, OPTIONS)

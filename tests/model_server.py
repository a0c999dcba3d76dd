"""A small HTTP server in the shape of vLLM's, SGLang's, llama-server's, Ollama's and llama-cpp-python's, around any function.

It has been held against the real ones (scripts/engines/run): fields and errors are theirs. What it is told to break, it breaks.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

KINDS = ("vllm", "sglang", "llama-server", "ollama", "openai")
Model = Callable[[Sequence[int]], np.ndarray]
"""Returns the log probabilities of what comes after some ids. Shapes: (tokens,) -> (vocabulary,)."""


@dataclass
class Served:
    """What is served, and what of it is broken.

    read, write: from text to ids and back; without the first it has no interface for its tokenizer. context: tokens.
    busy: how many requests are answered by 503 first. change: what becomes of an answer before it is sent. quiet: without
    log probabilities. key: what is asked for. asked: every request.
    """

    kind: str
    model: Model
    read: Callable[[str], list[int]] | None
    write: Callable[[int], str]
    context: int = 4096
    busy: int = 0
    change: Callable[[str, Any], Any] = lambda path, answer: answer
    quiet: bool = False
    processed: bool = False
    key: str = ""
    name: str = "served"
    held: int = 0  # tokens of the prompts that are being answered
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, path: str) -> Any:
        """Return the answer to a question without a body, None where there is no such place."""
        cards = [{"id": self.name, "object": "model"}]
        places: dict[str, dict[str, Any]] = {
            "vllm": {
                "/version": {"version": "0.32.0"},
                "/v1/models": {"data": [{**cards[0], "owned_by": "vllm", "max_model_len": self.context}]},
            },
            "sglang": {
                "/model_info": {"model_path": self.name, "is_generation": True},
                "/server_info": {"version": "0.5.23", "context_length": self.context},
            },
            "llama-server": {
                "/props": {
                    "default_generation_settings": {"n_ctx": self.context}, "model_path": self.name, "build_info": "b1"
                }
            },
            "ollama": {"/api/version": {"version": "0.13.0"}, "/api/tags": {"models": [{"name": self.name}]}},
            "openai": {"/v1/models": {"data": [{**cards[0], "owned_by": "me"}]}},
        }  # fmt: skip
        return places[self.kind].get(path)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """Return the answer to a request, None where there is no such place."""
        places = {
            ("vllm", "/v1/completions"): self._vllm, ("vllm", "/tokenize"): self._tokens("prompt"),
            ("sglang", "/generate"): self._sglang, ("sglang", "/tokenize"): self._tokens("prompt"),
            ("llama-server", "/completion"): self._llama_server,
            ("llama-server", "/tokenize"): self._tokens("content"), ("ollama", "/api/generate"): self._ollama,
            ("ollama", "/api/show"): lambda body: {"model_info": {"llama.context_length": self.context}},
            ("openai", "/v1/completions"): self._openai,
        }  # fmt: skip
        found = places.get((self.kind, path))
        return None if found is None else found(body)

    def _tokens(self, key: str) -> Callable[[dict[str, Any]], Any]:
        return lambda body: None if self.read is None else {"tokens": self.read(body[key])}

    def _top(self, ids: Sequence[int], count: int) -> tuple[np.ndarray, list[int]]:
        found = self.model(ids)
        return found, [int(token) for token in np.argsort(-found, kind="stable")[:count]]

    def _vllm(self, body: dict[str, Any]) -> Any:
        ids = body["prompt"]
        if len(ids) > self.context - 1:
            return {"error": {"message": f"maximum context length is {self.context} tokens", "code": 400}}
        found, top = self._top(ids, body.get("logprobs") or 0)
        allowed = body.get("allowed_token_ids")
        if self.processed and allowed:  # --logprobs-mode processed_logprobs
            found = np.full_like(found, -9999.0)
            found[allowed] = 0.0
        drawn = max(allowed or range(len(found)), key=lambda token: found[token])
        shown = {f"token_id:{token}": float(found[token]) for token in [drawn, *top]}
        choice = {"logprobs": None if self.quiet else {"top_logprobs": [shown]}, "prompt_logprobs": None}
        if body.get("prompt_logprobs") is not None:
            found = [self.model(ids[:at]) for at in range(1, len(ids))]
            choice["prompt_logprobs"] = [None, *map(_scored, ids[1:], found)]
        return {"choices": [choice], "usage": {"prompt_tokens": len(ids)}}

    def _sglang(self, body: dict[str, Any]) -> Any:
        ids = body["input_ids"]
        found, top = self._top(ids, body.get("top_logprobs_num", 0))
        said: dict[str, Any] = {"output_top_logprobs": [[[float(found[one]), one, None] for one in top]]}
        if "token_ids_logprob" in body:
            said["output_token_ids_logprobs"] = [[[float(found[one]), one, None] for one in body["token_ids_logprob"]]]
        if "logprob_start_len" in body:  # the first of the entries has no score, whatever comes before it
            places = range(body["logprob_start_len"] + 1, len(ids))
            scores = [None, *(float(self.model(ids[:at])[ids[at]]) for at in places)]
            shown = ids[places.start - 1 :]
            said["input_token_logprobs"] = [[one, token, None] for one, token in zip(scores, shown, strict=True)]
            tops = [int(self.model(ids[:at]).argmax()) for at in places]
            said["input_top_logprobs"] = [None, *([[0.0, one, None]] for one in tops)]
        return {"text": "", "meta_info": {} if self.quiet else said}

    def _llama_server(self, body: dict[str, Any]) -> Any:
        ids = body["prompt"]
        if len(ids) >= self.context:
            return {"error": {"message": "the request exceeds the available context size", "code": 400}}
        with self.lock:
            self.held += len(ids)
            full = self.held > self.context
        try:
            if full:  # its slots share the cells of one cache
                return {"error": {"message": "Context size has been exceeded.", "code": 500}}
            return self._drawn(body)
        finally:
            with self.lock:
                self.held -= len(ids)

    def _drawn(self, body: dict[str, Any]) -> Any:
        ids = body["prompt"]
        found, top = self._top(ids, body["n_probs"])
        raised = found.copy()
        for token, bias in body["logit_bias"]:
            raised[token] += bias
        drawn = int(raised.argmax())
        entries = [{"id": one, "token": "", "logprob": float(found[one])} for one in top]
        told = {"id": drawn, "logprob": float(found[drawn]), "top_logprobs": entries}
        told_of = not self.quiet and not self.write(drawn).endswith(
            "\ufffd"
        )  # not of a token that ends within a character
        return {
            "tokens_evaluated": len(ids), "truncated": len(ids) + 1 >= self.context,
            **({"completion_probabilities": [told]} if told_of else {}),
        }  # fmt: skip

    def _ollama(self, body: dict[str, Any]) -> Any:
        ids = self.read(body["prompt"])
        found, top = self._top(ids, body["top_logprobs"])
        entries = [{"token": self.write(one), "logprob": float(found[one])} for one in top]
        told = {} if self.quiet else {"logprobs": [{**entries[0], "top_logprobs": entries}]}
        return {"prompt_eval_count": len(ids), "done": True, **told}

    def _openai(self, body: dict[str, Any]) -> Any:
        ids = self.read(body["prompt"])
        found, top = self._top(ids, body["logprobs"])
        shown = {self.write(one): float(found[one]) for one in top}
        choice = {"logprobs": None if self.quiet else {"top_logprobs": [shown]}}
        return {"choices": [choice], "usage": {"prompt_tokens": len(ids)}}


def _scored(token: int, found: np.ndarray) -> dict[str, dict[str, float]]:
    """Return the entries of a token and of the likeliest one."""
    return {str(one): {"logprob": float(found[one])} for one in (token, int(found.argmax()))}


class _Handler(BaseHTTPRequestHandler):
    served: Served

    def do_GET(self) -> None:
        self._answer(lambda: self.served.get(self.path))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.served.lock:
            self.served.asked.append((self.path, body))
        self._answer(lambda: self.served.post(self.path, body))

    def _answer(self, made: Callable[[], Any]) -> None:
        with self.served.lock:
            late = self.served.busy > 0
            self.served.busy -= late
        if late:
            return self._send(503, {"error": "busy"})
        if self.served.key and self.headers.get("Authorization") != f"Bearer {self.served.key}":
            return self._send(401, {"error": "no key"})
        found = made()
        if found is None:
            return self._send(404, {"detail": "Not Found"})
        found = self.served.change(self.path, found)
        error = found.get("error") if isinstance(found, dict) else None
        return self._send(200 if error is None else error.get("code", 400) if isinstance(error, dict) else 400, found)

    def _send(self, status: int, found: Any) -> None:
        data = found if isinstance(found, bytes) else json.dumps(found).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@contextmanager
def serving(served: Served, port: int = 0) -> Iterator[str]:
    """Serve in a thread of this process; give the address."""
    server = ThreadingHTTPServer(("127.0.0.1", port), type("Handler", (_Handler,), {"served": served}))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

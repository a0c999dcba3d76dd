"""A server on this machine that speaks the hub's API, and counts what it serves: repositories are folders.

Weight files are answered by a redirect to another host name, as the hub does to its storage, where no token may arrive.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha1
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

LARGE_SUFFIXES = (".safetensors", ".gguf", ".bin")


@dataclass
class Hub:
    """What is served, what was asked for, and what is refused.

    repositories: ORG/NAME -> folder. refusals: ORG/NAME -> status and X-Error-Code. served: bytes of bodies by file name.
    asked: method and path of every request. tokens: of requests to the hub; stored_tokens: of those to the storage.
    """

    repositories: dict[str, Path] = field(default_factory=dict)
    refusals: dict[str, tuple[int, str]] = field(default_factory=dict)
    revisions: tuple[str, ...] = ("main",)
    ranges: bool = True
    served: Counter[str] = field(default_factory=Counter)
    asked: list[str] = field(default_factory=list)
    tokens: set[str] = field(default_factory=set)
    stored_tokens: set[str] = field(default_factory=set)
    port: int = 0

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def commit(self, repo: str) -> str:
        return sha1(repo.encode()).hexdigest()


def files(folder: Path) -> Iterator[Path]:
    yield from sorted(path for path in folder.rglob("*") if path.is_file())


class Handler(BaseHTTPRequestHandler):
    """Answers for `hub`, which the server's own subclass holds."""

    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *arguments: Any) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.answer(body=True)

    def answer(self, *, body: bool) -> None:
        raw = urlsplit(self.path).path
        path = unquote(raw)
        self.hub.asked.append(f"{self.command} {path}")
        token = self.headers.get("Authorization", "")
        if path.startswith("/storage/"):
            self.hub.stored_tokens.add(token)
            self.file(Path(path.removeprefix("/storage")), body)
            return
        self.hub.tokens.add(token)
        parts = [unquote(part) for part in raw.strip("/").split("/")]  # a revision may have slashes, which come as %2F
        api = parts[:2] == ["api", "models"]
        repo, rest = "/".join(parts[2:4] if api else parts[:2]), parts[4:] if api else parts[2:]
        if repo in self.hub.refusals:
            status, code = self.hub.refusals[repo]
            self.send({"error": code}, status, {"X-Error-Code": code} if code else {})
        elif repo not in self.hub.repositories:
            self.send({"error": "Repository not found"}, 401, {"X-Error-Code": "RepoNotFound"})
        elif api:
            self.api(repo, rest)
        else:
            self.resolve(repo, rest, body)

    def known(self, repo: str, revision: str) -> bool:
        found = revision in (*self.hub.revisions, self.hub.commit(repo))
        if not found:
            self.send({"error": "Invalid rev id"}, 404, {"X-Error-Code": "RevisionNotFound"})
        return found

    def api(self, repo: str, rest: list[str]) -> None:
        folder = self.hub.repositories[repo]
        revision = rest[1] if rest else "main"
        if not self.known(repo, revision):
            return
        listed = [(path.relative_to(folder).as_posix(), path.stat().st_size) for path in files(folder)]
        if rest[:1] == ["tree"]:
            self.send([{"type": "file", "path": name, "size": size, "oid": sha1(name.encode()).hexdigest()}
                       for name, size in listed])  # fmt: skip
        else:
            siblings = [
                {"rfilename": name, "size": size, "blobId": sha1(name.encode()).hexdigest()} for name, size in listed
            ]
            self.send({"id": repo, "modelId": repo, "sha": self.hub.commit(repo), "siblings": siblings, "tags": [],
                       "private": False, "gated": False})  # fmt: skip

    def resolve(self, repo: str, rest: list[str], body: bool) -> None:
        if not self.known(repo, rest[1]):
            return
        name = "/".join(rest[2:])
        path = self.hub.repositories[repo] / name
        head = {"X-Repo-Commit": self.hub.commit(repo), "ETag": f'"{sha1(f"{repo} {name}".encode()).hexdigest()}"'}
        if not path.is_file():
            self.send({"error": "Entry not found"}, 404, {**head, "X-Error-Code": "EntryNotFound"})
        elif name.endswith(LARGE_SUFFIXES):
            place = f"http://localhost:{self.hub.port}/storage{path}"
            linked = {"X-Linked-Size": str(path.stat().st_size), "X-Linked-ETag": head["ETag"]}
            self.send(None, 302, {**head, **linked, "Location": place})
        else:
            self.file(path, body, head)

    def file(self, path: Path, body: bool, head: dict[str, str] | None = None) -> None:
        size = path.stat().st_size
        begin, end, status, more = 0, size, 200, dict(head or {})
        asked = self.headers.get("Range", "")
        if asked and self.hub.ranges:
            first, _, last = asked.removeprefix("bytes=").partition("-")
            begin, end, status = int(first), min(int(last) + 1 if last else size, size), 206
            more["Content-Range"] = f"bytes {begin}-{end - 1}/{size}"
        self.send_response(status)
        for key, value in {**more, "Content-Length": str(end - begin), "Accept-Ranges": "bytes"}.items():
            self.send_header(key, value)
        self.end_headers()
        if body:
            with path.open("rb") as opened:
                opened.seek(begin)
                self.hub.served[path.name] += self.wfile.write(opened.read(end - begin))

    def send(self, data: Any, status: int = 200, head: dict[str, str] | None = None) -> None:
        raw = b"" if data is None else json.dumps(data).encode()
        self.send_response(status)
        for key, value in {**(head or {}), "Content-Type": "application/json", "Content-Length": str(len(raw))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(raw)


class Server(ThreadingHTTPServer):
    """Says nothing of clients that hang up: stderr is the command's, which a test reads."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """Serve while the body runs."""
    server = Server(("127.0.0.1", 0), type("Served", (Handler,), {"hub": hub}))
    hub.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


TOKEN = "hf_of_the_tests"


@contextmanager
def local_hub(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """Serve, and turn huggingface_hub in this process to it, with an empty cache and a token."""
    constants = pytest.importorskip("huggingface_hub.constants")
    with serving(Hub()) as served:
        monkeypatch.setattr(constants, "ENDPOINT", served.endpoint)
        template = served.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield served

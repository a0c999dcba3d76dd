"""The readers of hub ids, and of what a hub answers: through a server on this machine and huggingface_hub itself."""

from __future__ import annotations

import json
import os
import random
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from torture.mutating import bytes_of, json_of
from torture.readers.base import Reader, ignore

ANSWER = "answer of the hub"
IDS = [b"org/name", b"org/name@main:x.gguf", b"https://huggingface.co/org/name/blob/main/x.gguf"]
FILES = ("config.json", "model.safetensors", "x.gguf")
LISTED = {
    "id": "org/name", "modelId": "org/name", "sha": "0" * 40, "tags": [], "private": False, "cardData": {"license": "mit"},
    "siblings": [{"rfilename": name, "size": 5, "blobId": "0" * 40} for name in FILES],
    "lastModified": "2024-01-01T00:00:00.000Z",
}  # fmt: skip


def hub() -> Iterator[Reader]:
    from ropetool.files.hub.ids import HubId, hub_id
    from ropetool.files.hub.snapshots import check_checkpoint, files_of, listing, weight_files

    def read_id(data: bytes, rng: random.Random) -> None:
        hub_id(os.fsdecode(data.replace(b"\0", b"")[:3000]))

    words = [b"@", b":", b"/", b"..", b".gguf", b"https://huggingface.co/", b"resolve", b"tree/main"]
    yield Reader("hub id", IDS, bytes_of, read_id, words)
    try:
        from huggingface_hub import HfApi, errors  # noqa: F401 - loaded before the clock runs
        from huggingface_hub.utils import get_session
    except ImportError:
        yield Reader(ANSWER, [], json_of, read_id, skipped="huggingface_hub is not installed")
        return
    get_session()
    server = _Server()

    def read_listing(data: bytes, rng: random.Random) -> None:
        server.answer(data)
        asked = HubId("org/name", "", rng.choice(("", "x.gguf")))
        held = listing(asked)
        ignore(files_of(asked))
        ignore(weight_files(held.sizes))
        check_checkpoint(asked, held)

    yield Reader(
        ANSWER, [json.dumps(LISTED).encode()], json_of, read_listing, [b"config.json", b"../x", b"x.gguf", b"C:x"], 0.5
    )  # fmt: skip


class _Server:
    """A hub that gives one answer to everything; started in the process that asks it, since threads survive no fork."""

    def __init__(self) -> None:
        self._process = 0
        self._body = b""

    def answer(self, body: bytes) -> None:
        """Answer with this body from now on, and turn huggingface_hub in this process here."""
        self._body = body
        if self._process != os.getpid():
            self._process = os.getpid()
            self._start()

    def _start(self) -> None:
        from huggingface_hub import constants

        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_GET(self) -> None:
                body = outer._body
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *arguments: object) -> None:
                """Say nothing."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        constants.ENDPOINT = f"http://127.0.0.1:{server.server_address[1]}"
        constants.HF_HUB_OFFLINE = False

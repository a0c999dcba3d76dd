"""A hub that lies, floods, stalls or leads elsewhere: one error, within bounds, and nothing outside the cache."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from hashlib import sha1
from pathlib import Path
from typing import Any

import gguf_files
import pytest
from hub_server import TOKEN, Handler, Hub, local_hub
from running import bounded, run

import ropetool
from ropetool.errors import HubError, RopetoolError
from ropetool.files.hub import bounds, local
from ropetool.runtimes import inspection

DEMO = Path(ropetool.__file__).parent / "demo" / "model"
COMMIT = "0" * 40
ONE = [{"rfilename": "config.json", "size": 600}]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.chdir(tmp_path)
    with local_hub(tmp_path / "cache", monkeypatch) as served:
        served.repositories["acme/demo"] = shutil.copytree(DEMO, tmp_path / "served")
        (tmp_path / "ggufs").mkdir()
        served.repositories["acme/files"] = gguf_files.model(tmp_path / "ggufs" / "one.gguf").parent
        yield served


def names_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_relative_to(folder / "cache")}


def refused(match: str, source: str = "acme/demo") -> None:
    """Assert that every way to a model on the hub is refused in two lines, and writes nothing outside the cache."""
    before = names_below(Path.cwd())
    for arguments in (
        ["inspect", source], ["extend", source, "--method", "yarn", "--factor", "4", "--dry-run"],
        ["diff", source, source, "--json"],
    ):  # fmt: skip
        done = run(*arguments)
        lines = done.err.splitlines()
        assert (done.code, len(lines)) == (1, 2), done
        assert match in lines[0], lines
        assert lines[0].startswith(f"Error: {source}: ")
        assert lines[1].startswith("Try: ")
    assert names_below(Path.cwd()) == before


def answering(monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
    """Let the hub give this answer about every model."""
    monkeypatch.setattr(Handler, "api", lambda handler, repo, rest: handler.send(answer))


# --- lists of files


@pytest.mark.parametrize(
    ("answer", "match"),
    [
        ([], "sends an unexpected answer"),
        ("text", "answer"),
        (None, "invalid JSON"),
        ({}, "sends an unexpected answer"),
        ({"sha": COMMIT}, "sends an unexpected answer"),
        ({"sha": COMMIT, "siblings": None}, "sends an invalid answer (siblings is null; it must be a list)"),
        ({"sha": COMMIT, "siblings": {"a": 1}}, 'siblings is {"a": 1}; it must be a list'),
        ({"sha": COMMIT, "siblings": ["config.json"]}, 'file 0 is "config.json"; it must be an object'),
        ({"sha": COMMIT, "siblings": [{}]}, "path of file 0 is absent; it must be a path inside the repository"),
        ({"sha": None, "siblings": ONE}, "sha is null; it must be a commit"),
        ({"sha": "../../../../evil", "siblings": ONE}, 'sha is "../../../../evil"; it must be a commit'),
        ({"sha": 7, "siblings": ONE}, "sha is 7; it must be a commit"),
        *(
            (
                {"sha": COMMIT, "siblings": [*ONE, {"rfilename": name, "size": 1}]},
                f"rfilename of file 1 is {json.dumps(name)}; it must be a path inside the repository",
            )
            for name in ("../x.json", "/etc/x.json", "a/../../x.json", "..\\x.json", "C:x.json", "", "a//b", "a\0b", 7)
        ),
        *(
            (
                {"sha": COMMIT, "siblings": [{"rfilename": "config.json", "size": size}]},
                f"size of file 0 is {json.dumps(size)}; it must be null or a whole number from 0 to 9223372036854775807",
            )
            for size in ("12", -1, 1.5, True, [1], 2**70)
        ),
        (
            {"sha": COMMIT, "siblings": [{**ONE[0], "lfs": {"sha256": "../../x", "size": 1}}]},
            'sha256 of lfs of file 0 is "../../x"; it must be a digest',
        ),
        ({"sha": COMMIT, "siblings": [{**ONE[0], "lfs": {"oid": "0" * 64, "size": -1}}]}, "size of lfs of file 0 is -1"),
        ({"sha": COMMIT, "siblings": [{**ONE[0], "lfs": {}}]}, "oid of lfs of file 0 is absent"),
        ({"sha": COMMIT, "siblings": [{**ONE[0], "lfs": "x"}]}, 'lfs of file 0 is "x"; it must be null or an object'),
        ({"sha": COMMIT, "siblings": ONE, "lastModified": {"x": 1}}, "answer"),
        ({"sha": COMMIT, "siblings": ONE, "safetensors": [1], "cardData": 7}, "answer"),
    ],
    ids=lambda value: json.dumps(value)[:60] if not isinstance(value, str) else "",
)  # fmt: skip
def test_an_answer_of_another_shape(answer: Any, match: str, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, answer)
    refused(match)


def test_a_description_nested_without_end(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    raw(monkeypatch, "api", lambda handler: begin(handler, b"[" * 200_000))
    refused("invalid JSON (RecursionError)")


def begin(handler: Handler, body: bytes, length: int | None = None, **head: str) -> None:
    """Begin an answer, with a length that may be a lie."""
    handler.send_response(200)
    more = {"Content-Type": "application/json", "X-Repo-Commit": COMMIT, "ETag": '"e"', **head}
    for key, value in {**more, "Content-Length": str(len(body) if length is None else length)}.items():
        handler.send_header(key.replace("_", "-"), value)
    handler.end_headers()
    if handler.command != "HEAD":
        handler.wfile.write(body)


def raw(monkeypatch: pytest.MonkeyPatch, what: str, answer: Callable[[Handler], None]) -> None:
    monkeypatch.setattr(Handler, what, lambda handler, *_: answer(handler))


# --- bodies


def flood(handler: Handler, head: bytes = b'{"a": "', size: int | None = None) -> None:
    """Send without end, and count; size: what is announced before."""
    handler.send_response(200)
    for key, value in {"X-Repo-Commit": COMMIT, "ETag": '"e"', "Connection": "close"}.items():
        handler.send_header(key, value)
    if size is not None and handler.command == "HEAD":
        handler.send_header("Content-Length", str(size))
    handler.end_headers()
    handler.close_connection = True
    if handler.command == "HEAD":
        return
    try:
        handler.wfile.write(head)
        for _ in range(2000):
            handler.hub.served["flood"] += handler.wfile.write(b"x" * 65536)
    except OSError:
        pass


def test_a_list_without_end_is_cut(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    raw(monkeypatch, "api", flood)
    refused("sends more than the 6,291,456 requested bytes")
    assert hub.served["flood"] < 3 * 16 << 20  # what sockets hold comes on top


def test_a_config_without_end_is_cut(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    raw(monkeypatch, "resolve", flood)
    with pytest.raises(HubError, match="sends more than the 8,388,608 requested bytes"):
        inspection.inspect("acme/demo")
    assert hub.served["flood"] < 20 << 20


def test_a_download_is_cut_at_the_largest_size_that_was_stated(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    raw(monkeypatch, "resolve", flood)
    with pytest.raises(HubError, match="sends more than the 6,955,520 requested bytes"):
        local("acme/demo")
    assert hub.served["flood"] < 8 * 16 << 20  # several files at a time


LOCAL = """
from ropetool.errors import HubError
from ropetool.files.hub import local
try:
    local("acme/demo")
except HubError as error:
    print(error.message)
"""


def test_the_client_of_earlier_releases_is_bounded_too(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before 1.0 each thread has a session of its own, and downloads run in threads."""
    python = os.environ.get("ROPETOOL_V4_PYTHON")
    if not python:
        pytest.skip("ROPETOOL_V4_PYTHON names no interpreter with transformers 4.57 and an earlier huggingface_hub")
    raw(monkeypatch, "resolve", lambda handler: flood(handler, size=2))  # without a size they fetch nothing
    environment = {
        **os.environ, "HF_ENDPOINT": hub.endpoint, "HF_HUB_CACHE": str(Path("cache").absolute()),
        "PYTHONPATH": str(Path(ropetool.__file__).parents[1]),
    }  # fmt: skip
    done = subprocess.run([python, "-c", LOCAL], env=environment, capture_output=True, text=True, timeout=120)
    assert "sends more than the 6,955,520 requested bytes" in done.stdout, done.stderr
    assert hub.served["flood"] < 8 * 16 << 20


@pytest.mark.parametrize("revision", ["/bin/ls", "a/../b", "..", "a//b"])
def test_a_revision_that_is_a_path_is_refused(revision: str, hub: Hub) -> None:
    """The local cache takes it for the name of a file in its folder of references."""
    refused("names a revision that is not a branch, tag or commit", f"acme/demo@{revision}")


def test_a_range_that_is_answered_by_all_is_cut(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    served = Handler.file

    def file(handler: Handler, path: Path, body: bool, head: dict[str, str] | None = None) -> None:
        if handler.command == "GET" and path.suffix == ".gguf":
            flood(handler, path.read_bytes())
        else:
            served(handler, path, body, head)

    monkeypatch.setattr(Handler, "file", file)
    with pytest.raises(HubError, match="requested bytes"):
        inspection.inspect("acme/files:one.gguf")
    assert hub.served["flood"] < 16 << 20


def test_a_file_of_another_size_than_stated(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = hub.commit("acme/files")
    for size in (10, 1 << 40):
        listed = {"id": "acme/files", "sha": commit, "siblings": [{"rfilename": "one.gguf", "size": size}]}
        answering(monkeypatch, listed)
        with pytest.raises(RopetoolError):
            inspection.inspect("acme/files:one.gguf")


def test_a_packed_answer_is_refused(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    import gzip

    bomb = gzip.compress(b" " * (64 << 20))
    raw(monkeypatch, "api", lambda handler: begin(handler, bomb, Content_Encoding="gzip"))
    refused("compresses an answer")


# --- time


def drip(handler: Handler) -> None:
    """Send a letter now and then: no single wait is long."""
    handler.send_response(200)
    handler.send_header("Content-Length", "1000000")
    handler.end_headers()
    try:
        for _ in range(100):
            handler.wfile.write(b" ")
            time.sleep(0.05)
    except OSError:
        pass


def drip_head(handler: Handler) -> None:
    try:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
        for number in range(100):
            handler.wfile.write(f"X-{number}: y\r\n".encode())
            time.sleep(0.05)
    except OSError:
        pass


def later(handler: Handler) -> None:
    handler.send({"error": "busy"}, 429, {"Retry-After": "1000000"})


@pytest.mark.parametrize("answer", [drip, drip_head])
def test_an_answer_without_end_has_a_deadline(
    answer: Callable[[Handler], None], hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "SECONDS", 0.5)
    raw(monkeypatch, "api", answer)
    refused("has not answered within 0.5 seconds")


def test_a_wait_that_the_hub_asks_for_has_a_deadline(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "SECONDS", 0.5)
    raw(monkeypatch, "file", later)
    with pytest.raises(HubError, match="has not answered within"):
        inspection.inspect("acme/files:one.gguf")


def test_a_download_that_creeps_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = itertools.count(0.0, 5.0)  # between two chunks
    monkeypatch.setattr(bounds.time, "monotonic", lambda: next(seconds))
    chunks = [b"x" * 10] * 100
    taken: list[bytes] = []
    with pytest.raises(HubError, match="the hub sent only 130 bytes in 65 seconds"):
        taken.extend(bounds._bounded(iter(chunks), 1 << 30))
    assert len(taken) == 12
    assert sum(map(len, bounds._bounded(iter([b"x" * 10_000] * 100), 1 << 20))) == 1_000_000


def test_an_answer_within_a_deadline_has_no_pace_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two clocks would race: which sentence a user reads must not depend on the machine."""
    hours = itertools.count(0.0, 3600.0)
    monkeypatch.setattr(bounds.time, "monotonic", lambda: next(hours))
    over = threading.Event()
    body = bounds._bounded(iter([b"x"] * 100), 1 << 30, over)
    assert next(body) == b"x"
    over.set()
    with pytest.raises(HubError, match="the time for this answer is up"):
        next(body)


# --- places


@pytest.mark.parametrize("place", ["file:///etc/passwd", "ftp://127.0.0.1/x", "gopher:x", "data:application/json,{}"])
def test_a_redirect_to_another_scheme(place: str, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Handler, "api", lambda handler, *_: handler.send(None, 302, {"Location": place}))
    refused("leads from http to")


def test_a_redirect_that_gives_up_encryption() -> None:
    pytest.importorskip("huggingface_hub")
    with pytest.raises(HubError, match="leads from https to 'http:"):
        bounds._check_redirect("https://hub/a", "http://hub/a")
    for place in ("/api/models/x", "https://storage/x", "//storage/x"):
        bounds._check_redirect("https://hub/a", place)
    bounds._check_redirect("http://hub/a", "https://hub/a")


@pytest.mark.parametrize(
    "head", [{"X-Repo-Commit": "../../../evil"}, {"ETag": '"../../../evil"'}, {"ETag": "/tmp/evil"}, {"X-Linked-ETag": ".."}],
    ids=str,
)  # fmt: skip
def test_names_in_headers_lead_out_of_no_cache(
    head: dict[str, str], hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def resolve(handler: Handler, repo: str, rest: list[str], body: bool) -> None:
        known = {"X-Repo-Commit": hub.commit(repo), "ETag": f'"{sha1(b"e").hexdigest()}"', **head}
        handler.file(hub.repositories[repo] / rest[-1], body, known)

    monkeypatch.setattr(Handler, "resolve", resolve)
    before = names_below(tmp_path)
    for call in (inspection.inspect, local):
        with pytest.raises(HubError, match="sends the invalid"):
            call("acme/demo")
    assert names_below(tmp_path) == before
    assert not list(tmp_path.rglob("*evil*"))


# --- what it costs


START = b'{"sha": "' + COMMIT.encode() + b'", "siblings": ['
MANY = {
    "files": START + b'{"rfilename":"a"},' * 1_000_000 + b'{"rfilename":"a"}]}',
    "as many files as are taken": START + b",".join([b'{"rfilename":"abcdefgh"}'] * 140_000) + b"]}",
    "empty lists": START + b'], "x": [' + b"[]," * 2_000_000 + b"1]}",
}  # fmt: skip


@pytest.mark.parametrize("case", MANY)
def test_a_hostile_list_costs_little(case: str, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw(monkeypatch, "api", lambda handler: begin(handler, MANY[case]))
    for name, value in (("HF_ENDPOINT", hub.endpoint), ("HF_HUB_CACHE", str(tmp_path / "other")), ("HF_TOKEN", TOKEN)):
        monkeypatch.setenv(name, value)
    code, errors = bounded("inspect", "acme/demo")
    assert (code, errors.count("Error: "), "Traceback" in errors) == (1, 1, False), errors
    assert os.listdir(tmp_path / "cache" if (tmp_path / "cache").exists() else tmp_path)


def test_small_files_come_by_http_alone() -> None:
    """What hf_xet transfers would pass the hooks that bound an answer."""
    from huggingface_hub import constants

    before = constants.HF_HUB_DISABLE_XET
    assert bounds.within(1, lambda: constants.HF_HUB_DISABLE_XET) is True
    assert before is constants.HF_HUB_DISABLE_XET

"""Limits on the answers of a hub: size, speed, redirects and file names, checked before huggingface_hub reads them.

They use hooks of the HTTP client, which is httpx or requests, depending on the release of huggingface_hub.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, TypeVar
from urllib.parse import urljoin, urlsplit

from ropetool.errors import CorruptFile, HubError
from ropetool.files.json_types import LIST, OBJECT, JsonType, check_members, matching, optional, whole

Result = TypeVar("Result")

SECONDS = 60.0  # for one request, with all repetitions by huggingface_hub
GRACE = 60.0  # seconds of a download before its speed counts
SLOWEST = 1000  # bytes per second, the minimum speed of a longer download
ANSWER = 6 << 20  # bytes of a list of files, about 25,000 files
VALUES = 300_000  # in a list of files, because a Python object takes 30 times the bytes of an empty JSON list
LEAST = 64 << 10  # bytes of any other body, such as an error page
MAX_SIZE = 2**63 - 1
# A drive, a backslash, a zero byte, and a part of the path that is empty, "." or "..".
_OUTSIDE = re.compile(r"[\\\0]|^[A-Za-z]:|(?:^|/)\.{0,2}(?:/|\Z)")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_ETAG = re.compile(r'(W/)?"?[A-Za-z0-9_+=:.-]*[A-Za-z0-9_+=:-]"?')  # becomes the name of a file


def within(most: int, work: Callable[[], Result]) -> Result:
    """Return the result of `work`, which makes requests to the hub. It receives at most `most` bytes of a file.

    Raises: HubError if it takes longer than `SECONDS`, or if an answer breaks a limit; the errors of `work`.
    """
    done: list[Result] = []
    failed: list[BaseException] = []
    over = threading.Event()

    def run() -> None:
        try:
            with guarded(most, threading.get_ident(), over):
                done.append(work())
        except BaseException as error:  # noqa: BLE001  raised in the calling thread
            failed.append(error)

    # A thread, because endless headers and waits that the hub requests happen inside the HTTP library.
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(SECONDS)
    over.set()
    if failed:
        raise failed[0]
    if not done:
        raise HubError(
            f"the hub has not answered within {SECONDS:g} seconds", try_="try again later, or pass the path of a copy"
        )
    return done[0]


@contextmanager
def guarded(most: int, thread: int | None = None, over: threading.Event | None = None) -> Iterator[None]:
    """Apply the limits to every answer within the body, or only to one thread.

    most: the size limit of a file, in bytes.
    thread: the thread that requests small files. They come by HTTP, because transfers by hf_xet skip the hook.
    over: set when the time limit of all answers together is over. Without it, answers are downloads with a minimum
      speed.
    """
    from huggingface_hub import constants

    def check(response: Any, *_: Any, **__: Any) -> None:
        if thread in (None, threading.get_ident()):
            _check(response, most, over)

    without_xet = constants.HF_HUB_DISABLE_XET
    constants.HF_HUB_DISABLE_XET = without_xet or thread is not None
    try:
        with _hooked(check):
            yield
    finally:
        constants.HF_HUB_DISABLE_XET = without_xet


@contextmanager
def _hooked(check: Callable[..., None]) -> Iterator[None]:
    """Call `check` for every answer to huggingface_hub, and disable compression.

    A compressed answer has no known size.
    """
    from huggingface_hub import utils

    if hasattr(utils, "configure_http_backend"):  # before 1.0: this factory makes a session of requests for each thread
        http: Any = import_module("huggingface_hub.utils._http")
        factory = http._GLOBAL_BACKEND_FACTORY

        def hooked() -> Any:
            session = factory()
            session.hooks["response"].append(check)
            session.headers["accept-encoding"] = "identity"
            return session

        utils.configure_http_backend(hooked)
        try:
            yield
        finally:
            utils.configure_http_backend(factory)
        return
    session: Any = utils.get_session()
    coding = session.headers.get("accept-encoding")
    session.event_hooks["response"].append(check)
    session.headers["accept-encoding"] = "identity"
    try:
        yield
    finally:
        session.event_hooks["response"].remove(check)
        if coding is None:
            del session.headers["accept-encoding"]
        else:
            session.headers["accept-encoding"] = coding


def _check(response: Any, most: int, over: threading.Event | None) -> None:
    """Raise HubError for an invalid answer. Also limit the size of its body."""
    headers = response.headers
    url, place = str(response.url), headers.get("location")
    if place is not None:
        _check_redirect(url, place)
    if headers.get("content-encoding", "identity") not in ("", "identity"):
        raise _refusal("compresses an answer that must not be compressed")
    commit, etags = headers.get("x-repo-commit"), (headers.get("etag"), headers.get("x-linked-etag"))
    if commit is not None and not _COMMIT.fullmatch(commit):
        raise _refusal(f"sends the invalid commit {commit!r:.60}")
    for etag in etags:
        if etag is not None and not _ETAG.fullmatch(etag):
            raise _refusal(f"sends the invalid file version {etag!r:.60}")
    is_api = urlsplit(url).path.startswith("/api/")
    _bound(response, ANSWER if is_api else max(most, LEAST), over)
    if is_api and response.status_code == 200:
        body = response.content if hasattr(response, "raw") else response.read()
        problem = _problem(body)
        if problem:
            raise _refusal(problem)


def _check_redirect(url: str, place: str) -> None:
    begin, end = urlsplit(url).scheme, urlsplit(urljoin(url, place)).scheme
    if end not in ("https", begin) or end not in ("https", "http"):
        raise _refusal(f"leads from {begin} to {place!r:.60}")


def _refusal(problem: str) -> HubError:
    from huggingface_hub import constants

    return HubError(f"{constants.ENDPOINT} {problem}", try_="check HF_ENDPOINT")


# --- bodies


def _bound(response: Any, most: int, over: threading.Event | None) -> None:
    raw = getattr(response, "raw", None)
    if raw is not None:  # requests
        whole = raw.stream
        raw.stream = lambda *given, **named: _bounded(whole(*given, **named), most, over)
        return
    base: Any = import_module(type(response).__module__.partition(".")[0]).SyncByteStream
    inner = response.stream

    class Bounded(base):  # type: ignore[misc]
        """The body up to the limit."""

        def __iter__(self) -> Iterator[bytes]:
            yield from _bounded(inner, most, over)

        def close(self) -> None:
            inner.close()

    response.stream = Bounded()


def _bounded(chunks: Iterable[bytes], most: int, over: threading.Event | None = None) -> Iterator[bytes]:
    start, got = time.monotonic(), 0
    for chunk in chunks:
        got += len(chunk)
        if got > most:
            raise _refusal(f"sends more than the {most:,} requested bytes")
        if over is None:
            _check_pace(got, time.monotonic() - start)
        elif over.is_set():
            raise HubError("the time for this answer is up")  # ends the thread; `within` has already raised an error
        yield chunk


def _check_pace(got: int, took: float) -> None:
    if took > GRACE and got < SLOWEST * took:
        raise HubError(f"the hub sent only {got:,} bytes in {took:.0f} seconds", try_="try again later")


# --- lists of files


def _problem(body: bytes) -> str:
    """Return the fault of an API answer that describes a model or lists files, or an empty text."""
    if sum(map(body.count, (b",", b"[", b"{"))) > VALUES:
        return f"answers with more than {VALUES:,} values"
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError) as error:
        return f"sends invalid JSON ({type(error).__name__})"
    try:
        if isinstance(answer, dict) and "siblings" in answer:
            check_members(answer, {"sha": matching(_COMMIT, "a commit"), "siblings": LIST})
            answer = answer["siblings"]
        for number, entry in enumerate(answer if isinstance(answer, list) else ()):
            _check_file(entry, f"file {number}")
    except CorruptFile as error:
        return f"sends an invalid answer ({error.message})"
    return ""


_INSIDE = JsonType(
    "a path inside the repository", lambda value: isinstance(value, str) and _OUTSIDE.search(value) is None
)
_SIZE = {"size": optional(whole(0, MAX_SIZE))}


def _check_file(entry: Any, place: str) -> None:
    """Check an entry of a list of files. Raises: CorruptFile. place: the name of the entry in the error."""
    check_members(entry, {}, {**_SIZE, "lfs": optional(OBJECT)}, place)
    check_members(entry, {"rfilename" if "rfilename" in entry else "path": _INSIDE}, place=place)
    lfs = entry.get("lfs")
    if lfs is not None:
        digest = {"sha256" if "sha256" in lfs else "oid": matching(_SHA256, "a digest")}
        check_members(lfs, digest, _SIZE, f"lfs of {place}")

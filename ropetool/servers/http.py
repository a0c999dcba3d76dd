"""Requests to one server with JSON answers. Time and size are limited, and a busy server is asked again after a pause.

The API key comes from the environment, and is only sent with requests.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from threading import Thread, local
from typing import Any
from urllib.parse import urlsplit

import requests

from ropetool.errors import ConfigError, ServerError

OPTION = "--server"
KEY = "ROPETOOL_API_KEY"  # the variable of the environment
MOST_BYTES = 64 << 20  # of an answer
CONNECT = 10.0  # seconds
ATTEMPTS = 6
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0  # seconds before the second attempt, twice that before the third, and so on
_BUSY = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
_ABSENT = frozenset({404, 405, 501})
_HERE = frozenset({"localhost", "127.0.0.1", "::1", ""})
_QUOTED = 300  # characters of a server's message


@dataclass
class _Taken:
    """One answer while a thread receives it.

    response: the object to shut down when the time is over.
    text: the body.
    failed: the exception that ended the answer.
    """

    response: Any = None
    text: str = ""
    failed: BaseException | None = None


class Http:
    """One server, by its address without the path of an interface.

    timeout: the limit for a whole answer, from the request to its last byte, in seconds.
    Raises: ConfigError for an invalid address.
    """

    def __init__(self, url: str, *, timeout: float = 600.0) -> None:
        self.url = _address(url)
        self._timeout = timeout
        self._sessions = local()

    @property
    def notes(self) -> tuple[str, ...]:
        """Warnings about the connection."""
        parts = urlsplit(self.url)
        if parts.scheme == "https" or parts.hostname in _HERE:
            return ()
        return (
            f"{self.url} is on a different machine without TLS, so others can read and change the answers; use https if possible",
        )

    def get(self, path: str) -> Any:
        """Return the JSON answer of a path, or None if the server has no such path. Raises: ServerError."""
        return self._asked("GET", path, None)

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Return the JSON answer to a body, or None if the server has no such path. Raises: ServerError."""
        return self._asked("POST", path, body)

    def _asked(self, method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        pause, reason = FIRST_PAUSE, ""
        for attempt in range(ATTEMPTS):
            if attempt:
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
            try:
                status, headers, text = self._answer(method, path, body)
                if status in _ABSENT:
                    return None
                if status not in _BUSY:
                    return self._value(status, text, path)
                reason = f"{status}: {text[:_QUOTED]}"
                pause = max(pause, min(_seconds(headers.get("Retry-After")), LONGEST_PAUSE))
            except requests.exceptions.Timeout:
                reason = f"no answer within {self._timeout:g} seconds"
            except (requests.exceptions.ConnectionError, requests.exceptions.ChunkedEncodingError) as error:
                reason = _reason(error)
                if attempt == 1 and method == "GET":
                    break  # no server is there; during a run a server may come back
            except requests.exceptions.RequestException as error:
                raise ServerError(f"the request failed: {type(error).__name__}", where=f"{self.url}{path}") from None
        raise ServerError(
            f"no answer: {reason}",
            where=f"{self.url}{path}",
            try_="start the server, then repeat the command with --resume",
        )

    def _answer(self, method: str, path: str, body: Mapping[str, Any] | None) -> tuple[int, Mapping[str, str], str]:
        """Return status, headers and body of one answer.

        Raises: the errors of requests, Timeout if the whole takes longer.

        A thread receives it, because the HTTP library limits each wait for a byte, and not all of them together.
        """
        session, taken = self._session(), _Taken()

        def receive() -> None:
            try:
                with session.request(
                    method, f"{self.url}{path}", json=body, stream=True, timeout=(CONNECT, self._timeout),
                    allow_redirects=False,
                ) as answer:  # fmt: skip
                    taken.response = answer
                    taken.text = "" if answer.status_code in _ABSENT else self._text(answer)
            except BaseException as error:  # noqa: BLE001  the caller's thread raises it
                taken.failed = error

        thread = Thread(target=receive, daemon=True)
        thread.start()
        thread.join(self._timeout)
        if thread.is_alive():
            self._sessions.session = None  # the thread keeps the old one
            with suppress(Exception):  # from urllib3 2.3 on the thread ends with it; before, with the server's answer
                taken.response.raw.shutdown()
            raise requests.exceptions.Timeout
        if taken.failed is not None:
            raise taken.failed
        return taken.response.status_code, taken.response.headers, taken.text

    def _session(self) -> Any:
        """Return the session of this thread, because threads must not share a session."""
        session = getattr(self._sessions, "session", None)
        if session is None:
            session = self._sessions.session = requests.Session()
            session.trust_env = False  # no proxy and no password from the user's files
            key = os.environ.get(KEY, "").strip()
            if not (key.isascii() and key.isprintable()):
                raise ConfigError("contains characters that are not allowed in a key", where=KEY)
            if key:
                session.headers["Authorization"] = f"Bearer {key}"
        return session

    def _value(self, status: int, text: str, path: str) -> Any:
        where = f"{self.url}{path}"
        if status in (401, 403):
            raise ServerError(
                f"the server requires a key, or refuses this one ({status})",
                where=where,
                try_=f"{KEY}=... in the environment",
            )
        if status != 200:
            raise ServerError(f"the server refuses the request ({status}): {_sentence(text)}", where=where)
        try:
            return json.loads(text, parse_constant=_not_a_number)
        except (ValueError, RecursionError) as error:
            raise ServerError(f"the answer is not JSON: {error}", where=where) from None

    def _text(self, answer: Any) -> str:
        """Return the body of an answer. Raises: ServerError for a body that is larger than any requested one."""
        body = bytearray()
        for part in answer.iter_content(1 << 16):
            body += part
            if len(body) > MOST_BYTES:
                raise ServerError(f"the answer is larger than {MOST_BYTES >> 20} MB", where=self.url)
        return body.decode("utf-8", "replace")


def _address(url: str) -> str:
    """Return an address without the path of an interface at its end."""
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        known = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or True)
    except ValueError:
        known = False
    if not known:
        raise ConfigError(
            f"{url!r} is not the address of a server", where=OPTION, try_=f"{OPTION} http://localhost:8000"
        )
    if parts.username or parts.password:
        raise ConfigError(
            "an address must not contain a password, because records store the address",
            where=OPTION,
            try_=f"{KEY}=... in the environment",
        )
    path = parts.path.rstrip("/")
    return f"{parts.scheme}://{parts.netloc}{path.removesuffix('/v1')}"


def _sentence(text: str) -> str:
    """Return the message of an error answer, in any of the forms that servers use."""
    try:
        part = json.loads(text)
    except (ValueError, RecursionError):
        part = text
    for key in ("error", "message", "detail"):
        if isinstance(part, dict) and key in part:
            part = part[key]
    return " ".join(str(part).split())[:_QUOTED] or "without a reason"


def _seconds(header: str | None) -> float:
    try:
        return max(0.0, float(header or 0))
    except ValueError:
        return 0.0


def _reason(error: Exception) -> str:
    """Return the innermost reason of a failed request, as the system reports it."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    return " ".join(str(error).split())[:_QUOTED]


def _not_a_number(word: str) -> float:
    raise ValueError(f"{word} is not a number")

"""Servers that exchange text in place of ids: Ollama, and the OpenAI-like servers of llama-cpp-python and others.

ropetool sends a prompt as text, and checks that the server read the same number of tokens. The checkpoint's vocabulary
gives the ids of an answer. Source: `docs/api.md` of Ollama and `llama_cpp/server` of llama-cpp-python 0.3.36.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ropetool.errors import ServerError
from ropetool.servers.base import (
    MOST_SHOWN,
    NO_LOG_PROBABILITIES,
    NOTHING,
    Answer,
    Score,
    ServerLimits,
    answer_of,
    listed,
    named,
    positive,
    within,
)
from ropetool.servers.http import OPTION, Http

GENERATE, COMPLETIONS = "/api/generate", "/v1/completions"


class TokenText(Protocol):
    """The text of ids, by the checkpoint's tokenizer. prefix: the ids that a server puts before every text."""

    @property
    def prefix(self) -> tuple[int, ...]: ...

    def text_of(self, ids: Sequence[int]) -> str | None:
        """Return a text that the tokenizer turns into these ids, or None if there is no such text."""

    def ids_of(self, word: str) -> tuple[int, ...]:
        """Return the ids whose text is this word."""


class TextServer:
    """The conversion from ids to text and back, which both servers share."""

    program: str
    model: str
    limits: ServerLimits

    def __init__(self, http: Http, path: str) -> None:
        self._http, self._where = http, f"{http.url}{path}"
        self.words: TokenText | None = None

    def tokens_of(self, text: str) -> list[int] | None:
        """Return None, because there is no such interface."""
        return None

    def scores(self, ids: Sequence[int], last: int) -> list[Score] | None:
        """Return None, because there is no such interface."""
        return None

    def next(self, ids: Sequence[int], requested: int | None = None, /) -> Answer:
        """Return the log probabilities of the likeliest tokens after a prompt. Raises: ServerError.

        requested: has no effect.
        """
        words = self._words()
        begun = len(words.prefix) if tuple(ids[: len(words.prefix)]) == words.prefix else 0
        text = words.text_of(ids[begun:])
        if text is None:
            return NOTHING  # the tokenizer turns no text into these ids
        read, shown = self._asked(text)
        if read != len(ids):
            raise ServerError(
                f"the server read {read} tokens, but the prompt has {len(ids)}; it uses a different tokenizer or a template",
                where=self._where,
            )
        # If several tokens have this text, the id is unknown.
        known = [(ids, number) for word, number in shown for ids in (words.ids_of(word),)]
        pairs = [(ids[0], number) for ids, number in known if len(ids) == 1]
        unnamed = [number for ids, number in known if len(ids) != 1]
        return answer_of(pairs, len(pairs), self._where, unnamed)

    def _words(self) -> TokenText:
        if self.words is None:
            raise ServerError(
                "the server accepts only text, so ropetool needs the tokenizer", where=OPTION, try_="--tokenizer DIR"
            )
        return self.words

    def _asked(self, text: str) -> tuple[Any, list[tuple[str, Any]]]:
        """Return the number of tokens that the server read, and the shown words with their log probabilities."""
        raise NotImplementedError


class OllamaServer(TextServer):
    """Ollama 0.12.11 and later, which return log probabilities."""

    def __init__(self, http: Http, version: str, model: str, context: int | None) -> None:
        super().__init__(http, GENERATE)
        self.program, self.model = f"Ollama {version}", model
        self.limits = ServerLimits(context, MOST_SHOWN, exact=False)

    def _asked(self, text: str) -> tuple[Any, list[tuple[str, Any]]]:
        options = {
            "num_predict": 1,
            "temperature": 0,
            **({"num_ctx": self.limits.context} if self.limits.context else {}),
        }
        body = {
            "model": self.model, "prompt": text, "raw": True, "stream": False, "options": options,
            "logprobs": True, "top_logprobs": self.limits.shown,
        }  # fmt: skip
        answered = self._http.post(GENERATE, body)
        if isinstance(answered, dict) and not answered.get("logprobs"):
            raise ServerError(NO_LOG_PROBABILITIES, where=self._where, try_="Ollama 0.12.11 or later")
        drawn = within(answered, "logprobs", 0, where=self._where)
        entries = listed(drawn, "top_logprobs", where=self._where)
        pairs = [
            (str(within(one, "token", where=self._where)), within(one, "logprob", where=self._where)) for one in entries
        ]
        return within(answered, "prompt_eval_count", where=self._where), pairs


class OpenAiServer(TextServer):
    """Any other server with the completions interface, such as llama-cpp-python's."""

    def __init__(self, http: Http, model: str, context: int | None) -> None:
        super().__init__(http, COMPLETIONS)
        self.program, self.model = "a server of OpenAI's interface", model
        self.limits = ServerLimits(context, MOST_SHOWN, exact=False)

    def _asked(self, text: str) -> tuple[Any, list[tuple[str, Any]]]:
        body = {"model": self.model, "prompt": text, "max_tokens": 1, "temperature": 0, "logprobs": self.limits.shown}
        answered = self._http.post(COMPLETIONS, body)
        shown = within(answered, "choices", 0, "logprobs", where=self._where)
        if not shown:
            raise ServerError(
                NO_LOG_PROBABILITIES, where=self._where,
                try_="llama-cpp-python's server with --logits_all true",
            )  # fmt: skip
        return (
            within(answered, "usage", "prompt_tokens", where=self._where),
            list(named(shown, "top_logprobs", 0, where=self._where).items()),
        )


def context_of(card: Mapping[str, Any]) -> int | None:
    """Return the context length in a model's card, under any of its usual names, or None."""
    return next(
        (size for key in ("max_model_len", "context_length", "n_ctx") if (size := positive(card.get(key)))), None
    )

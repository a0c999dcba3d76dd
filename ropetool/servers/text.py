"""Servers whose interfaces take and give text in place of ids: Ollama's, and the OpenAI-like one of llama-cpp-python and others.

A prompt goes as text only where the server says that it read as many tokens as it has, and an answer's words become ids by
the checkpoint's own vocabulary. Source: ollama's docs/api.md and llama_cpp/server of llama-cpp-python 0.3.36.
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
    Limits,
    Score,
    answer_of,
    listed,
    named,
    whole,
    within,
)
from ropetool.servers.http import OPTION, Http

GENERATE, COMPLETIONS = "/api/generate", "/v1/completions"


class Words(Protocol):
    """The text of ids, by the checkpoint's own tokenizer. prefix: the ids that a server puts in front of every text."""

    @property
    def prefix(self) -> tuple[int, ...]: ...

    def text_of(self, ids: Sequence[int]) -> str | None:
        """Return the text that is read as these ids, None where none is."""

    def ids_of(self, word: str) -> tuple[int, ...]:
        """Return the ids that are written so."""


class TextServer:
    """What both kinds share: from ids to text and back."""

    program: str
    model: str
    limits: Limits

    def __init__(self, http: Http, path: str) -> None:
        self._http, self._where = http, f"{http.url}{path}"
        self.words: Words | None = None

    def tokens_of(self, text: str) -> list[int] | None:
        """Return None: there is no interface for it."""
        return None

    def scores(self, ids: Sequence[int], last: int) -> list[Score] | None:
        """Return None: there is no interface for it."""
        return None

    def next(self, ids: Sequence[int], wanted: int | None = None) -> Answer:
        """Return what may come after a prompt, among the tokens that the server shows."""
        words = self._words()
        begun = len(words.prefix) if tuple(ids[: len(words.prefix)]) == words.prefix else 0
        text = words.text_of(ids[begun:])
        if text is None:
            return NOTHING  # no text is read as these ids
        read, shown = self._asked(text)
        if read != len(ids):
            raise ServerError(
                f"the server read {read} tokens, but the prompt has {len(ids)}; it uses a different tokenizer or a template",
                where=self._where,
            )
        # A word that several tokens are written as names none of them.
        known = [(ids, number) for word, number in shown for ids in (words.ids_of(word),)]
        pairs = [(ids[0], number) for ids, number in known if len(ids) == 1]
        unnamed = [number for ids, number in known if len(ids) != 1]
        return answer_of(pairs, len(pairs), self._where, unnamed)

    def _words(self) -> Words:
        if self.words is None:
            raise ServerError(
                "the server accepts only text, so ropetool needs the tokenizer", where=OPTION, try_="--tokenizer DIR"
            )
        return self.words

    def _asked(self, text: str) -> tuple[Any, list[tuple[str, Any]]]:
        """Return how many tokens the server has read, and the words that it shows with their log probabilities."""
        raise NotImplementedError


class OllamaServer(TextServer):
    """Ollama 0.12.11 and later, which tell log probabilities."""

    def __init__(self, http: Http, version: str, model: str, context: int | None) -> None:
        super().__init__(http, GENERATE)
        self.program, self.model = f"Ollama {version}", model
        self.limits = Limits(context, MOST_SHOWN, exact=False)

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
        found = self._http.post(GENERATE, body)
        if isinstance(found, dict) and not found.get("logprobs"):
            raise ServerError(NO_LOG_PROBABILITIES, where=self._where, try_="Ollama 0.12.11 or later")
        drawn = within(found, "logprobs", 0, where=self._where)
        entries = listed(drawn, "top_logprobs", where=self._where)
        pairs = [
            (str(within(one, "token", where=self._where)), within(one, "logprob", where=self._where)) for one in entries
        ]
        return within(found, "prompt_eval_count", where=self._where), pairs


class OpenAiServer(TextServer):
    """A server of the completions interface that says no more of itself, such as llama-cpp-python's."""

    def __init__(self, http: Http, model: str, context: int | None) -> None:
        super().__init__(http, COMPLETIONS)
        self.program, self.model = "a server of OpenAI's interface", model
        self.limits = Limits(context, MOST_SHOWN, exact=False)

    def _asked(self, text: str) -> tuple[Any, list[tuple[str, Any]]]:
        body = {"model": self.model, "prompt": text, "max_tokens": 1, "temperature": 0, "logprobs": self.limits.shown}
        found = self._http.post(COMPLETIONS, body)
        shown = within(found, "choices", 0, "logprobs", where=self._where)
        if not shown:
            raise ServerError(
                NO_LOG_PROBABILITIES, where=self._where,
                try_="llama-cpp-python's server with --logits_all true",
            )  # fmt: skip
        return (
            within(found, "usage", "prompt_tokens", where=self._where),
            list(named(shown, "top_logprobs", 0, where=self._where).items()),
        )


def context_of(card: Mapping[str, Any]) -> int | None:
    """Return the context that a model's card states under any of the names in use."""
    return next((size for key in ("max_model_len", "context_length", "n_ctx") if (size := whole(card.get(key)))), None)

"""vLLM's server. Source: vllm 0.32.0, entrypoints/openai/completion/protocol.py and serving.py; asked for real."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ropetool.errors import ServerError
from ropetool.servers.base import (
    MOST_SHOWN,
    Answer,
    Limits,
    Score,
    answer_of,
    left_out,
    listed,
    log_probability,
    named,
    not_one_score_each,
    tokenized,
    whole,
    within,
)
from ropetool.servers.http import Http

COMPLETIONS = "/v1/completions"
FEWER = 5  # of OpenAI's own interface
MOST_DIGITS = 10
_TOKEN_ID = "token_id:"  # how it calls a token where it is asked for ids


class VllmServer:
    """A server of vLLM. Log probabilities are those of the model, before any sampling (its `raw_logprobs`)."""

    def __init__(self, http: Http, version: str, card: Mapping[str, Any]) -> None:
        self._http, self._where = http, f"{http.url}{COMPLETIONS}"
        self.program, self.model = f"vLLM {version}", str(card.get("id"))
        self.limits = Limits(whole(card.get("max_model_len")), MOST_SHOWN, exact=True)

    def next(self, ids: Sequence[int], wanted: int | None = None) -> Answer:
        """Return what may come after a prompt: a wanted token is the only one that may be drawn, so that it is told."""
        drawn = {} if wanted is None else {"allowed_token_ids": [int(wanted)]}
        found = self._with_as_many(ids, {"return_tokens_as_token_ids": True, **drawn})
        shown = named(found, "choices", 0, "logprobs", "top_logprobs", 0, where=self._where)
        pairs = [(_id(name), number) for name, number in shown.items()]
        answer = answer_of(pairs, self.limits.shown, self._where)
        if wanted is not None and wanted not in answer.shown:
            raise ServerError(left_out(wanted), where=self._where)
        return answer

    def tokens_of(self, text: str) -> list[int] | None:
        """Return the ids of a text, without special ones."""
        return tokenized(self._http, {"model": self.model, "prompt": text, "add_special_tokens": False})

    def scores(self, ids: Sequence[int], last: int) -> list[Score] | None:
        """Return what the last tokens are to the model, asked with a salt, so that no cache answers for it.

        `prompt_logprobs` are those of all tokens: vLLM has none of a part (v1/worker/gpu_model_runner.py).
        """
        found = self._asked(ids, {"prompt_logprobs": 1, "cache_salt": uuid.uuid4().hex})
        entries = listed(found, "choices", 0, "prompt_logprobs", where=self._where)
        if len(entries) != len(ids):
            raise ServerError(not_one_score_each(len(ids)), where=self._where)
        scores = []
        for entry, token in zip(entries[-last:], ids[-last:], strict=True):
            number = log_probability(within(entry, str(token), "logprob", where=self._where), self._where)
            others = (within(entry, one, "logprob", where=self._where) for one in named(entry, where=self._where))
            scores.append((number, number >= max(log_probability(other, self._where) for other in others)))
        return scores

    def _with_as_many(self, ids: Sequence[int], more: dict[str, Any]) -> Any:
        """Return the answer with as many tokens as the server gives: it was started with --max-logprobs."""
        while True:
            try:
                return self._asked(ids, {"logprobs": self.limits.shown, **more})
            except ServerError as error:
                if "logprobs" not in error.message or self.limits.shown == 1:
                    raise
                self.limits = replace(self.limits, shown=FEWER if self.limits.shown > FEWER else 1)

    def _asked(self, ids: Sequence[int], more: dict[str, Any]) -> Any:
        body = {"model": self.model, "prompt": [int(token) for token in ids], "max_tokens": 1, "temperature": 0, **more}
        found = self._http.post(COMPLETIONS, body)
        if found is None:
            raise ServerError(
                "the server does not complete prompts", where=self._where, try_="serve a text model without --task"
            )
        return found


def _id(name: Any) -> Any:
    """Return the id in the name of a token; the name itself where it is none."""
    digits = str(name).removeprefix(_TOKEN_ID)
    is_id = str(name).startswith(_TOKEN_ID) and digits.isascii() and digits.isdigit() and len(digits) <= MOST_DIGITS
    return int(digits) if is_id else name

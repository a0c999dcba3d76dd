"""vLLM's server.

Source: `entrypoints/openai/completion/protocol.py` and `entrypoints/openai/completion/serving.py` of vllm 0.32.0, and
real answers.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ropetool.errors import ServerError
from ropetool.servers.base import (
    MOST_SHOWN,
    Answer,
    Score,
    ServerLimits,
    answer_of,
    listed,
    log_probability,
    named,
    not_one_score_each,
    positive,
    tokenized,
    within,
)
from ropetool.servers.http import Http

COMPLETIONS = "/v1/completions"
FEWER = 5  # tokens of an answer in OpenAI's own interface
MOST_DIGITS = 10
_TOKEN_ID = "token_id:"  # the prefix of a token's name if a request asks for ids


class VllmServer:
    """A server of vLLM. It returns log probabilities of the model before any sampling (`raw_logprobs`)."""

    def __init__(self, http: Http, version: str, card: Mapping[str, Any]) -> None:
        self._http, self._where = http, f"{http.url}{COMPLETIONS}"
        self.program, self.model = f"vLLM {version}", str(card.get("id"))
        self.limits = ServerLimits(positive(card.get("max_model_len")), MOST_SHOWN, exact=True)

    def next(self, ids: Sequence[int], requested: int | None = None, /) -> Answer:
        """Return the log probabilities of the tokens after a prompt. The server can only sample the requested token.

        Raises: ServerError.
        """
        drawn = {} if requested is None else {"allowed_token_ids": [int(requested)]}
        answered = self._with_as_many(ids, {"return_tokens_as_token_ids": True, **drawn})
        shown = named(answered, "choices", 0, "logprobs", "top_logprobs", 0, where=self._where)
        pairs = [(_id(name), number) for name, number in shown.items()]
        return answer_of(pairs, self.limits.shown, self._where, requested=requested)

    def tokens_of(self, text: str) -> list[int] | None:
        """Return the ids of a text, without special tokens."""
        return tokenized(self._http, {"model": self.model, "prompt": text, "add_special_tokens": False})

    def scores(self, ids: Sequence[int], last: int) -> list[Score] | None:
        """Return the scores of the last tokens of a prompt. Raises: ServerError.

        A salt keeps the cache out of the answer. `prompt_logprobs` covers all tokens, because vLLM cannot limit it to
        some (v1/worker/gpu_model_runner.py).
        """
        answered = self._asked(ids, {"prompt_logprobs": 1, "cache_salt": uuid.uuid4().hex})
        entries = listed(answered, "choices", 0, "prompt_logprobs", where=self._where)
        if len(entries) != len(ids):
            raise ServerError(not_one_score_each(len(ids)), where=self._where)
        scores = []
        for entry, token in zip(entries[-last:], ids[-last:], strict=True):
            number = log_probability(within(entry, str(token), "logprob", where=self._where), self._where)
            others = (within(entry, one, "logprob", where=self._where) for one in named(entry, where=self._where))
            scores.append((number, number >= max(log_probability(other, self._where) for other in others)))
        return scores

    def _with_as_many(self, ids: Sequence[int], more: dict[str, Any]) -> Any:
        """Return the answer with the most tokens that the server allows, which --max-logprobs sets."""
        while True:
            try:
                return self._asked(ids, {"logprobs": self.limits.shown, **more})
            except ServerError as error:
                if "logprobs" not in error.message or self.limits.shown == 1:
                    raise
                self.limits = replace(self.limits, shown=FEWER if self.limits.shown > FEWER else 1)

    def _asked(self, ids: Sequence[int], more: dict[str, Any]) -> Any:
        body = {"model": self.model, "prompt": [int(token) for token in ids], "max_tokens": 1, "temperature": 0, **more}
        answered = self._http.post(COMPLETIONS, body)
        if answered is None:
            raise ServerError(
                "the server does not complete prompts", where=self._where, try_="serve a text model without --task"
            )
        return answered


def _id(name: Any) -> Any:
    """Return the id in the name of a token, or the name itself if it contains no id."""
    digits = str(name).removeprefix(_TOKEN_ID)
    is_id = str(name).startswith(_TOKEN_ID) and digits.isascii() and digits.isdigit() and len(digits) <= MOST_DIGITS
    return int(digits) if is_id else name

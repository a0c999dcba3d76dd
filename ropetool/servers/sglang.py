"""SGLang's server. Source: `srt/entrypoints/http_server.py` and `managers/tokenizer_manager.py` of sglang 0.5.23."""

from __future__ import annotations

from collections.abc import Sequence
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
    not_one_score_each,
    positive,
    tokenized,
    within,
)
from ropetool.servers.http import Http

GENERATE = "/generate"
MOST_SCORED = 1024  # tokens whose scores a request asks for, because the server keeps only the logits of these


class SglangServer:
    """A server of SGLang."""

    def __init__(self, http: Http, model: str, facts: dict[str, Any]) -> None:
        self._http, self._where = http, f"{http.url}{GENERATE}"
        self.program, self.model = f"SGLang {facts.get('version', '')}".strip(), model
        sizes = [positive(facts.get(key)) for key in ("context_length", "max_req_input_len", "max_total_num_tokens")]
        self.limits = ServerLimits(
            min((one for one in sizes if one is not None), default=None), MOST_SHOWN, exact=True, scored=MOST_SCORED
        )

    def next(self, ids: Sequence[int], requested: int | None = None, /) -> Answer:
        """Return the log probabilities of the tokens after a prompt, with the requested token (`token_ids_logprob`).

        Raises: ServerError.
        """
        more = {} if requested is None else {"token_ids_logprob": [int(requested)]}
        answered = self._asked(ids, {"top_logprobs_num": self.limits.shown, **more})
        entries = listed(answered, "output_top_logprobs", 0, where=self._where)
        if requested is not None:
            entries = [*entries, *listed(answered, "output_token_ids_logprobs", 0, where=self._where)]
        pairs = [(within(one, 1, where=self._where), within(one, 0, where=self._where)) for one in entries]
        return answer_of(pairs, self.limits.shown, self._where, requested=requested)

    def tokens_of(self, text: str) -> list[int] | None:
        """Return the ids of a text, without special tokens, or None if this release has no such interface."""
        return tokenized(self._http, {"model": self.model, "prompt": text, "add_special_tokens": False})

    def scores(self, ids: Sequence[int], last: int) -> list[Score] | None:
        """Return the scores of the last tokens of a prompt. Raises: ServerError.

        The answer also has an entry without a score, for the token before them.
        """
        answered = self._asked(ids, {"logprob_start_len": len(ids) - last - 1, "top_logprobs_num": 1})
        entries, tops = (
            listed(answered, key, where=self._where) for key in ("input_token_logprobs", "input_top_logprobs")
        )
        if [within(one, 1, where=self._where) for one in entries] != list(ids[-last - 1 :]) or len(tops) != last + 1:
            raise ServerError(not_one_score_each(last), where=self._where)
        return [
            (log_probability(one[0], self._where), within(top, 0, 1, where=self._where) == one[1])
            for one, top in zip(entries[1:], tops[1:], strict=True)
        ]

    def _asked(self, ids: Sequence[int], more: dict[str, Any]) -> Any:
        body = {
            "input_ids": [int(token) for token in ids], "return_logprob": True,
            "sampling_params": {"max_new_tokens": 1, "temperature": 0}, **more,
        }  # fmt: skip
        return within(self._http.post(GENERATE, body), "meta_info", where=self._where)

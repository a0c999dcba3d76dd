"""SGLang's server. Source: sglang 0.5.23, srt/entrypoints/http_server.py and managers/tokenizer_manager.py."""

from __future__ import annotations

from collections.abc import Sequence
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
    not_one_score_each,
    tokenized,
    whole,
    within,
)
from ropetool.servers.http import Http

GENERATE = "/generate"
MOST_SCORED = 1024  # tokens whose scores a request asks for: it keeps the logits of these alone


class SglangServer:
    """A server of SGLang."""

    def __init__(self, http: Http, model: str, stated: dict[str, Any]) -> None:
        self._http, self._where = http, f"{http.url}{GENERATE}"
        self.program, self.model = f"SGLang {stated.get('version', '')}".strip(), model
        sizes = [whole(stated.get(key)) for key in ("context_length", "max_req_input_len", "max_total_num_tokens")]
        self.limits = Limits(
            min((one for one in sizes if one is not None), default=None), MOST_SHOWN, exact=True, scored=MOST_SCORED
        )

    def next(self, ids: Sequence[int], wanted: int | None = None) -> Answer:
        """Return what may come after a prompt; the wanted token has an interface of its own."""
        more = {} if wanted is None else {"token_ids_logprob": [int(wanted)]}
        said = self._asked(ids, {"top_logprobs_num": self.limits.shown, **more})
        entries = listed(said, "output_top_logprobs", 0, where=self._where)
        if wanted is not None:
            entries = [*entries, *listed(said, "output_token_ids_logprobs", 0, where=self._where)]
        pairs = [(within(one, 1, where=self._where), within(one, 0, where=self._where)) for one in entries]
        answer = answer_of(pairs, self.limits.shown, self._where)
        if wanted is not None and wanted not in answer.shown:
            raise ServerError(left_out(wanted), where=self._where)
        return answer

    def tokens_of(self, text: str) -> list[int] | None:
        """Return the ids of a text, without special ones, where this release has an interface for it."""
        return tokenized(self._http, {"model": self.model, "prompt": text, "add_special_tokens": False})

    def scores(self, ids: Sequence[int], last: int) -> list[Score] | None:
        """Return what the last tokens are to the model; of the one before them an entry without a score comes too."""
        said = self._asked(ids, {"logprob_start_len": len(ids) - last - 1, "top_logprobs_num": 1})
        entries, tops = (listed(said, key, where=self._where) for key in ("input_token_logprobs", "input_top_logprobs"))
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

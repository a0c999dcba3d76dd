"""SGLang's server. Source: sglang 0.5.23, srt/entrypoints/http_server.py and managers/tokenizer_manager.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ropetool.errors import ServerError
from ropetool.servers.base import MOST_SHOWN, Answer, Limits, answer_of, whole, within
from ropetool.servers.http import Http

GENERATE = "/generate"


class SglangServer:
    """A server of SGLang."""

    def __init__(self, http: Http, model: str, stated: dict[str, Any]) -> None:
        self._http, self._where = http, f"{http.url}{GENERATE}"
        self.program, self.model = f"SGLang {stated.get('version', '')}".strip(), model
        sizes = [whole(stated.get(key)) for key in ("context_length", "max_req_input_len", "max_total_num_tokens")]
        self.limits = Limits(min((one for one in sizes if one is not None), default=None), MOST_SHOWN, exact=True)

    def next(self, ids: Sequence[int], wanted: int | None = None) -> Answer:
        """Return what may come after a prompt; the wanted token has an interface of its own."""
        more = {} if wanted is None else {"token_ids_logprob": [int(wanted)]}
        said = self._asked(ids, {"top_logprobs_num": self.limits.shown, **more})
        entries = list(within(said, "output_top_logprobs", 0, where=self._where))
        if wanted is not None:
            entries += within(said, "output_token_ids_logprobs", 0, where=self._where)
        pairs = [(within(one, 1, where=self._where), within(one, 0, where=self._where)) for one in entries]
        return answer_of(pairs, self.limits.shown, self._where)

    def tokens_of(self, text: str) -> list[int] | None:
        """Return the ids of a text, without special ones, where this release has an interface for it."""
        found = self._http.post("/tokenize", {"model": self.model, "prompt": text, "add_special_tokens": False})
        return (
            None
            if found is None
            else [int(token) for token in within(found, "tokens", where=f"{self._http.url}/tokenize")]
        )

    def scores(self, ids: Sequence[int]) -> list[float] | None:
        """Return the log probability of each token but the first."""
        listed = within(self._asked(ids, {"logprob_start_len": 0}), "input_token_logprobs", where=self._where)
        if not isinstance(listed, list) or [within(one, 1, where=self._where) for one in listed] != list(ids):
            raise ServerError(f"its answer has not one score for each of {len(ids)} tokens", where=self._where)
        return [answer_of([(0, one[0])], 1, self._where).shown[0] for one in listed[1:]]

    def _asked(self, ids: Sequence[int], more: dict[str, Any]) -> Any:
        body = {
            "input_ids": [int(token) for token in ids], "return_logprob": True,
            "sampling_params": {"max_new_tokens": 1, "temperature": 0}, **more,
        }  # fmt: skip
        return within(self._http.post(GENERATE, body), "meta_info", where=self._where)

"""vLLM's server. Source: vllm 0.32.0, entrypoints/openai/completion/protocol.py and serving.py; asked for real."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from ropetool.errors import ServerError
from ropetool.servers.base import MOST_SHOWN, Answer, Limits, answer_of, whole, within
from ropetool.servers.http import Http

COMPLETIONS = "/v1/completions"
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
        found = self._asked(ids, {"logprobs": self.limits.shown, "return_tokens_as_token_ids": True, **drawn})
        shown = within(found, "choices", 0, "logprobs", "top_logprobs", 0, where=self._where)
        pairs = [(_id(name), number) for name, number in dict(shown or {}).items()]
        answer = answer_of(pairs, self.limits.shown, self._where)
        if wanted is not None and wanted not in answer.shown:
            raise ServerError(
                f"its answer leaves out token {wanted}, which was the only one allowed", where=self._where
            )
        return answer

    def tokens_of(self, text: str) -> list[int] | None:
        """Return the ids of a text, without special ones."""
        found = self._http.post("/tokenize", {"model": self.model, "prompt": text, "add_special_tokens": False})
        return (
            None
            if found is None
            else [int(token) for token in within(found, "tokens", where=f"{self._http.url}/tokenize")]
        )

    def scores(self, ids: Sequence[int]) -> list[float] | None:
        """Return the log probability of each token but the first, with a salt, so that no cache answers for the model."""
        found = self._asked(ids, {"prompt_logprobs": 0, "cache_salt": uuid.uuid4().hex})
        listed = within(found, "choices", 0, "prompt_logprobs", where=self._where)
        if not isinstance(listed, list) or len(listed) != len(ids):
            raise ServerError(f"its answer has not one score for each of {len(ids)} tokens", where=self._where)
        numbers = [
            within(one, str(token), "logprob", where=self._where)
            for one, token in zip(listed[1:], ids[1:], strict=True)
        ]
        return [answer_of([(0, number)], 1, self._where).shown[0] for number in numbers]

    def _asked(self, ids: Sequence[int], more: dict[str, Any]) -> Any:
        body = {"model": self.model, "prompt": [int(token) for token in ids], "max_tokens": 1, "temperature": 0, **more}
        found = self._http.post(COMPLETIONS, body)
        if found is None:
            raise ServerError(
                "it completes no prompts", where=self._where, try_="a model of text, served without --task"
            )
        return found


def _id(name: Any) -> Any:
    """Return the id in the name of a token; the name itself where it is none."""
    digits = str(name).removeprefix(_TOKEN_ID)
    return int(digits) if str(name).startswith(_TOKEN_ID) and digits.isascii() and digits.isdigit() else name

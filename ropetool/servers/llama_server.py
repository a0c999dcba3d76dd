"""llama.cpp's llama-server.

Source: tools/server/server-context.cpp of llama-cpp-python 0.3.36, and answers of a real server.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ropetool.errors import ServerError
from ropetool.servers.base import (
    NO_LOG_PROBABILITIES,
    Answer,
    Score,
    ServerLimits,
    answer_of,
    left_out,
    listed,
    positive,
    tokenized,
    within,
)
from ropetool.servers.http import Http

COMPLETION = "/completion"
SHOWN = 64  # tokens of an answer; the server accepts any number
MORE = 16  # the factor on SHOWN for a token that cannot be sampled
MOST_SHOWN = 1 << 20  # more tokens than any vocabulary has
BIAS = 1e6  # on the logit of a token, so that it is sampled; the answer has the probabilities without the bias
DRAWN = "a"  # a text whose last token has whole characters: there are no probabilities if a token ends within one


class LlamaServer:
    """A llama-server. It returns probabilities of the model before any sampling (no `post_sampling_probs`)."""

    def __init__(self, http: Http, properties: dict[str, Any]) -> None:
        self._http, self._where = http, f"{http.url}{COMPLETION}"
        self.program = " ".join(("llama-server", str(properties.get("build_info") or ""))).strip()
        self.model = str(properties.get("model_path") or properties.get("model_alias") or "")
        settings = properties.get("default_generation_settings")
        context = settings.get("n_ctx") if isinstance(settings, dict) else None
        # The slots share the cells of one cache, and each keeps the prefix of its own last prompt. One request at a
        # time never runs out of cells, and reads no prefix again. The server reports a prompt as truncated if only the
        # answer fits after it.
        self.limits = ServerLimits(positive(context), SHOWN, exact=True, at_once=1, room=2)
        self._drawable: int | None = None

    def next(self, ids: Sequence[int], requested: int | None = None, /) -> Answer:
        """Return the log probabilities of the tokens after a prompt.

        A bias makes the server sample the requested token.

        If the sampled token ends within a character, the answer has no probabilities (process_token). The next request
        then samples another token, and shows more of the likeliest tokens, until the requested one is among them.
        Raises: ServerError.
        """
        drawn, shown = requested, SHOWN
        while True:
            answered = self._asked(ids, drawn, shown)
            if "completion_probabilities" in answered:
                sampled = within(answered, "completion_probabilities", 0, where=self._where)
                entries = [*listed(sampled, "top_logprobs", where=self._where), *([] if drawn is None else [sampled])]
                pairs = [tuple(within(one, key, where=self._where) for key in ("id", "logprob")) for one in entries]
                answer = answer_of(pairs, shown, self._where)
                if requested is None or requested in answer.shown:
                    return answer
                if drawn == requested or len(pairs) < shown or shown >= MOST_SHOWN:
                    raise ServerError(left_out(requested), where=self._where)
                shown *= MORE
            elif drawn is not None and drawn == self._drawable:
                raise ServerError(NO_LOG_PROBABILITIES, where=self._where)
            else:
                drawn = self._whole_characters()

    def _asked(self, ids: Sequence[int], drawn: int | None, shown: int) -> Any:
        body = {
            "prompt": [int(token) for token in ids], "n_predict": 1, "n_probs": shown, "temperature": 0,
            "cache_prompt": True, "logit_bias": [] if drawn is None else [[int(drawn), BIAS]],
        }  # fmt: skip
        answered = self._http.post(COMPLETION, body)
        read = within(answered, "tokens_evaluated", where=self._where)
        if within(answered, "truncated", where=self._where) or read != len(ids):
            raise ServerError(f"the server did not read exactly the {len(ids)} tokens of the prompt", where=self._where)
        return answered

    def _whole_characters(self) -> int:
        """Return a token that can be sampled with probabilities."""
        if self._drawable is None:
            read = self.tokens_of(DRAWN)
            if not read:
                raise ServerError("the server returns neither probabilities nor tokens of a text", where=self._where)
            self._drawable = read[-1]
        return self._drawable

    def tokens_of(self, text: str) -> list[int] | None:
        """Return the ids of a text, without special tokens."""
        return tokenized(self._http, {"content": text, "add_special": False, "parse_special": False})

    def scores(self, ids: Sequence[int], last: int) -> list[Score] | None:
        """Return None, because the server has no probabilities of prompt tokens (llama.cpp#27174)."""
        return None

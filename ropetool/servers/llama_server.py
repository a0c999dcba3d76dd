"""llama.cpp's llama-server. Source: tools/server/server-context.cpp of llama-cpp-python 0.3.36; asked for real."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ropetool.errors import ServerError
from ropetool.servers.base import (
    NO_LOG_PROBABILITIES,
    Answer,
    Limits,
    Score,
    answer_of,
    left_out,
    listed,
    tokenized,
    whole,
    within,
)
from ropetool.servers.http import Http

COMPLETION = "/completion"
SHOWN = 64  # it shows as many as are asked for
MORE = 16  # times as many, for a token that cannot be drawn
MOST_SHOWN = 1 << 20  # beyond any vocabulary
BIAS = 1e6  # on the logit of a token, so that it is drawn; the probabilities told are those before it
DRAWN = "a"  # a text whose last token is whole characters: nothing is told of a token that ends within one


class LlamaServer:
    """A llama-server, whose probabilities are those of the model before any sampling (no `post_sampling_probs`)."""

    def __init__(self, http: Http, properties: dict[str, Any]) -> None:
        self._http, self._where = http, f"{http.url}{COMPLETION}"
        self.program = " ".join(("llama-server", str(properties.get("build_info") or ""))).strip()
        self.model = str(properties.get("model_path") or properties.get("model_alias") or "")
        settings = properties.get("default_generation_settings")
        stated = settings.get("n_ctx") if isinstance(settings, dict) else None
        # Its slots share the cells of one cache, and each has the prefix of its own last prompt: one request at a time neither
        # runs out nor reads again. A prompt that leaves room for the answer alone is called truncated.
        self.limits = Limits(whole(stated), SHOWN, exact=True, at_once=1, room=2)
        self._drawable: int | None = None

    def next(self, ids: Sequence[int], wanted: int | None = None) -> Answer:
        """Return what may come after a prompt: a wanted token is made the one that is drawn, so that it is told.

        Where the token that is drawn ends within a character, no probabilities are told (process_token). Then another one is
        drawn, and so many of the likeliest are asked for that the wanted one is among them.
        """
        drawn, shown = wanted, SHOWN
        while True:
            found = self._asked(ids, drawn, shown)
            if "completion_probabilities" in found:
                told = within(found, "completion_probabilities", 0, where=self._where)
                entries = [*listed(told, "top_logprobs", where=self._where), *([] if drawn is None else [told])]
                pairs = [tuple(within(one, key, where=self._where) for key in ("id", "logprob")) for one in entries]
                answer = answer_of(pairs, shown, self._where)
                if wanted is None or wanted in answer.shown:
                    return answer
                if drawn == wanted or len(pairs) < shown or shown >= MOST_SHOWN:
                    raise ServerError(left_out(wanted), where=self._where)
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
        found = self._http.post(COMPLETION, body)
        if within(found, "truncated", where=self._where) or within(found, "tokens_evaluated", where=self._where) != len(
            ids
        ):
            raise ServerError(f"the server did not read exactly the {len(ids)} tokens of the prompt", where=self._where)
        return found

    def _whole_characters(self) -> int:
        """Return a token that can be drawn."""
        if self._drawable is None:
            read = self.tokens_of(DRAWN)
            if not read:
                raise ServerError("the server returns neither probabilities nor tokens of a text", where=self._where)
            self._drawable = read[-1]
        return self._drawable

    def tokens_of(self, text: str) -> list[int] | None:
        """Return the ids of a text, without special ones."""
        return tokenized(self._http, {"content": text, "add_special": False, "parse_special": False})

    def scores(self, ids: Sequence[int], last: int) -> list[Score] | None:
        """Return None: it tells nothing of the tokens of a prompt (llama.cpp#27174)."""
        return None

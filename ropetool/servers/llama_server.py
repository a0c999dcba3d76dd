"""llama.cpp's llama-server. Source: tools/server/server-context.cpp of llama-cpp-python 0.3.36; asked for real."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ropetool.errors import ServerError
from ropetool.servers.base import Answer, Limits, Score, answer_of, listed, tokenized, whole, within
from ropetool.servers.http import Http

COMPLETION = "/completion"
SHOWN = 64  # it shows as many as are asked for
BIAS = 1e6  # on the logit of a wanted token, so that it is drawn; the probabilities told are those before it


class LlamaServer:
    """A llama-server, whose probabilities are those of the model before any sampling (no `post_sampling_probs`)."""

    def __init__(self, http: Http, properties: dict[str, Any]) -> None:
        self._http, self._where = http, f"{http.url}{COMPLETION}"
        self.program = " ".join(("llama-server", str(properties.get("build_info") or ""))).strip()
        self.model = str(properties.get("model_path") or properties.get("model_alias") or "")
        settings = properties.get("default_generation_settings")
        stated = settings.get("n_ctx") if isinstance(settings, dict) else None
        self.limits = Limits(whole(stated), SHOWN, exact=True)

    def next(self, ids: Sequence[int], wanted: int | None = None) -> Answer:
        """Return what may come after a prompt: a wanted token is made the one that is drawn, so that it is told."""
        body = {
            "prompt": [int(token) for token in ids], "n_predict": 1, "n_probs": self.limits.shown, "temperature": 0,
            "cache_prompt": True, "logit_bias": [] if wanted is None else [[int(wanted), BIAS]],
        }  # fmt: skip
        found = self._http.post(COMPLETION, body)
        if within(found, "truncated", where=self._where) or within(found, "tokens_evaluated", where=self._where) != len(
            ids
        ):
            raise ServerError(f"it did not read the {len(ids)} tokens of the prompt as they are", where=self._where)
        drawn = within(found, "completion_probabilities", 0, where=self._where)
        entries = [*listed(drawn, "top_logprobs", where=self._where), *([] if wanted is None else [drawn])]
        pairs = [tuple(within(one, key, where=self._where) for key in ("id", "logprob")) for one in entries]
        answer = answer_of(pairs, self.limits.shown, self._where)
        if wanted is not None and wanted not in answer.shown:
            raise ServerError(f"it did not draw token {wanted}, whose logit was raised", where=self._where)
        return answer

    def tokens_of(self, text: str) -> list[int] | None:
        """Return the ids of a text, without special ones."""
        return tokenized(self._http, {"content": text, "add_special": False, "parse_special": False})

    def scores(self, ids: Sequence[int]) -> list[Score] | None:
        """Return None: it tells nothing of the tokens of a prompt (llama.cpp#27174)."""
        return None

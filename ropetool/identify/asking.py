"""Identify a server's table: choose prompts, ask the server, and decide which hypothesis fits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.errors import ConfigError
from ropetool.files.counting import nobody
from ropetool.identify import deciding, prompts
from ropetool.identify.hypotheses import AS_MEANT, Hypothesis, hypotheses
from ropetool.identify.prompts import Prompt
from ropetool.identify.reference import Reference
from ropetool.servers.base import Server
from ropetool.servers.http import OPTION
from ropetool.servers.text import TextServer
from ropetool.verification.texts import default_documents

__all__ = ["AS_MEANT", "Identified", "IdentifyOptions", "PromptIds", "identify", "prepare"]

SINGLES = 12  # prompts of a single token, because no table changes their answers
TEXTS = 4
FINE = ("float32", "float64")
COARSE = "bfloat16"  # the default type of engines
SEED = 0
SCHEMA = 1
FILL = 'fill in "top" of each answer with the 20 likeliest tokens, as pairs [token, log probability], then pass --logprobs FILE'
Tell = Callable[[str, int, int], None]


@dataclass(frozen=True)
class IdentifyOptions:
    """The options of an identification.

    length: tokens in the longest prompt. None uses the configured context length, or the server's limit if that is
      lower.
    count: the number of prompts.
    device: the torch device of the reference model.
    dtype: the torch dtype of the reference model.
    more: hypotheses besides those from the checkpoint's keys.
    """

    length: int | None = None
    count: int = 24
    device: str = "auto"
    dtype: str = "float32"
    more: tuple[Hypothesis, ...] = ()


@dataclass(frozen=True)
class PromptIds:
    """The token ids of the prompts.

    singles: the prompts of a single token.
    prompts: the longer prompts.
    """

    singles: tuple[tuple[int, ...], ...]
    prompts: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Identified:
    """The result of an identification.

    hypotheses: all hypotheses that were considered, in the order of decision.figures.
    decision: the divergences, and the hypothesis that fits.
    program: the name of the program that answered.
    lengths: the number of tokens in each prompt.
    """

    hypotheses: tuple[Hypothesis, ...]
    decision: deciding.Decision
    program: str
    lengths: tuple[int, ...]

    @property
    def name(self) -> str:
        """Return the name of the hypothesis that fits, or an empty string if none fits."""
        return self.hypotheses[self.decision.best].name if self.decision.best >= 0 else ""

    @property
    def rivals(self) -> tuple[str, ...]:
        """Return the names of the other hypotheses that fit as well."""
        return tuple(self.hypotheses[index].name for index in self.decision.rivals)

    @property
    def sure(self) -> bool:
        """Return whether only one hypothesis fits."""
        return bool(self.name) and not self.rivals

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain data for JSON."""
        listed = [
            {"name": one.name, "says": one.says, "alike": list(one.alike), "divergence": figure}
            for one, figure in zip(self.hypotheses, self.decision.figures, strict=True)
        ]
        return {
            "schema": SCHEMA, "program": self.program, "name": self.name or None, "sure": self.sure, "rivals": list(self.rivals),
            "margin": self.decision.margin, "noise": self.decision.noise, "limit": self.decision.limit,
            "prompts": list(self.lengths), "hypotheses": listed,
        }  # fmt: skip


def prepare(checkpoint: HfCheckpoint, options: IdentifyOptions, *, progress: Tell | None = None) -> PromptIds:
    """Return prompts that distinguish the hypotheses. Raises: as `identify`."""
    considered = hypotheses(checkpoint, options.more)
    with closing(_reference(checkpoint, considered[0], options)) as reference:
        listed = _computable(considered, reference)
        texts, singles = _texts(reference, _longest(listed[0], options, None))
        chosen = prompts.choose(reference, listed, texts, options.count, progress or nobody)
    return PromptIds(singles, tuple(prompt.ids for prompt in chosen))


def identify(
    checkpoint: HfCheckpoint,
    server: Server,
    options: IdentifyOptions,
    *,
    given: PromptIds | None = None,
    progress: Tell | None = None,
) -> Identified:
    """Return which of the tables that a runtime may compute from the checkpoint the server computes.

    given: the prompts for which a file has answers. None to choose prompts for a running server.
    Raises: ConfigError if the server has different weights, accepts only text, or if there is only one hypothesis.
    ServerError. CheckpointError.
    """
    if isinstance(server, TextServer):
        raise ConfigError(
            f"{server.program} accepts only text, and identify sends token ids",
            where=OPTION,
            try_="llama-server, vLLM or SGLang, or --prompts-out",
        )
    tell, considered = progress or nobody, hypotheses(checkpoint, options.more)
    with closing(_reference(checkpoint, considered[0], options)) as reference:
        listed = _computable(considered, reference)
        if given is None:
            texts, singles = _texts(reference, _longest(listed[0], options, server.limits.prompt))
        else:
            singles = given.singles
        control = _Control(reference, listed, server, singles)
        control.check()
        if given is None:
            chosen = prompts.choose(reference, listed, texts, options.count, tell)
        else:
            chosen = prompts.known(reference, listed, given.prompts, tell)
        divergences = np.empty((len(chosen), len(listed)))
        for number, prompt in enumerate(chosen):
            answer = server.next(prompt.ids)
            divergences[number] = [deciding.divergence(answer, one) for one in prompt.log_probs]
            tell("asking", number + 1, len(chosen))
        decision = deciding.decide(
            divergences,
            lambda best: float(np.mean(control.of(best))),
            partial(_growth, checkpoint, options, reference, listed, singles, chosen),
        )
    return Identified(tuple(listed), decision, server.program, tuple(len(prompt.ids) for prompt in chosen))


def _computable(considered: Sequence[Hypothesis], reference: Reference) -> list[Hypothesis]:
    """Return the hypotheses that the reference can compute. Raises: ConfigError if there is only one."""
    listed = [one for one in considered if reference.computes(one)]
    if len(listed) < 2:
        raise ConfigError(
            "all known misreadings of this checkpoint give the same table", where=str(reference.runner.path)
        )
    return listed


def _reference(checkpoint: HfCheckpoint, intended: Hypothesis, options: IdentifyOptions) -> Reference:
    return Reference(checkpoint, intended.rope, device=options.device, dtype=options.dtype)


class _Control:
    """The divergence between a server's answers to single tokens and a hypothesis.

    Most tables do not change these answers. A factor on the scores changes them if the model has attention sinks.
    """

    def __init__(
        self, reference: Reference, listed: Sequence[Hypothesis], server: Server, singles: Sequence[Sequence[int]]
    ) -> None:
        self._reference, self._listed, self._singles = reference, listed, singles
        self._program, self._answers = server.program, [server.next(ids) for ids in singles]

    def check(self) -> None:
        """Raise ConfigError if the answers come from different weights, under every table."""
        if not self._answers or all(deciding.is_another_model(self.of(index)) for index in range(len(self._listed))):
            difference = f"differ by {np.median(self.of(0)):.2g} nats" if self._answers else "are missing"
            raise ConfigError(
                f"answers of {self._program} to single tokens {difference}; tables do not change them, so it serves different weights",
                where=OPTION, try_="--source with the checkpoint that is served",
            )  # fmt: skip

    def of(self, index: int) -> list[float]:
        """Return the divergence from a hypothesis for each single token, in nats."""
        return [
            deciding.divergence(answer, self._reference.log_probs(self._listed[index], ids, [1])[0])
            for answer, ids in zip(self._answers, self._singles, strict=True)
        ]


def _growth(
    checkpoint: HfCheckpoint, options: IdentifyOptions, reference: Reference, listed: Sequence[Hypothesis],
    singles: Sequence[Sequence[int]], chosen: Sequence[Prompt], best: int,
) -> float:  # fmt: skip
    """Return how many times more a coarser dtype changes answers to prompts than answers to single tokens.

    The reference model measures it under the hypothesis number `best`. It closes each model before it loads the next
    one.
    """
    by_dtype = []
    for dtype in (options.dtype if options.dtype in FINE else FINE[0], COARSE):
        own = dtype == options.dtype
        with closing(reference if own else _reference(checkpoint, listed[0], replace(options, dtype=dtype))) as run:
            after_singles = np.stack([run.log_probs(listed[best], ids, [1])[0] for ids in singles])
            ids_of_prompts = [one.ids for one in chosen]
            rows = (
                [one.log_probs[best] for one in chosen]
                if own
                else prompts.behind(run, listed[best], ids_of_prompts, prompts.texts_of(ids_of_prompts))
            )
        reference.close()
        by_dtype.append((after_singles, np.stack(rows)))
    (fine_singles, fine_prompts), (coarse_singles, coarse_prompts) = by_dtype
    return deciding.growth((fine_singles, coarse_singles), (fine_prompts, coarse_prompts))


def _longest(intended: Hypothesis, options: IdentifyOptions, limit: int | None) -> int:
    """Return the length of the longest prompt in tokens. limit: the server's limit in tokens, or None.

    Raises: ConfigError if the requested length exceeds the limit.
    """
    if options.length is not None:
        if limit is not None and options.length > limit:
            raise ConfigError(f"the server accepts prompts of {limit} tokens, not {options.length}", where="--length")
        return options.length
    available = intended.rope.max_position_embeddings - 1
    return available if limit is None else min(available, limit)


def _texts(reference: Reference, longest: int) -> tuple[list[list[int]], tuple[tuple[int, ...], ...]]:
    """Return the longest texts, each cut to at most `longest` ids, and prompts of a single token from all texts."""
    runner = reference.runner
    prefix = list(runner.prefix)
    token_ids = [runner.tokenize(document.text) for document in default_documents(longest)]
    texts = [[*prefix, *ids][:longest] for ids in sorted(token_ids, key=len, reverse=True)[:TEXTS]]
    tokens = sorted({token for ids in token_ids for token in ids})
    singles = np.random.default_rng(SEED).choice(tokens, SINGLES, replace=False)
    return texts, tuple((int(token),) for token in singles)

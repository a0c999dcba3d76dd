"""Identification from end to end: hypotheses, prompts, answers, the decision."""

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

__all__ = ["AS_MEANT", "Asked", "Identified", "Prepared", "identify", "prepare"]

SINGLES = 12  # prompts of one token, which no table changes
TEXTS = 4
FINE = ("float32", "float64")
COARSE = "bfloat16"  # what engines compute in, unless they are told otherwise
SEED = 0
SCHEMA = 1
FILL = 'fill in "top" of each answer with the 20 likeliest tokens, as pairs [token, log probability], then pass --logprobs FILE'
Tell = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Asked:
    """length: tokens of the longest prompt, None for what the checkpoint states and the server takes. count: of prompts.

    more: hypotheses beside those of the checkpoint's keys.
    """

    length: int | None = None
    count: int = 24
    device: str = "auto"
    dtype: str = "float32"
    more: tuple[Hypothesis, ...] = ()


@dataclass(frozen=True)
class Prepared:
    """The ids of prompts of one token, and of the others."""

    singles: tuple[tuple[int, ...], ...]
    prompts: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Identified:
    """hypotheses: all that were considered, in the order of decision.figures. program: who answered. lengths: of the prompts."""

    hypotheses: tuple[Hypothesis, ...]
    decision: deciding.Decision
    program: str
    lengths: tuple[int, ...]

    @property
    def name(self) -> str:
        """The hypothesis that fits, empty where none does."""
        return self.hypotheses[self.decision.best].name if self.decision.best >= 0 else ""

    @property
    def rivals(self) -> tuple[str, ...]:
        """The others that the answers do not tell from it."""
        return tuple(self.hypotheses[at].name for at in self.decision.rivals)

    @property
    def sure(self) -> bool:
        """Whether the answers tell it from every other."""
        return bool(self.name) and not self.rivals

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        listed = [
            {"name": one.name, "says": one.says, "alike": list(one.alike), "divergence": figure}
            for one, figure in zip(self.hypotheses, self.decision.figures, strict=True)
        ]
        return {
            "schema": SCHEMA, "program": self.program, "name": self.name or None, "sure": self.sure, "rivals": list(self.rivals),
            "margin": self.decision.margin, "noise": self.decision.noise, "limit": self.decision.limit,
            "prompts": list(self.lengths), "hypotheses": listed,
        }  # fmt: skip


def prepare(checkpoint: HfCheckpoint, asked: Asked, *, progress: Tell | None = None) -> Prepared:
    """Return prompts that tell the hypotheses apart. Raises: as identify."""
    found = hypotheses(checkpoint, asked.more)
    with closing(_reference(checkpoint, found[0], asked)) as reference:
        listed = _computable(found, reference)
        texts, singles = _texts(reference, _longest(listed[0], asked, None))
        chosen = prompts.choose(reference, listed, texts, asked.count, progress or nobody)
    return Prepared(singles, tuple(prompt.ids for prompt in chosen))


def identify(
    checkpoint: HfCheckpoint, server: Server, asked: Asked, *, given: Prepared | None = None, progress: Tell | None = None
) -> Identified:  # fmt: skip
    """Return which table a server computes, of those that a runtime may make of the checkpoint.

    given: the prompts that the server has answers to, where it is a file.
    Raises: ConfigError for a server of other weights, or nothing to tell apart; ServerError; CheckpointError.
    """
    if isinstance(server, TextServer):
        raise ConfigError(
            f"{server.program} accepts only text, and identify sends token ids",
            where=OPTION,
            try_="llama-server, vLLM or SGLang, or --prompts-out",
        )
    tell, found = progress or nobody, hypotheses(checkpoint, asked.more)
    with closing(_reference(checkpoint, found[0], asked)) as reference:
        listed = _computable(found, reference)
        if given is None:
            texts, singles = _texts(reference, _longest(listed[0], asked, server.limits.prompt))
        else:
            singles = given.singles
        control = _Control(reference, listed, server, singles)
        control.check()
        if given is None:
            chosen = prompts.choose(reference, listed, texts, asked.count, tell)
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
            partial(_growth, checkpoint, asked, reference, listed, singles, chosen),
        )
    return Identified(tuple(listed), decision, server.program, tuple(len(prompt.ids) for prompt in chosen))


def _computable(found: Sequence[Hypothesis], reference: Reference) -> list[Hypothesis]:
    """Return the hypotheses that the reference can compute. Raises: ConfigError where there is one alone."""
    listed = [one for one in found if reference.computes(one)]
    if len(listed) < 2:
        raise ConfigError(
            "all known misreadings of this checkpoint give the same table",
            where=str(reference.runner.path),
        )
    return listed


def _reference(checkpoint: HfCheckpoint, meant: Hypothesis, asked: Asked) -> Reference:
    return Reference(checkpoint, meant.rope, device=asked.device, dtype=asked.dtype)


class _Control:
    """How far answers behind single tokens are from a hypothesis, which most tables do not change.

    A factor on the scores changes them where a model has attention sinks.
    """

    def __init__(
        self, reference: Reference, listed: Sequence[Hypothesis], server: Server, singles: Sequence[Sequence[int]]
    ) -> None:
        self._reference, self._listed, self._singles = reference, listed, singles
        self._program, self._answers = server.program, [server.next(ids) for ids in singles]

    def check(self) -> None:
        """Raise ConfigError for answers of other weights, whatever the table."""
        if not self._answers or all(deciding.is_another_model(self.of(at)) for at in range(len(self._listed))):
            apart = f"differ by {np.median(self.of(0)):.2g} nats" if self._answers else "are missing"
            raise ConfigError(
                f"answers of {self._program} to single tokens {apart}; tables do not change them, so it serves different weights",
                where=OPTION, try_="--source with the checkpoint that is served",
            )  # fmt: skip

    def of(self, at: int) -> list[float]:
        """Return the divergences from a hypothesis, by single token."""
        return [
            deciding.divergence(answer, self._reference.log_probs(self._listed[at], ids, [1])[0])
            for answer, ids in zip(self._answers, self._singles, strict=True)
        ]


def _growth(
    checkpoint: HfCheckpoint, asked: Asked, reference: Reference, listed: Sequence[Hypothesis], singles: Sequence[Sequence[int]],
    chosen: Sequence[Prompt], best: int,
) -> float:  # fmt: skip
    """Return how many times more a coarser type makes of prompts than of single tokens, by the reference at that hypothesis.

    The model at hand is freed before another is loaded.
    """
    found = []
    for dtype in (asked.dtype if asked.dtype in FINE else FINE[0], COARSE):
        own = dtype == asked.dtype
        with closing(reference if own else _reference(checkpoint, listed[0], replace(asked, dtype=dtype))) as run:
            behind = np.stack([run.log_probs(listed[best], ids, [1])[0] for ids in singles])
            asked_for = [one.ids for one in chosen]
            rows = (
                [one.log_probs[best] for one in chosen]
                if own
                else prompts.behind(run, listed[best], asked_for, prompts.texts_of(asked_for))
            )
        reference.close()
        found.append((behind, np.stack(rows)))
    (ours, behind_ours), (theirs, behind_theirs) = found
    return deciding.growth((ours, theirs), (behind_ours, behind_theirs))


def _longest(meant: Hypothesis, asked: Asked, taken: int | None) -> int:
    """Return the length of the longest prompt. Raises: ConfigError for more than the server takes."""
    if asked.length is not None:
        if taken is not None and asked.length > taken:
            raise ConfigError(f"the server accepts prompts of {taken} tokens, not {asked.length}", where="--length")
        return asked.length
    stated = meant.rope.max_position_embeddings - 1
    return stated if taken is None else min(stated, taken)


def _texts(reference: Reference, longest: int) -> tuple[list[list[int]], tuple[tuple[int, ...], ...]]:
    """Return texts of up to that many ids, and prompts of one of the texts' tokens."""
    runner = reference.runner
    prefix = list(runner.prefix)
    read = [runner.tokenize(document.text) for document in default_documents(longest)]
    texts = [[*prefix, *ids][:longest] for ids in sorted(read, key=len, reverse=True)[:TEXTS]]
    tokens = sorted({token for ids in read for token in ids})
    picked = np.random.default_rng(SEED).choice(tokens, SINGLES, replace=False)
    return texts, tuple((int(token),) for token in picked)

"""The noise of a checkpoint: its divergence from itself with a different rounding, and the tokens whose experts are tied."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from ropetool.rope.tables import Array
from ropetool.verification.results import DivergenceResult, Noise
from ropetool.verification.scoring import Logits, Runner, Wrapped

# A token is tied if a probability moves by more than this multiple of the median. Rounding moves the worst token by about ten
# times the median, and a different expert moves it by thousands of times.
JUMP = 30.0
FAR = 0.01  # a move of a probability by more than this always comes from a different expert, even at most tokens
MOST_TIED = 0.1  # share of all tokens; if more tokens are tied, the rest is not representative

Compare = Callable[[Runner], DivergenceResult]


def with_noise(
    compare: Compare,
    divergence: DivergenceResult,
    reference: Runner,
    target: Runner,
    noisy: Sequence[Runner],
    routed: bool,
) -> tuple[DivergenceResult, Noise]:
    """Return the divergence of the target, and the noise of the reference.

    compare: returns the divergence of a runner from the reference. divergence: the divergence of the target.
    noisy: the reference with noise. If two experts are nearly tied, one of these runners chooses the second one.
    routed: the model has experts. Tokens that noise sends to other experts count as equal, up to a share of
      `MOST_TIED`.
    """
    ties = Ties(reference, noisy)
    if routed:
        own = tuple(compare(LeavingOut(each, reference, ties)) for each in noisy)
        if ties.count <= MOST_TIED * ties.tokens:
            divergence = compare(LeavingOut(target, reference, ties)) if ties.count else divergence
            return divergence, Noise(own, ties.count, ties.tokens, left_out=True)
    return divergence, Noise(tuple(map(compare, noisy)), ties.count, ties.tokens, left_out=False)


class Ties:
    """The tokens that noise moves much more than most tokens. Each row is computed once."""

    def __init__(self, reference: Runner, noisy: Sequence[Runner]) -> None:
        self._reference, self._noisy = reference, noisy
        self._rows: dict[tuple[int, ...], npt.NDArray[np.bool_]] = {}

    def of(self, ids: Sequence[int]) -> npt.NDArray[np.bool_]:
        """Return which tokens of a row are tied. Shapes: -> (tokens,)."""
        row = tuple(ids)
        if row not in self._rows:
            moved = np.max([self._moved(ids, each) for each in self._noisy], axis=0)
            self._rows[row] = moved > min(JUMP * float(np.median(moved)), FAR)
        return self._rows[row]

    @property
    def count(self) -> int:
        """The number of tied tokens."""
        return sum(int(row.sum()) for row in self._rows.values())

    @property
    def tokens(self) -> int:
        """The number of tokens."""
        return sum(row.size for row in self._rows.values())

    def _moved(self, ids: Sequence[int], noisy: Runner) -> Array:
        """Return the largest move of a probability at each token of a row. Shapes: -> (tokens,)."""
        pieces = zip(self._reference.logits(ids), noisy.logits(ids), strict=True)
        return np.concatenate(
            [np.abs(_probabilities(ours) - _probabilities(theirs)).max(axis=1) for (_, ours), (_, theirs) in pieces]
        )


class LeavingOut(Wrapped):
    """A runner that returns the logits of the reference for tied tokens."""

    def __init__(self, runner: Runner, reference: Runner, ties: Ties) -> None:
        super().__init__(runner)
        self._reference, self._ties = reference, ties

    def logits(self, ids: Sequence[int]) -> Iterator[tuple[int, Logits]]:
        """Yield the logits of a row."""
        tied = self._ties.of(ids)
        for (start, piece), (_, reference) in zip(super().logits(ids), self._reference.logits(ids), strict=True):
            common = min(piece.shape[1], reference.shape[1])
            places = tied[start : start + len(piece)]
            changed = piece.copy()
            changed[places, :common] = reference[places, :common]
            yield start, changed


def _probabilities(logits: Logits) -> Array:
    weights = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    probabilities: Array = weights / weights.sum(axis=1, keepdims=True)
    return probabilities

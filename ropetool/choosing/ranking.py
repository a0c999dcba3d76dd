"""Rank candidates on the same tokens: paired by document, and corrected for the number of pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from ropetool.rope.tables import Array
from ropetool.verification.results import Estimate
from ropetool.verification.statistics import chance_of_less, chance_of_more, paired_difference, rejected


@dataclass(frozen=True)
class PairResult:
    """Two candidates, first the one with the lower loss.

    first, second: their names.
    difference: the first loss minus the second, in nats per token.
    chance: the two-sided p-value of no difference.
    better: whether the first is significantly better, corrected for all pairs of this length.
    """

    first: str
    second: str
    difference: Estimate
    chance: float
    better: bool


@dataclass(frozen=True)
class Ranking:
    """The candidates at one length.

    length: the length in tokens.
    order: the names, lowest loss first.
    pairs: all pairs of candidates.
    """

    length: int
    order: tuple[str, ...]
    pairs: tuple[PairResult, ...]

    @property
    def best(self) -> str:
        """Return the candidate with the lowest loss."""
        return self.order[0]

    @property
    def tied(self) -> tuple[str, ...]:
        """Return the candidates that are not significantly worse than the best."""
        worse = self.better_than(self.best)
        return tuple(name for name in self.order[1:] if name not in worse)

    def better_than(self, name: str) -> tuple[str, ...]:
        """Return the candidates that are significantly worse than this one."""
        return tuple(pair.second for pair in self.pairs if pair.first == name and pair.better)


def ranked(length: int, losses: Mapping[str, Array], documents: Sequence[int]) -> Ranking:
    """Return the order of the candidates at a length, with the significant differences.

    Holm's rule corrects the two-sided p-values of all pairs. The chance that any "better than" is false is at most 5 %.
    Shapes: losses (segments, scored) each, of the same tokens; documents (segments,).
    """
    order = sorted(losses, key=lambda name: float(losses[name].mean()))
    pairs = [
        (first, second, paired_difference(losses[first], losses[second], documents))
        for first, second in combinations(order, 2)
    ]
    chances = [two_sided(difference) for _, _, difference in pairs]
    significant = rejected(chances)
    results = (
        PairResult(*pair, chance, better) for pair, chance, better in zip(pairs, chances, significant, strict=True)
    )
    return Ranking(length, tuple(order), tuple(results))


def two_sided(difference: Estimate) -> float:
    """Return the two-sided p-value of the hypothesis that the true mean is 0."""
    return min(1.0, 2 * min(chance_of_less(difference, 0.0), chance_of_more(difference, 0.0)))

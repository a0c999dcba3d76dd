"""Which candidate is better than which, on the same tokens: paired by document, corrected for how many pairs there are.

Takes losses; knows nothing of models or plans.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from ropetool.rope.tables import Array
from ropetool.verification.results import Estimate
from ropetool.verification.statistics import chance_of_less, chance_of_more, paired_difference, rejected


@dataclass(frozen=True)
class PairResult:
    """Two candidates, the one of the lower loss first. difference: of the losses, first minus second, in nats a token.

    chance: the two-sided p value of no difference. better: whether the first is surely better, over all pairs of its length.
    """

    first: str
    second: str
    difference: Estimate
    chance: float
    better: bool


@dataclass(frozen=True)
class Ranking:
    """The candidates that were scored at one length, lowest loss first, and all pairs of them."""

    length: int
    order: tuple[str, ...]
    pairs: tuple[PairResult, ...]

    @property
    def best(self) -> str:
        """The candidate of the lowest loss."""
        return self.order[0]

    @property
    def tied(self) -> tuple[str, ...]:
        """Those that are not told apart from the best one."""
        worse = self.better_than(self.best)
        return tuple(name for name in self.order[1:] if name not in worse)

    def better_than(self, name: str) -> tuple[str, ...]:
        """Return the candidates that one is surely better than."""
        return tuple(pair.second for pair in self.pairs if pair.first == name and pair.better)


def ranked(length: int, losses: Mapping[str, Array], documents: Sequence[int]) -> Ranking:
    """Return the order of the candidates at a length and which of them are told apart.

    Holm's rule goes over all pairs of the length, with the two-sided p value of each, so that with a chance of at most 5 % any
    of its "better than" is false. Shapes: losses (segments, scored) each, of the same tokens; documents (segments,).
    """
    order = sorted(losses, key=lambda name: float(losses[name].mean()))
    pairs = [
        (first, second, paired_difference(losses[first], losses[second], documents))
        for first, second in combinations(order, 2)
    ]
    chances = [two_sided(difference) for _, _, difference in pairs]
    surely = rejected(chances)
    found = (PairResult(*pair, chance, sure) for pair, chance, sure in zip(pairs, chances, surely, strict=True))
    return Ranking(length, tuple(order), tuple(found))


def two_sided(difference: Estimate) -> float:
    """Return the two-sided p value of the hypothesis that the true mean is 0."""
    return min(1.0, 2 * min(chance_of_less(difference, 0.0), chance_of_more(difference, 0.0)))

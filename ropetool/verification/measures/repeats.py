"""Far dependence: how much better a passage is predicted when its own copy stands far in front of it.

The scored tokens and the text between are the same with and without the copy. Knows nothing of files or verdicts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ropetool.errors import ConfigError
from ropetool.rope.tables import Array
from ropetool.verification.measures.fillers import Passage, passage_length, passages
from ropetool.verification.measures.position import thin
from ropetool.verification.results import DistanceResult, FarResult
from ropetool.verification.scoring import TARGET, Corpus, Done, Runner
from ropetool.verification.statistics import clustered, paired_difference


@dataclass(frozen=True)
class FarDependence:
    """The passages, and the distances from a token to its copy; only the target is asked."""

    corpus: Corpus
    passages: tuple[Passage, ...]
    size: int
    distances: tuple[int, ...]
    name: str = "far"

    @property
    def scored(self) -> int:
        """How many tokens at the end of a passage are scored."""
        return self.size // 2

    def rows(self, role: str) -> Mapping[int, int]:
        if role != TARGET:
            return {}
        return {len(self.corpus.prefix) + distance + self.size: 2 * len(self.passages) for distance in self.distances}

    def run(self, runner: Runner, role: str, done: Done) -> Mapping[int, Array]:
        """Return by distance whether each token was the likeliest. Shapes: (2, passages, scored), repeated first."""
        if role != TARGET:
            return {}
        found = {}
        for distance in self.distances:
            rows = [self._row(p, p.tokens, distance) for p in self.passages]
            rows += [self._row(p, p.unrelated, distance) for p in self.passages]
            hits = runner.score(rows, self.scored, done).hits
            found[distance] = hits.astype(float).reshape(2, len(self.passages), self.scored)
        return found

    def result(self, target: Mapping[int, Array], baseline: Mapping[int, Array] | None) -> FarResult:
        """Return both accuracies and the gain at each distance."""
        documents = [passage.document for passage in self.passages]
        distances = tuple(
            DistanceResult(
                distance,
                clustered(repeated, documents),
                clustered(unrelated, documents),
                paired_difference(repeated, unrelated, documents),
            )
            for distance, (repeated, unrelated) in target.items()
        )
        note = thin(documents)
        return FarResult(self.size, self.scored, len(self.passages), len(set(documents)), distances, note)

    def _row(self, passage: Passage, front: Sequence[int], distance: int) -> list[int]:
        between = distance - self.size
        return [*self.corpus.prefix, *front, *passage.filler[len(passage.filler) - between :], *passage.tokens]


def prepare_far(
    corpus: Corpus,
    lengths: Sequence[int],
    trained_length: int,
    *,
    count: int,
    seed: int,
    distances: Sequence[int] | None = None,
) -> FarDependence:
    """Return the measurement at distances that double from half the trained length and end on the longest length.

    Raises: ConfigError if the texts are too few or too short, or a distance is shorter than a passage.
    """
    room = max(lengths) - len(corpus.prefix)
    size = passage_length(trained_length, room)
    if distances is None:
        doubling = (trained_length // 2 << n for n in range(32))
        distances = [*(distance for distance in doubling if distance < room - size), room - size]
    if min(distances) < size:
        raise ConfigError(
            f"a copy {min(distances)} tokens before a passage of {size} would overlap it", where="distances"
        )
    return FarDependence(corpus, passages(corpus, size, max(distances) - size, count, seed), size, tuple(distances))

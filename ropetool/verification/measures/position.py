"""Position probe: fixed passages behind a growing length of other text, whose loss should not move.

Shifting position_ids alone would show nothing, because RoPE is relative. Knows nothing of files or verdicts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ropetool.rope.tables import Array
from ropetool.verification.measures.fillers import Passage, passage_length, passages
from ropetool.verification.measures.segments import lacking
from ropetool.verification.results import OffsetResult, PositionResult
from ropetool.verification.scoring import TARGET, Corpus, Done, Runner
from ropetool.verification.statistics import clustered, paired_difference


@dataclass(frozen=True)
class PositionProbe:
    """The passages, and the filler lengths; the target meets all of them, the baseline those within its trained length.

    within: the filler of which a row is as long as the trained length.
    """

    corpus: Corpus
    passages: tuple[Passage, ...]
    size: int
    fillers: tuple[int, ...]
    within: int
    name: str = "position"

    @property
    def scored(self) -> int:
        """How many tokens at the end of a passage are scored."""
        return self.size // 2

    def rows(self, role: str) -> Mapping[int, int]:
        return {self._length(filler): len(self.passages) for filler in self._fillers(role)}

    def run(self, runner: Runner, role: str, done: Done) -> Mapping[int, Array]:
        """Return the losses by filler. Shapes: (passages, scored)."""
        return {
            filler: runner.score([self._row(p, filler) for p in self.passages], self.scored, done).losses
            for filler in self._fillers(role)
        }

    def result(self, target: Mapping[int, Array], baseline: Mapping[int, Array] | None) -> PositionResult:
        """Return the loss behind each filler, its change from none, and from the baseline's within the trained length.

        Without a baseline the target is its own, beyond the trained length.
        """
        documents = [passage.document for passage in self.passages]
        reference = target if baseline is None else baseline
        offsets = tuple(
            OffsetResult(
                filler,
                clustered(losses, documents),
                None if filler == 0 else paired_difference(losses, target[0], documents),
                None
                if baseline is None and filler <= self.within
                else paired_difference(losses, reference[min(filler, self.within)], documents),
            )
            for filler, losses in target.items()
        )
        own = None if baseline is None else clustered(baseline[0], documents)
        return PositionResult(
            self.size,
            self.scored,
            len(self.passages),
            len(set(documents)),
            offsets,
            own,
            lacking(documents, "passages"),
            self.within,
        )

    def _fillers(self, role: str) -> tuple[int, ...]:
        return tuple(filler for filler in self.fillers if role == TARGET or filler <= self.within)

    def _length(self, filler: int) -> int:
        return len(self.corpus.prefix) + filler + self.size

    def _row(self, passage: Passage, filler: int) -> list[int]:
        # The end of the filler, so that what stands right in front of the passage is the same at every length.
        return [*self.corpus.prefix, *passage.filler[len(passage.filler) - filler :], *passage.tokens]


def prepare_position(
    corpus: Corpus, lengths: Sequence[int], trained_length: int, *, count: int, seed: int
) -> PositionProbe:
    """Return the probe with rows that are exactly as long as the lengths that hold a passage, and one without filler.

    The trained length is one of them where it is not beyond all lengths.

    Raises: ConfigError if the texts are too few or too short.
    """
    size = passage_length(trained_length, max(lengths) - len(corpus.prefix))
    measured = {*lengths, min(trained_length, max(lengths))}
    rest = sorted({0, *(length - len(corpus.prefix) - size for length in measured)})
    fillers = tuple(filler for filler in rest if filler >= 0)
    within = max(filler for filler in fillers if filler <= max(0, trained_length - len(corpus.prefix) - size))
    return PositionProbe(corpus, passages(corpus, size, fillers[-1], count, seed), size, fillers, within)

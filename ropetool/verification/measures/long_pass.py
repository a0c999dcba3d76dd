"""One long pass: what every token beyond the trained length costs, by position, and on those that only far text tells.

Each is scored a second time in a window of the trained length, so that what a place has of easy or hard tokens drops out.
Most tokens follow from the last few hundred, and a mean over all of them hardly shows whether far text is read. A judge, a
model that reads the whole length, says which ones do not. Knows nothing of files or verdicts.
Source: Fang et al., What is wrong with perplexity for long-context language modeling?, arXiv 2410.23771, section 3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ropetool.rope.tables import Array
from ropetool.verification.gate import Evidence
from ropetool.verification.measure import Grading, Measure, Setting
from ropetool.verification.measures.loss import row
from ropetool.verification.measures.segments import Segment, choose_segments, lacking
from ropetool.verification.results import NOT_ASKED, Check, FarResult, KeyTokenResult, LongPassResult, PassSpan
from ropetool.verification.scoring import TARGET, Corpus, Done, Measurement, Runner
from ropetool.verification.statistics import clustered, clustered_sums, lower_bound, paired_difference
from ropetool.verification.suites import FAR, KEY_TOKENS

GAIN = 2.0  # nats, by which the long context has to help the judge
LIKELY = -2.0  # the log-probability that the judge has to give the token with it
MOST_SPANS = 16  # of positions
FEWEST = 300  # key tokens, below which nothing is judged
LONG, SHORT = "long", "short"
JUDGE = "judge"


@dataclass(frozen=True)
class LongPass:
    """The places, whose last `scored` tokens are scored behind `length` tokens, and behind the trained length alone.

    There each window of the trained length scores its second half, so that every token has half of it as context or more.
    """

    corpus: Corpus
    places: tuple[Segment, ...]
    length: int
    trained_length: int
    scored: int
    name: str = "long-pass"

    @property
    def step(self) -> int:
        """How many tokens a window of the trained length scores."""
        return self.trained_length // 2

    def rows(self, role: str) -> Mapping[int, int]:
        """Return the rows of a model: the target reads all, the baseline what fits its trained length, a judge both."""
        windows = {self.trained_length: len(self.places) * self.scored // self.step}
        whole = {self.length: len(self.places)}
        return {**windows, **whole} if role in (TARGET, JUDGE) else windows

    def run(self, runner: Runner, role: str, done: Done) -> Mapping[str, Array]:
        """Return the losses behind long and short contexts, in nats. Shapes: (places, scored)."""
        found = {SHORT: self._short(runner, done)}
        if role in (TARGET, JUDGE):
            rows = [row(self.corpus, place, self.length) for place in self.places]
            found[LONG] = runner.score(rows, self.scored, done).losses
        return found

    def result(self, target: Mapping[str, Array], baseline: Mapping[str, Array] | None) -> LongPassResult:
        """Return the losses by position, beside the baseline's of the same tokens in windows of its trained length."""
        own = target if baseline is None else baseline
        documents = [place.document for place in self.places]
        width = -(-self.scored // self.step // MOST_SPANS) * self.step
        spans = []
        for start in range(0, self.scored, width):
            part = slice(start, min(start + width, self.scored))
            long, short = target[LONG][:, part], own[SHORT][:, part]
            first = self.length - self.scored + start
            difference = paired_difference(long, short, documents)
            spans.append(
                PassSpan(
                    first, first + long.shape[1], clustered(long, documents), clustered(short, documents), difference
                )
            )
        return LongPassResult(
            self.length, len(self.places), len(set(documents)), tuple(spans), lacking(documents, "places")
        )

    def key_tokens(
        self, target: Mapping[str, Array], baseline: Mapping[str, Array] | None, judge: Mapping[str, Array]
    ) -> KeyTokenResult:
        """Return what the tokens that the judge chose cost the target, and its gain over the baseline's truncated text."""
        own = target if baseline is None else baseline
        chosen = key_tokens(judge[LONG], judge[SHORT])
        counts, documents = chosen.sum(axis=1), [place.document for place in self.places]
        used = np.flatnonzero(counts)
        note = "" if counts.sum() >= FEWEST else f"{counts.sum()} key tokens; {FEWEST} are needed"
        gain = loss = truncated = None
        if len(used):
            of_documents = [documents[i] for i in used]
            note = note or lacking(of_documents, "places")
            loss, truncated, gain = (
                clustered_sums((values * chosen).sum(axis=1)[used], counts[used].tolist(), of_documents)
                for values in (target[LONG], own[SHORT], own[SHORT] - target[LONG])
            )
        return KeyTokenResult(
            self.length, int(counts.sum()), int(chosen.size), len(self.places), len(set(documents)), loss, truncated, gain,
            note,
        )  # fmt: skip

    def _short(self, runner: Runner, done: Done) -> Array:
        """Return what the tokens cost in windows of the trained length. Shapes: (places, scored)."""
        ends = range(self.scored - self.step, -1, -self.step)
        rows = [
            row(self.corpus, Segment(place.document, place.end - back), self.trained_length)
            for place in self.places for back in ends
        ]  # fmt: skip
        return runner.score(rows, self.step, done).losses.reshape(len(self.places), self.scored)


def key_tokens(long: Array, short: Array) -> npt.NDArray[np.bool_]:
    """Return which tokens a judge predicts with the long context and not without it, from its losses in nats."""
    found: npt.NDArray[np.bool_] = (short - long > GAIN) & (-long > LIKELY)
    return found


def of_copies(far: FarResult | None, trained_length: int) -> KeyTokenResult | None:
    """Return what stands in without a judge: the tokens of the farthest copies, which no text but the copy tells."""
    beyond = [entry for entry in far.distances if entry.distance > trained_length] if far is not None else []
    if far is None or not beyond:
        return None
    last = max(beyond, key=lambda entry: entry.distance)
    tokens = far.passages * far.scored
    note = far.note or ("" if tokens >= FEWEST else f"{tokens} tokens of copies; {FEWEST} are needed")
    return KeyTokenResult(
        last.distance + far.passage, tokens, tokens, far.passages, far.documents, None, None, last.nats, note
    )


def prepare_long_pass(corpus: Corpus, length: int, trained_length: int, *, count: int, seed: int) -> LongPass:
    """Return the measurement at one length, with up to `count` places of which all tokens beyond the trained length count.

    Raises: ConfigError if no document is as long.
    """
    step = trained_length // 2
    scored = max(step, (length - trained_length) // step * step)
    sizes = [len(tokens) for tokens in corpus.tokens]
    places = choose_segments(sizes, [length], scored, count, seed, len(corpus.prefix))[length]
    return LongPass(corpus, places, length, trained_length, scored)


def key_tokens_check(found: KeyTokenResult, name: str = "key tokens") -> Check:
    """Return the line on key tokens, which informs: as proof that far text is read they count under `far text`."""
    if found.note or found.gain is None:
        return Check(name, None, None, NOT_ASKED, found.note)
    told = (
        f"95 % lower bound of the gain over truncation on {found.tokens} of {found.scored} tokens, nats a token; "
        f"the mean is {found.gain.mean:.2f}"
    )
    return Check(name, lower_bound(found.gain), 0.0, NOT_ASKED, told)


def token_evidence(name: str) -> Callable[[KeyTokenResult, Grading], list[Evidence]]:
    """Return what takes the gain on some tokens as evidence. name: of the tokens."""

    def evidence(tokens: KeyTokenResult, grading: Grading) -> list[Evidence]:
        if tokens.gain is None or tokens.note:
            return []
        return [Evidence(f"gain on {tokens.tokens} {name}", tokens.gain)]

    return evidence


def _prepare(setting: Setting, made: Sequence[Measurement]) -> LongPass | None:
    longest = setting.lengths[-1]
    if longest <= setting.trained_length or any(isinstance(m, LongPass) for m in made):
        return None
    count, seed = setting.suite.segments, setting.seed
    return prepare_long_pass(setting.corpus, longest, setting.trained_length, count=count, seed=seed)


def _prepare_judged(setting: Setting, made: Sequence[Measurement]) -> LongPass | None:
    """Return the long pass that a judge reads too; without one, key tokens are those of copies."""
    return _prepare(setting, made) if setting.judged else None


def _of_copies(results: Mapping[str, Any], trained_length: int) -> KeyTokenResult | None:
    return of_copies(results.get(FAR), trained_length)


def _key_token_checks(tokens: KeyTokenResult, grading: Grading) -> list[Check]:
    return [key_tokens_check(tokens)]


MEASURES = (
    Measure("by-position", "long_pass", 50, _prepare, measurement=LongPass.name),
    Measure(
        KEY_TOKENS, "key_tokens", 60, _prepare_judged, derive=_of_copies, evidence=token_evidence("key tokens"),
        checks=_key_token_checks, checked=11,
    ),
)  # fmt: skip

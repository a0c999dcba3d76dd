"""One long pass: the loss of every token beyond the trained length, by position, and the loss of key tokens.

Each token is scored a second time in a window of the trained length, so that hard and easy places cancel out. Most
tokens depend only on the last few hundred tokens. A judge, which is a model that reads the whole length, selects the
others: the key tokens.
Source: Fang et al., What is wrong with perplexity for long-context language modeling?, arXiv 2410.23771, section 3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ropetool.rope.tables import Array
from ropetool.sections import NONE, Section, Table, change, with_interval
from ropetool.sections import row as cells_of
from ropetool.verification.gate import Evidence
from ropetool.verification.measure import Grading, Judged, Measure, Setting
from ropetool.verification.measures.loss import row
from ropetool.verification.measures.repeats import FarResult
from ropetool.verification.measures.segments import Segment, choose_segments, lacking
from ropetool.verification.results import NOT_ASKED, Check, Estimate
from ropetool.verification.scoring import JUDGE, TARGET, Corpus, Done, Measurement, Runner
from ropetool.verification.statistics import clustered, clustered_sums, lower_bound, paired_difference
from ropetool.verification.suites import FAR, KEY_TOKENS

GAIN = 2.0  # nats: the long context must lower the judge's loss of a key token by this much
LIKELY = -2.0  # the judge's smallest log-probability of a key token with the long context
MOST_SPANS = 16  # the most spans of positions
FEWEST = 300  # key tokens; fewer are not judged
LONG, SHORT = "long", "short"


@dataclass(frozen=True)
class PassSpan:
    """The loss at positions `start` to `end` - 1 of one long pass, in nats per token.

    loss: the target's loss.
    truncated: the baseline's loss on the same tokens, in windows of its trained length.
    difference: loss minus truncated, paired.
    """

    start: int
    end: int
    loss: Estimate
    truncated: Estimate
    difference: Estimate


@dataclass(frozen=True)
class LongPassResult:
    """The loss by position in long passes.

    length: the tokens of a pass.
    places, documents: the number of passes, and of their documents.
    spans: the losses by position.
    note: the reason why the result is not precise, or "".
    """

    length: int
    places: int
    documents: int
    spans: tuple[PassSpan, ...]
    note: str


@dataclass(frozen=True)
class KeyTokenResult:
    """The loss of key tokens, in nats per token.

    length: the tokens of a row.
    tokens, scored: the number of key tokens, and of all tokens among which the judge selected them.
    places, documents: the number of places, and of their documents.
    loss: the target's loss with `length` tokens of context.
    truncated: the baseline's loss with the context that fits its trained length.
    gain: truncated minus loss, paired.
    note: the reason why nothing is judged, or "".

    The losses are None if the judge did not select any token. Without a judge, the tokens of the farthest copies are
    used, and the gain is the gain from the copy.
    """

    length: int
    tokens: int
    scored: int
    places: int
    documents: int
    loss: Estimate | None
    truncated: Estimate | None
    gain: Estimate | None
    note: str


@dataclass(frozen=True)
class LongPass:
    """The places of the long passes. The last `scored` tokens of each are scored with long and with short context.

    Each short window scores its second half, so every token has at least half of the trained length as context.
    length: the tokens of a long pass. trained_length: the tokens of a short window.
    """

    corpus: Corpus
    places: tuple[Segment, ...]
    length: int
    trained_length: int
    scored: int
    name: str = "long-pass"

    @property
    def step(self) -> int:
        """The number of scored tokens in a window of the trained length."""
        return self.trained_length // 2

    def rows(self, role: str) -> Mapping[int, int]:
        """Return the number of rows by length. Target and judge read whole passes and windows, the baseline only windows."""
        windows = {self.trained_length: len(self.places) * self.scored // self.step}
        whole = {self.length: len(self.places)}
        return {**windows, **whole} if role in (TARGET, JUDGE) else windows

    def run(self, runner: Runner, role: str, done: Done) -> Mapping[str, Array]:
        """Return the losses after long and short contexts, in nats. Shapes: (places, scored)."""
        losses = {SHORT: self._short(runner, done)}
        if role in (TARGET, JUDGE):
            rows = [row(self.corpus, place, self.length) for place in self.places]
            losses[LONG] = runner.score(rows, self.scored, done).losses
        return losses

    def result(self, target: Mapping[str, Array], baseline: Mapping[str, Array] | None) -> LongPassResult:
        """Return the losses by position, and the baseline's losses of the same tokens in windows of its trained length."""
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
        """Return the target's loss of the tokens that the judge chose, and its gain over the baseline's truncated text."""
        own = target if baseline is None else baseline
        chosen = key_tokens(judge[LONG], judge[SHORT])
        counts, documents = chosen.sum(axis=1), [place.document for place in self.places]
        used = np.flatnonzero(counts)
        note = "" if counts.sum() >= FEWEST else f"only {counts.sum()} key tokens; {FEWEST} are needed"
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
        """Return the losses in windows of the trained length, in nats. Shapes: (places, scored)."""
        ends = range(self.scored - self.step, -1, -self.step)
        rows = [
            row(self.corpus, Segment(place.document, place.end - back), self.trained_length)
            for place in self.places for back in ends
        ]  # fmt: skip
        return runner.score(rows, self.step, done).losses.reshape(len(self.places), self.scored)


def key_tokens(long: Array, short: Array) -> npt.NDArray[np.bool_]:
    """Return which tokens a judge predicts only with the long context. long, short: the judge's losses in nats."""
    chosen: npt.NDArray[np.bool_] = (short - long > GAIN) & (-long > LIKELY)
    return chosen


def of_copies(far: FarResult | None, trained_length: int) -> KeyTokenResult | None:
    """Return the result without a judge: the tokens of the farthest copies, which are predictable only from the copy."""
    beyond = [entry for entry in far.distances if entry.distance > trained_length] if far is not None else []
    if far is None or not beyond:
        return None
    last = max(beyond, key=lambda entry: entry.distance)
    tokens = far.passages * far.scored
    note = far.note or ("" if tokens >= FEWEST else f"only {tokens} tokens of copies; {FEWEST} are needed")
    return KeyTokenResult(
        last.distance + far.passage, tokens, tokens, far.passages, far.documents, None, None, last.nats, note
    )


def prepare_long_pass(corpus: Corpus, length: int, trained_length: int, *, count: int, seed: int) -> LongPass:
    """Return the measurement at one length, with up to `count` places. All tokens beyond the trained length are scored.

    Raises: ConfigError if no document is long enough.
    """
    step = trained_length // 2
    scored = max(step, (length - trained_length) // step * step)
    sizes = [len(tokens) for tokens in corpus.tokens]
    places = choose_segments(sizes, [length], scored, count, seed, len(corpus.prefix))[length]
    return LongPass(corpus, places, length, trained_length, scored)


def key_tokens_check(result: KeyTokenResult, name: str = "key tokens") -> Check:
    """Return the line on key tokens, which only informs. The check `far text` uses them as evidence."""
    if result.note or result.gain is None:
        return Check(name, None, None, NOT_ASKED, result.note)
    detail = (
        f"95 % lower bound of the gain over truncation on {result.tokens} of {result.scored} tokens, nats per token; "
        f"the mean is {result.gain.mean:.2f}"
    )
    return Check(name, lower_bound(result.gain), 0.0, NOT_ASKED, detail)


def token_evidence(name: str) -> Callable[[KeyTokenResult, Grading], list[Evidence]]:
    """Return a function that uses the gain on key tokens as evidence. name: the words for these tokens."""

    def evidence(tokens: KeyTokenResult, grading: Grading) -> list[Evidence]:
        if tokens.gain is None or tokens.note:
            return []
        return [Evidence(f"gain on {tokens.tokens} {name}", tokens.gain)]

    return evidence


def _long_pass(result: LongPassResult) -> Section:
    rows = tuple(
        cells_of(
            f"{span.start}-{span.end - 1}",
            with_interval(span.truncated),
            with_interval(span.loss),
            change(span.difference),
        )
        for span in result.spans
    )
    legend = (
        ("position", f"position of the tokens in rows of {result.length} tokens"),
        ("truncated", "nats per token, baseline after text of its trained length; loss: target in one pass"),
        ("difference", "loss minus truncated, same tokens, ± 95 % interval; above 0, the longer context does harm"),
    )
    notes = (result.note,) if result.note else ()
    head = ("position", "truncated", "loss", "difference")
    title = f"Loss by position: {result.places} passes of {result.documents} documents"
    return Section("by-position", title, Table(head, rows), legend, notes)


def _key_tokens(result: KeyTokenResult, judge: str | None) -> Section:
    values = (result.truncated, result.loss)
    cells = [NONE if value is None else with_interval(value) for value in values]
    rows = (cells_of(f"{result.tokens} of {result.scored}", *cells, change(result.gain)),)
    by = f"chosen by {judge}" if judge else "tokens of the farthest copies, without a judge"
    legend = (
        ("tokens", f"{by}, in {result.places} places of {result.documents} documents"),
        ("truncated", f"nats per token after text of the trained length; long: after {result.length} tokens"),
        (
            "gain",
            "truncated minus long, or the gain from the copy, paired, ± 95 % interval; above 0, the model uses distant text",
        ),
    )
    notes = (result.note,) if result.note else ()
    head = ("tokens", "truncated", "long", "gain")
    return Section("key-tokens", "Key tokens: predictable only from distant text", Table(head, rows), legend, notes)


def _prepare(setting: Setting, prepared: Sequence[Measurement]) -> LongPass | None:
    longest = setting.lengths[-1]
    if longest <= setting.trained_length or any(isinstance(m, LongPass) for m in prepared):
        return None
    count, seed = setting.suite.segments, setting.seed
    return prepare_long_pass(setting.corpus, longest, setting.trained_length, count=count, seed=seed)


def _prepare_judged(setting: Setting, prepared: Sequence[Measurement]) -> LongPass | None:
    """Return the long pass that a judge reads too, or None without a judge."""
    return _prepare(setting, prepared) if setting.judged else None


JSON_PLACES = (
    {"key": "key_tokens", "after": "judge", "order": 60},
    {"key": "long_pass", "after": "judge", "order": 66, "variant_order": 50},
)
MEASURES = (
    Measure("by-position", "long_pass", 50, _prepare, measurement=LongPass.name, sections=lambda passed, result: [_long_pass(passed)]),
    Measure(
        KEY_TOKENS, "key_tokens", 60, _prepare_judged, judged=Judged(LongPass.name, LongPass.key_tokens),
        derive=lambda results, trained_length: of_copies(results.get(FAR), trained_length),
        evidence=token_evidence("key tokens"), checks=lambda tokens, _: [key_tokens_check(tokens)], checked=11,
        sections=lambda tokens, result: [_key_tokens(tokens, result.judge)],
    ),
)  # fmt: skip

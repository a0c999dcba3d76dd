"""The use of long-range context: copies and questions, measured in the remaining time after the verdict `keep`.

A significant loss lowers `keep` to `works`. It does not lower it to `broken`, because a correct extension of a small
model may use distant text less than near text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ropetool.checkpoint.certificate import DEFAULT, RESEARCH
from ropetool.errors import ConfigError
from ropetool.verification import measures
from ropetool.verification.gate import Limits
from ropetool.verification.measure import Grading, Measure, Setting, Suite
from ropetool.verification.measures.retrieval import RetrievalResult
from ropetool.verification.measures.segments import MIN_DOCUMENTS
from ropetool.verification.results import FAIL, NOT_ASKED, PASS, Check
from ropetool.verification.scoring import BASELINE, TARGET, Corpus, Measurement, Runner
from ropetool.verification.verdict.deciding import Run
from ropetool.verification.verdict.places import Place
from ropetool.verification.verdict.reading import OutOfTime

# The measures in their order, with the words for a model that fails the check. A measure with an empty text only informs,
# because the question about the whole length has already measured the cost of text at late positions.
LOST = {
    "far": "copies of distant text help less",
    "retrieval": "fewer questions about distant text are answered",
    "position": "",
}
WORK = Suite(DEFAULT, tuple(LOST), segments=0, passages=8, trials=5, ends=True)
PLACES = 8  # the number of places from which passages and filler come
MARGIN = 1.25  # factor on the expected seconds, because they were measured with other rows


@dataclass(frozen=True)
class Use:
    """The results about the use of long-range context.

    results: by the keys of `VerifyResult.measures`.
    checks: the lines of the gate. They pass or inform, and never fail.
    lost: the significant losses of the target, in words.
    notes: the reasons why a measure has no result.
    """

    results: Mapping[str, Any]
    checks: Sequence[Check]
    lost: tuple[str, ...]
    notes: Sequence[str]


def measured_use(run: Run, runners: Mapping[str, Runner], places: Sequence[Place], seed: int) -> Use:
    """Run the measures for which there is time, and return their results.

    runners: the models of the run by role. places: the texts of passages and questions.
    """
    trained, limits = run.shape.trained, Limits(grade=RESEARCH)
    corpus = corpus_of(places)
    setting = Setting(WORK, corpus, runners[TARGET], (trained, run.shape.target), trained, run.stated, limits, seed)
    grading = Grading(limits, trained, run.stated, {})
    checks, lost, notes = list[Check](), list[str](), list[str]()
    by_name = {measure.name: measure for measure in measures.of(LOST)}
    for name, words in LOST.items():
        measure = by_name[name]
        try:
            result = _result(run, runners, measure, setting, places[0])
        except ConfigError as error:
            notes.append(f"{name} was not measured: {error.message}")
            continue
        except OutOfTime as error:
            notes.append(f"{name} was not measured: {error}")
            continue
        grading = replace(grading, results={**grading.results, name: result})
        lines = measure.checks(_beyond(result, trained), grading)
        worse = [check.detail for check in lines if check.verdict == FAIL]
        lost += [f"{words}: {worse[0]}"] if worse and words else []
        checks += [check if check.verdict == PASS else replace(check, verdict=NOT_ASKED) for check in lines]
    return Use(measures.keyed(grading.results), checks, tuple(lost), notes)


def corpus_of(places: Sequence[Place]) -> Corpus:
    """Return the places as the documents of a measure. All places of one author are one document."""
    by_author: dict[int, list[Place]] = {}
    for place in places:
        by_author.setdefault(place.author, []).append(place)
    texts = list(by_author.values())
    return Corpus(
        tuple(text[0].name for text in texts),
        tuple(np.array([token for place in text for token in place.ids], dtype=np.int64) for text in texts),
        (),
        places[0].prefix,
        tuple(text[0].kind for text in texts),
    )


def seconds(run: Run, measurement: Measurement) -> float:
    """Return the expected time of a measurement with a margin, in seconds.

    A model that has not read any text yet counts with the pace of the other model.
    """
    models = {TARGET: run.target, BASELINE: run.source}
    paces = {role: model.pace for role, model in models.items() if model is not None}
    usual = next(pace for pace in paces.values() if pace.is_known)
    return MARGIN * sum(
        count * (pace if pace.is_known else usual).seconds(0, length)
        for role, pace in paces.items()
        for length, count in measurement.rows(role).items()
    )


def _result(run: Run, runners: Mapping[str, Runner], measure: Measure, setting: Setting, place: Place) -> Any:
    """Return the result of a measure. Raises: ConfigError if the texts or the memory do not allow it; OutOfTime."""
    if measure.name != "retrieval" and len(setting.corpus.names) < MIN_DOCUMENTS:
        raise ConfigError(f"it needs texts of {MIN_DOCUMENTS} authors")
    measurement = measure.prepare(setting, ())
    if measurement is None:
        raise ConfigError("these texts do not allow it")
    # If all rows of the run came from the journal, one row is read to measure the pace.
    if not run.target.pace.is_known:
        for _ in run.target.read(place.row(run.shape.short, run.shape.short), lambda tokens: tokens < 0):
            pass
    expected = seconds(run, measurement)
    if expected > run.clock.left:
        raise OutOfTime(f"it needs about {expected / 60:.0f} minutes, more than the time left")

    def done(tokens: int) -> None:
        if run.clock.left < 0:
            raise OutOfTime("the time ended")

    raw = {}
    for role, runner in runners.items():
        run.stage(f"use of distant text: {measure.name}, {role}", 0)
        raw[role] = measurement.run(runner, role, done)
    return measurement.result(raw[TARGET], raw.get(BASELINE))


def _beyond(result: Any, trained_length: int) -> Any:
    """Return the result without the answers within the trained length, which the question about short texts covers."""
    if not isinstance(result, RetrievalResult):
        return result
    return replace(result, pairs=tuple(pair for pair in result.pairs if pair.length > trained_length))

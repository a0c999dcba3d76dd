"""Whether far text is used: copies, answers and positions, in the time that is left after a model was kept.

What is surely lost lowers `keep` to `works`. It never makes a model broken, because an honest extension of a small model
may use far text less than near text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ropetool.checkpoint.certificate import DEFAULT, RESEARCH
from ropetool.errors import ConfigError
from ropetool.verification import measures
from ropetool.verification.gate import Limits
from ropetool.verification.measure import Grading, Setting, Suite
from ropetool.verification.results import FAIL, NOT_ASKED, PASS, Check
from ropetool.verification.scoring import BASELINE, TARGET, Corpus, Measurement, Runner, ignore
from ropetool.verification.verdict.deciding import Run
from ropetool.verification.verdict.places import Place

# By measure, what a model has lost that fails its check. Text behind far text costs what the third question tells already.
LOST = {"far": "copies of far text help less", "retrieval": "fewer questions about far text are answered"}
WORK = Suite(DEFAULT, (*LOST, "position"), segments=0, passages=8, trials=5, ends=True)
MARGIN = 1.25  # of the expected seconds, which were timed on other rows


def used(run: Run, runners: Mapping[str, Runner], seed: int) -> tuple[dict[str, Any], list[Check], tuple[str, ...]]:
    """Return what there was time for: results by key, checks, which only inform, and what was surely lost, in words.

    runners: the models of the run by role.
    """
    trained, limits = run.shape.trained, Limits(grade=RESEARCH)
    setting = Setting(
        WORK, corpus_of(run.places), runners[TARGET], (trained, run.shape.target), trained, run.stated, limits, seed
    )
    grading = Grading(limits, trained, run.stated, {})
    checks: list[Check] = []
    lost: list[str] = []
    for measure in measures.of(WORK.measures):
        try:
            measurement = measure.prepare(setting, ())
            if measurement is None or seconds(run, measurement) > run.clock.left:
                continue
            result = _measured(run, runners, measurement)
        except ConfigError:  # the texts, or the memory, do not allow it
            continue
        grading = replace(grading, results={**grading.results, measure.name: result})
        found = measure.checks(result, grading)
        lost += [f"{LOST[measure.name]}: {check.detail}" for check in found if check.verdict == FAIL]
        checks += [check if check.verdict == PASS else replace(check, verdict=NOT_ASKED) for check in found]
    return measures.keyed(grading.results), checks, tuple(lost)


def corpus_of(places: Sequence[Place]) -> Corpus:
    """Return the texts that were read, as the documents of a measure."""
    return Corpus(
        tuple(place.name for place in places),
        tuple(np.array(place.ids, dtype=np.int64) for place in places),
        (),
        places[0].prefix,
        tuple(place.kind for place in places),
    )


def seconds(run: Run, measurement: Measurement) -> float:
    """Return how long a measurement takes at most, by the pace of both models."""
    models = {TARGET: run.target, BASELINE: run.source}
    return MARGIN * sum(
        count * model.pace.seconds(0, length)
        for role, model in models.items()
        if model is not None
        for length, count in measurement.rows(role).items()
    )


def _measured(run: Run, runners: Mapping[str, Runner], measurement: Measurement) -> object:
    """Return the result of a measurement of both models."""
    raw = {}
    for role, runner in runners.items():
        run.stage(f"is far text used? {measurement.name}, the {role}", 0)
        raw[role] = measurement.run(runner, role, ignore)
    return measurement.result(raw[TARGET], raw.get(BASELINE))

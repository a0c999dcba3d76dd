"""A model that never looks back further than its trained length is neither publishable nor usable, however long its context.

The demo checkpoint, extended four times, and the same weights with every layer's attention cut to the trained length, which
no loss and no table tells apart from a model that reads all.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from models import copied
from verifying import remember, verify

import ropetool
from ropetool.verification.gate import GRADES, Limits
from ropetool.verification.measure import Suite
from ropetool.verification.results import FAIL, NOT_ASKED, PASS, VerifyResult
from ropetool.verification.suites import FAR, LAST_SEGMENT, RETRIEVAL
from ropetool.verification.texts import default_documents

DEMO = Path(ropetool.__file__).parent / "demo" / "model"
TRAINED, CONTEXT = 256, 1024
SUITE = Suite("proof", (LAST_SEGMENT, FAR, RETRIEVAL), segments=8, passages=16, trials=5, ends=True)


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("window") / "extended"
    return Path(ropetool.apply(ropetool.plan(DEMO, "yarn", factor=4), DEMO, place).output)


@pytest.fixture(scope="module")
def windowed(extended: Path) -> Path:
    """Mistral is Llama with a window."""
    keys = {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": TRAINED}
    return copied(extended, extended.with_name("windowed"), **keys)


def verified(target: Path, grade: str) -> VerifyResult:
    return verify(
        target, baseline=DEMO, texts=default_documents(CONTEXT), lengths=[TRAINED, CONTEXT], trained_length=TRAINED,
        suite=SUITE, limits=Limits(grade=grade), device="cpu", dtype="float32",
    )  # fmt: skip


def test_a_model_that_never_looks_back_is_neither_publishable_nor_usable(
    extended: Path, windowed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remember(monkeypatch, [DEMO])  # the baseline of both
    found = {place: verified(place, "usable") for place in (extended, windowed)}
    reads, blind = ({check.name: check for check in found[place].checks} for place in (extended, windowed))
    assert reads["far text"].verdict == PASS
    assert blind["far text"].verdict not in (PASS, NOT_ASKED)
    assert blind["retrieval, keys"].verdict == blind["copies"].verdict == FAIL
    assert reads["retrieval, keys"].verdict != FAIL
    front = next(
        p
        for p in found[windowed].measures["retrieval"][0].pairs
        if (p.length, p.depth, p.generated) == (CONTEXT, 0.0, False)
    )
    end = next(
        p
        for p in found[windowed].measures["retrieval"][0].pairs
        if (p.length, p.depth, p.generated) == (CONTEXT, 1.0, False)
    )
    assert front.hits < end.hits
    for grade in GRADES.values():
        if grade.reads_far:
            assert verified_again(found[windowed], grade.name) != PASS


def verified_again(found: VerifyResult, grade: str) -> str:
    """The verdict of the proofs alone for a grade, from the figures at hand."""
    from ropetool.verification.measures.repeats import copies_check
    from ropetool.verification.measures.retrieval import retrieval_checks

    checks = [
        copies_check(found.measures["far"], GRADES[grade]),
        *retrieval_checks(found.measures["retrieval"][0], GRADES[grade], TRAINED, True),
    ]
    verdicts = {check.verdict for check in checks}
    return PASS if verdicts <= {PASS, NOT_ASKED} else FAIL

"""The verdict as one sentence: what it names first, and which next step it gives, for every verdict and every check."""

from __future__ import annotations

import string
from dataclasses import replace
from typing import Any

import pytest
import sample

from ropetool.report.verdict import WORDS, summary, verify_json
from ropetool.verification import measures
from ropetool.verification.gate import FAR_TEXT, RATIO
from ropetool.verification.measures import cached_generation
from ropetool.verification.measures.repeats import COPIES
from ropetool.verification.measures.retrieval import RetrievalPair
from ropetool.verification.measures.rotary import ROTATION
from ropetool.verification.readback.comparing import FILES, SAME_TABLES, TABLES, WEIGHTS
from ropetool.verification.readback.terms import DRESS
from ropetool.verification.results import FAIL, KL_NAMES, NOT_RUN, PASS, UNDECIDED, Check, VerifyResult

SENTENCES = {**WORDS, **{name: words for measure in measures.every() for name, words in measure.words.items()}}
SUBJECT = "demo-yarn-8x (yarn, factor 8), measured up to 2048 tokens against demo and demo-yarn-8x.gguf,"


def said(*checks: tuple[str, str] | tuple[str, str, str], **changes: Any) -> str:
    """Return the sentence of a result with checks of these names and verdicts, and details."""
    made = tuple(Check(name, None, None, given, *(more or ("",))) for name, given, *more in checks)
    return summary(replace(sample.full(), checks=made, **changes))


def straddling(result: VerifyResult) -> Any:
    return tuple(replace(entry, verdict="undecided") if entry.length > 512 else entry for entry in result.lengths)


def test_a_pass_says_what_was_verified_for_which_grade_and_whether_the_context_is_worth_it() -> None:
    gains = f"pass: {SUBJECT} is good enough for grade research; it gains from 1024 tokens instead of 256."
    assert summary(sample.full()) == gains
    useless = tuple(replace(entry, useful=False) for entry in sample.full().lengths)
    assert summary(replace(sample.full(), lengths=useless)) == (
        f"pass: {SUBJECT} is good enough for grade research; these texts do not show a gain from more than 256 tokens."
    )
    several = tuple(replace(entry, useful=True) for entry in sample.full().lengths)
    assert "it gains from 512, 1024 and 2048 tokens instead of 256" in summary(replace(sample.full(), lengths=several))


def test_single_measurements_make_no_grade() -> None:
    assert said(("rotation", PASS), suite="custom", lengths=()) == (
        "pass: demo-yarn-8x (yarn, factor 8), measured against demo and demo-yarn-8x.gguf, passes these measurements, "
        "which give no grade."
    )
    assert "fails: " in said(("rotation", FAIL, "x"), suite="custom")
    assert "is left undecided: " in said(("position", UNDECIDED), suite="custom")


@pytest.mark.parametrize(
    ("extension", "words"),
    [
        (None, "demo-yarn-8x, measured"),
        ({"method": "abf", "factor": None, "params": {}}, "demo-yarn-8x (abf), measured"),
        ({"method": "yarn", "factor": 2.5, "params": None}, "demo-yarn-8x (yarn, factor 2.5), measured"),
    ],
)
def test_method_and_factor_are_named_as_far_as_they_are_known(extension: Any, words: str) -> None:
    assert said(("rotation", PASS), extension=extension).startswith(f"pass: {words} ")


def test_a_failure_names_the_first_check_that_fails_counts_the_others_and_gives_a_step() -> None:
    assert summary(sample.failing()) == (
        f"fail: {SUBJECT} fails for grade research: its weights differ from its source (2 of 38 tensors differ: "
        "model.layers.2.self_attn.q_proj.weight in row 7, model.norm.weight in 256 values); 3 more checks fail and 1 more "
        "did not run; next: extend its source again."
    )
    unrecorded = replace(sample.failing(), extension=None)
    assert summary(unrecorded).endswith("next: fix it, or pass --stated KEY VALUE if this is intended.")


def test_a_ratio_that_fails_names_lengths_limit_and_what_it_is_compared_with() -> None:
    ratio = replace(sample.CHECKS[2], figure=5.1e172, verdict=FAIL)
    text = summary(replace(sample.failing(), checks=(ratio,)))
    assert text.endswith(
        "fails for grade research: its perplexity at 512 and 1024 tokens is significantly more than 1.5 times the "
        "perplexity of demo without the longer context; next: a smaller factor."
    )


def test_a_lower_grade_is_a_step_only_where_its_limit_is_kept() -> None:
    ratio = replace(sample.CHECKS[2], figure=1.2, limit=1.03, verdict=FAIL)
    strict = replace(sample.full(), grade="publishable", checks=(ratio,))
    assert summary(strict).endswith("; next: a smaller factor or --grade research.")
    mild = tuple(replace(entry, upper=1.08) for entry in sample.full().lengths)
    assert summary(replace(strict, lengths=mild)).endswith("; next: a smaller factor or --grade usable.")
    assert summary(replace(strict, lengths=sample.failing().lengths)).endswith("; next: a smaller factor.")


def test_what_is_partial_names_what_is_missing_and_every_step() -> None:
    text = said(
        ("yardstick", NOT_RUN, "x"), ("lengths", NOT_RUN, "only 512 were measured"), baseline=None, against=None
    )
    assert text == (
        "partial: demo-yarn-8x (yarn, factor 8), measured up to 2048 tokens without a baseline, cannot be judged completely: "
        "no record or baseline describes it before its extension; 1 more did not run; next: --baseline SOURCE and --lengths 256,2048."
    )
    unextended = said(("lengths", NOT_RUN, "the context length does not exceed it"), context_length=256)
    assert unextended.endswith("the context length does not exceed it; next: ropetool extend TARGET.")
    unknown = said(("yardstick", NOT_RUN), ("lengths", NOT_RUN, "none"), context_length=256, baseline=None)
    assert unknown.endswith("; next: --baseline SOURCE and --trained-length N if it was trained on fewer tokens.")


def test_undecided_losses_want_documents_and_undecided_answers_want_trials() -> None:
    """More text does not decide what too few trials leave open, nor the other way round."""
    lengths = straddling(sample.full())
    text = said(("ratio", UNDECIDED), lengths=lengths, grade="usable")
    assert "grade usable: these texts are too few to show that its perplexity at 1024 and 2048 tokens" in text
    assert text.endswith("next: --text with more documents.")
    answers = said(("retrieval, keys", UNDECIDED), ("retrieval, keys, written", UNDECIDED))
    assert "these trials are too few to show that it answers as well from long texts as from 256 tokens" in answers
    assert answers.endswith("; 1 more is undecided; next: --trials 32.")  # there were 16
    passages = said(("position", UNDECIDED), suite="quick")
    assert passages.endswith("next: --suite standard.")
    assert said(("copies", UNDECIDED), suite="standard").endswith("next: --suite full.")
    assert said(("copies", UNDECIDED), suite="full").endswith("next: --text with more documents.")
    every = said(("ratio", UNDECIDED), ("retrieval, keys", UNDECIDED), ("position", UNDECIDED), suite="quick")
    assert every.endswith("; 2 more are undecided; next: --text with more documents, --trials 32 and --suite standard.")


@pytest.mark.parametrize(("disagreeing", "trials"), [(0, 32), (16, 32), (40, 64), (60, 128)])
def test_the_trials_asked_for_are_as_many_as_are_likely_to_decide(disagreeing: int, trials: int) -> None:
    """Grade usable allows 0.10 of the answers: (1.645 + 0.842) * sqrt(disagreeing / 80 / (5 * trials)) has to be within."""
    pair = RetrievalPair(
        2048, None, False, 80, 60, 60, disagreeing // 2, disagreeing - disagreeing // 2, 0.0, -0.2, 0.2
    )
    grid = replace(sample.retrieval(), pairs=(pair,))  # 16 trials at each of 5 depths
    text = said(("retrieval, keys", UNDECIDED), measures={"retrieval": (grid,)}, grade="usable")
    assert text.endswith(f"; next: --trials {trials}.")
    enough, fewer = (2.487 * (disagreeing / 80 / (5 * count)) ** 0.5 for count in (trials, trials / 2))
    assert enough <= 0.1
    assert fewer > 0.1 or trials == 32


def test_a_fail_goes_before_what_is_missing_and_that_before_what_is_undecided() -> None:
    checks = [("position", UNDECIDED), ("yardstick", NOT_RUN), ("rotation", FAIL, "off"), ("tables", PASS)]
    starts = []
    while checks[1:]:
        starts.append(said(*checks).partition(":")[0])  # type: ignore[arg-type]
        checks = [
            one for one in checks if one[1] != {"fail": FAIL, "partial": NOT_RUN, "undecided": UNDECIDED}[starts[-1]]
        ]
    assert starts == ["fail", "partial", "undecided"]
    assert "; 1 more did not run and 1 more is undecided; " in said(
        ("position", UNDECIDED), ("yardstick", NOT_RUN), ("rotation", FAIL, "off")
    )


def test_a_check_without_words_is_told_by_its_figures() -> None:
    unknown = Check("new measure", 512.0, 2048.0, FAIL, "lower bound of a thing")
    text = summary(replace(sample.full(), checks=(unknown,)))
    assert "new measure is outside its limit (512, limit 2048; lower bound of a thing)" in text
    assert said(("new measure", UNDECIDED)).endswith("new measure is undecided; next: --text with more documents.")


def test_a_long_detail_is_cut_to_a_sentence() -> None:
    text = said(("files", FAIL, "key " * 500))
    assert len(text) < 500
    assert "key ...)" in text
    assert "(one clause ...)" in said(("files", FAIL, f"one clause; {'and another ' * 20}"))
    assert "aaa ...)" in said(("files", FAIL, "a" * 500))


@pytest.mark.parametrize("name", SENTENCES)
def test_every_word_of_every_check_can_be_said(name: str) -> None:
    for given, words in SENTENCES[name].items():
        text = said((name, given, "the detail"))
        named = [field for _, field, _, _ in string.Formatter().parse(words.text + words.step) if field]
        assert "{" not in text
        assert words.text.partition("{")[0] in text
        assert ("the detail" in text) == ("detail" in named)
        assert ("; next: " in text) == bool(words.step)


def test_every_check_that_can_fail_is_told_in_words() -> None:
    makers = [
        SAME_TABLES,
        TABLES,
        WEIGHTS,
        FILES,
        DRESS,
        ROTATION,
        RATIO,
        COPIES,
        cached_generation.NAME,
        "lm-eval",
        *KL_NAMES,
    ]
    assert [name for name in makers if FAIL not in SENTENCES[name]] == []
    assert {UNDECIDED, NOT_RUN} <= SENTENCES[FAR_TEXT].keys()


def test_the_sentence_is_in_the_json_behind_the_verdict() -> None:
    data = verify_json(sample.failing())
    assert list(data)[:3] == ["schema", "verdict", "summary"]
    assert (data["verdict"], data["summary"]) == ("fail", summary(sample.failing()))
    assert {key: data[key] for key in sample.failing().to_json()} == sample.failing().to_json()

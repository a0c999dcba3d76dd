"""The gate on two files against each other: limits from measured floors, planted damage, and honest exports of many seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from loading import script
from verifying import remember

from ropetool import machine
from ropetool.gguf_model.outtypes import NAMES, OUTTYPES
from ropetool.verification import floors
from ropetool.verification.floors import Floor, KlFigures
from ropetool.verification.kl_gate import KL, RARE, TAIL, WORST, kl_checks
from ropetool.verification.measures.divergence import WINDOW
from ropetool.verification.results import FAIL, NOT_RUN, PASS, DivergenceResult, DivergenceSpan, Estimate, Noise
from ropetool.verification.scoring import Logits

CACHE = machine.cache()  # the user's, before the tests get one of their own
AGAIN = "run scripts/floors/kl_floors.py"
FLOAT32 = Floor(KlFigures(4e-8, 6e-8, 5e-8), KlFigures(4e-8, 6e-8, 5e-8))
ALLOWED = Floor(KlFigures(1e-6, 1e-5, 3e-6), KlFigures(2e-6, 2e-5, 4e-6))


def span(mean: float, p99: float | None = None, window: float | None = None) -> DivergenceSpan:
    about = Estimate(mean, mean, mean, 0.0, 4, 100, 4.0, 3.0)
    return DivergenceSpan(
        0, 100, about, mean, mean if p99 is None else p99, mean, 1.0, 0.1, 100, mean if window is None else window, 32
    )


def result(
    within: DivergenceSpan, beyond: DivergenceSpan | None = None, rare: DivergenceSpan | None = None
) -> DivergenceResult:
    return DivergenceResult("other", 512, 4, within, beyond, (), rare, "")


def verdicts(found: DivergenceResult, own: DivergenceResult | None = None, **options: Any) -> dict[str, str]:
    allowed = options.pop("allowed", ALLOWED)
    return {check.name: check.verdict for check in kl_checks(found, own, allowed, **options)}


GOOD = {KL: PASS, TAIL: PASS, WORST: PASS}


@pytest.mark.parametrize(
    ("found", "failing"),
    [
        (result(span(9e-7), span(9e-7)), None),
        (result(span(1.1e-6), span(1e-8)), KL), (result(span(1e-8), span(1.1e-6)), KL),
        (result(span(1e-8, p99=1.1e-5), span(1e-8)), TAIL), (result(span(1e-8), span(1e-8, p99=1.1e-5)), TAIL),
        (result(span(1e-8, window=3.1e-6)), WORST), (result(span(1e-8), span(1e-8, window=3.1e-6)), WORST),
    ],
)  # fmt: skip
def test_each_figure_has_its_limit_within_and_beyond(found: DivergenceResult, failing: str | None) -> None:
    assert verdicts(found) == {**GOOD, **({failing: FAIL} if failing else {})}


def test_rare_tokens_have_a_limit_of_their_own() -> None:
    assert verdicts(result(span(1e-8), rare=span(1.9e-6))) == {**GOOD, RARE: PASS}
    assert verdicts(result(span(1e-8), rare=span(2.1e-6))) == {**GOOD, RARE: FAIL}


def test_the_limits_are_named_with_the_place() -> None:
    by_name = {check.name: check for check in kl_checks(result(span(2e-6)), None, ALLOWED)}
    assert (by_name[KL].figure, by_name[KL].limit) == (2e-6, 1e-6)
    assert (by_name[TAIL].limit, by_name[WORST].limit) == (1e-5, 3e-6)
    assert "from position 32" in by_name[WORST].detail
    assert "all within the trained length" in by_name[KL].detail


def test_a_limit_of_the_user_s_moves_the_others_in_proportion() -> None:
    assert verdicts(result(span(9e-4, p99=9e-3, window=2.9e-3)), max_kl=1e-3) == GOOD
    assert verdicts(result(span(9e-4, p99=1.1e-2)), max_kl=1e-3) == {**GOOD, TAIL: FAIL}
    assert verdicts(result(span(9e-4, p99=5)), max_kl=1e-3, allowed=None) == {KL: PASS}


def test_types_that_nobody_measured_are_not_judged() -> None:
    assert verdicts(result(span(1e-9)), allowed=None) == {KL: NOT_RUN}
    (check,) = kl_checks(result(span(1e-9)), None, None)
    assert "pass the unextended GGUF file of the same type as --baseline, or pass --max-kl" in check.detail


def test_an_unextended_pair_says_what_its_types_cost() -> None:
    """Also where the floors do not know them."""
    own = result(span(0.06, 0.3, 0.1), rare=span(0.1))
    good = {**GOOD, "KL beyond": PASS}
    assert verdicts(result(span(0.11), span(0.2)), own, allowed=None) == good
    assert verdicts(result(span(0.13), span(0.2)), own) == {**good, KL: FAIL}
    assert verdicts(result(span(0.06), span(0.13)), own) == {**good, "KL beyond": FAIL}
    assert verdicts(result(span(0.06), span(0.1, p99=1.3)), own) == {**good, TAIL: FAIL}
    assert verdicts(result(span(0.06), span(0.1, window=0.41)), own) == {**good, WORST: FAIL}
    assert verdicts(result(span(0.06), span(0.1), span(0.21)), own) == {**good, RARE: FAIL}


# --- the checkpoint's own noise


def test_the_noise_of_the_checkpoint_raises_the_limits_four_times() -> None:
    own = result(span(1e-7, p99=5e-7, window=2e-7), span(2e-7), span(3e-7))
    checks = kl_checks(
        result(span(7e-7)), None, FLOAT32, noise=Noise((own, result(span(1e-8))), 0, 100, False, gelu=True)
    )
    limits = {check.name: check.limit for check in checks}
    assert limits[KL] == pytest.approx(8e-7)
    assert limits[TAIL] == pytest.approx(2e-6)
    assert limits[WORST] == pytest.approx(8e-7)
    assert {check.verdict for check in checks} == {PASS}
    assert (
        "ggml's GELU table, which rounds to float16, changes the checkpoint itself by 2e-07 nats per token"
        in checks[0].detail
    )


def test_noise_lowers_no_limit_and_raises_none_beyond_its_bound() -> None:
    def limits(mean: float) -> dict[str, float | None]:
        own = result(span(mean, p99=10 * mean), rare=span(mean))
        found = kl_checks(result(span(1e-9), rare=span(1e-9)), None, FLOAT32, noise=Noise((own,), 0, 100, False))
        return {check.name: check.limit for check in found}

    text, rare = FLOAT32.text, FLOAT32.rare
    assert limits(1e-12) == {KL: text.mean, TAIL: text.p99, WORST: text.window, RARE: rare.mean}
    assert limits(5e-7)[KL] == pytest.approx(2e-6)
    assert limits(5e-3)[KL] == pytest.approx(2e-6)
    assert limits(5e-3)[TAIL] == pytest.approx(text.p99 * 2e-6 / text.mean)
    rare_alone = floors.with_noise(FLOAT32, [Floor(KlFigures(1e-8, 1e-8, 1e-8), KlFigures(5e-2, 1.0, 1.0))])
    assert rare_alone.text == FLOAT32.text
    assert rare_alone.rare.mean == pytest.approx(rare.mean * 2e-6 / text.mean)
    assert (
        floors.with_noise(ALLOWED, [Floor(KlFigures(1e-3, 1e-3, 1e-3), KlFigures(1e-3, 1e-3, 1e-3))]).text.p99 == 1e-5
    )


@pytest.mark.parametrize(("left_out", "words"), [(True, "which are left out"), (False, "too many to leave out")])
def test_routing_is_named(left_out: bool, words: str) -> None:
    noise = Noise((result(span(1e-9)),), 12, 400, left_out)
    check = kl_checks(result(span(1e-3)), None, FLOAT32, noise=noise)[0]
    assert check.verdict == FAIL
    assert f"rounding selects other experts for 12 of 400 tokens, {words}" in check.detail


# --- the floors


def test_every_type_that_can_be_written_has_a_limit() -> None:
    for name in (name for name in [*NAMES, "mxfp4_moe"] if name != "auto"):
        allowed = floors.limit([name], 4)
        assert allowed is not None, name
        assert 0 < allowed.text.mean <= allowed.text.p99, name
        assert floors.of_dtype(OUTTYPES[name].dtype) in OUTTYPES, name
    assert floors.limit(["f16", "nothing"], 4) is None
    assert floors.of_dtype("Q4_K").startswith("q4_k")


def test_a_limit_is_four_times_the_worse_model() -> None:
    entry = floors.table()["floors"]["f16"]
    allowed = floors.limit(["f16"], 4)
    assert allowed is not None
    for part, figures in (("text", allowed.text), ("rare", allowed.rare)):
        worst = [max(entry[model][part][place] for model in ("demo", "second")) for place in range(3)]
        found = (figures.mean, figures.p99, figures.window)
        assert found == pytest.approx([4 * (value + 1e-8) for value in worst])


def test_noise_adds_up_over_kinds_and_layers() -> None:
    one, other, both = (floors.limit(kinds, 4) for kinds in (["q8_0"], ["bf16"], ["q8_0", "bf16"]))
    deep = floors.limit(["q8_0"], 36)
    assert one is not None
    assert other is not None
    assert both is not None
    assert deep is not None
    assert both.text.mean == pytest.approx(one.text.mean + other.text.mean, rel=1e-4)
    assert deep.text.mean == pytest.approx(3 * one.text.mean, rel=1e-4)
    assert floors.limit(["q8_0"], 1) == one
    assert floors.layers_of(["a.weight"]) == 1
    assert floors.layers_of(["model.layers.0.q.weight", "model.layers.11.q.weight", "model.layers.11.k.weight"]) == 2


def test_llama_3_8b_is_within_the_limits_of_its_layers() -> None:
    """Mean KL by the table of tools/perplexity/README.md of llama.cpp, with an importance matrix."""
    published = {"q8_0": 0.0014, "q6_k": 0.0055, "q5_k_m": 0.011, "q4_k_m": 0.031, "q4_0": 0.072, "q2_k": 0.45}
    for name, mean in published.items():
        allowed = floors.limit([name], 32)
        assert allowed is not None
        assert mean < allowed.text.mean < 8 * mean, name


@pytest.mark.parametrize("name", ["demo", "second"])
def test_the_table_is_of_this_model(name: str) -> None:
    """Of the second model where it was made; by what it would be made, it is named in any case."""
    measuring, stated = script("floors/kl_floors.py"), floors.table()["models"][name]
    if name == "second":
        place = script("train_demo_model.py").second_place(CACHE)
        assert stated["recipe"] == place.name, AGAIN
        if not place.is_dir():
            pytest.skip("`python scripts/train_demo_model.py --second` makes it in 8 minutes of one core")
    assert stated == measuring.about(measuring.models(CACHE)[name]), AGAIN


# --- the demo checkpoint


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    pytest.importorskip("llama_cpp")
    measuring = script("floors/kl_floors.py")
    made = measuring.Pool(measuring.models(CACHE)["demo"], tmp_path_factory.mktemp("pool"))
    with pytest.MonkeyPatch.context() as patch:
        remember(patch, [made.export("q8_0")])  # which several tests read
        yield made


@pytest.mark.parametrize("outtype", ["f16", "bf16", "q8_0"])
def test_a_sample_of_the_floors_is_measured_again(outtype: str, pool: Any) -> None:
    found = script("floors/kl_floors.py").figures(pool.of_type(outtype))
    stated = floors.table()["floors"][outtype]["demo"]
    for part in ("text", "rare"):
        assert found[part] == pytest.approx(stated[part], rel=0.25), part


class Changed:
    """A runner that reads other tokens, or gives other logits."""

    def __init__(
        self,
        runner: Any,
        ids: Callable[[Sequence[int]], Sequence[int]] = list,
        logits: Callable[[int, Logits], Logits] = lambda start, piece: piece,
    ) -> None:
        self.prefix, self.description, self._runner, self._ids, self._change = (
            runner.prefix, "changed", runner, ids, logits,
        )  # fmt: skip

    def logits(self, ids: Sequence[int]) -> Iterator[tuple[int, Logits]]:
        for start, piece in self._runner.logits(self._ids(ids)):
            yield start, self._change(start, piece.copy())


def failing(found: DivergenceResult, kind: str) -> set[str]:
    return {check.name for check in kl_checks(found, None, floors.limit([kind], 4)) if check.verdict == FAIL}


def test_a_span_of_positions_that_is_broken_is_found(pool: Any) -> None:
    """Half a window of 2,048 positions: too little for the mean of an eight-bit file, and for its 99th percentile."""

    def broken(start: int, piece: Logits) -> Logits:
        for position in range(1200, 1200 + WINDOW // 2):
            if start <= position < start + len(piece):
                piece[position - start] *= 0.8
        return piece

    honest = pool.of_type("q8_0")
    assert failing(honest, "q8_0") == set()
    with script("floors/kl_floors.py").closing(
        script("floors/kl_floors.py").LlamaRunner(pool.export("q8_0"), device="cpu")
    ) as target:
        found = pool.against(Changed(target, logits=broken))
    assert failing(found, "q8_0") == {WORST}


def test_rows_of_tokens_that_no_text_shows_are_read(pool: Any) -> None:
    """Ten rows of the embedding exchanged, of tokens that the rows of text do not have."""
    honest = pool.against(pool.reference)
    assert honest.rare is not None
    assert honest.rare.mean.mean == 0
    shown = {token for row in pool.rows()[0] for token in row}
    rare = [token for token in range(2048) if token not in shown][:10]
    swapped = {**dict(zip(rare, [*rare[1:], rare[0]], strict=True))}
    found = pool.against(Changed(pool.reference, ids=lambda ids: [swapped.get(token, token) for token in ids]))
    assert found.within.mean.mean == 0
    assert failing(found, "f16") == failing(found, "q8_0") == {RARE}

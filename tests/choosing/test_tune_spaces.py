"""What the vectors of each space mean: against formulas written here, and as plans of the demo checkpoint."""

from __future__ import annotations

import math
from pathlib import Path

import configs
import numpy as np
import pytest
import torch
from models import write_config
from transformers import Qwen3Config, Qwen3ForCausalLM

import ropetool
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.errors import LossyExport, UnknownName
from ropetool.lab.tuning.planning import Planner
from ropetool.lab.tuning.points import Ground, Point
from ropetool.lab.tuning.spaces import SPACES, get

DEMO = Path(ropetool.__file__).parent / "demo" / "model"
LENGTH, FACTOR, DIM = 256, 4.0, 64


def planner(source: Path = DEMO, target: int = 1024, runtimes: tuple[str, ...] = ()) -> Planner:
    rope = ropetool.inspect(source).rope
    assert rope is not None
    return Planner(HfCheckpoint.open(source), rope, target, None, runtimes)


def ground(name: str) -> Ground:
    return planner().ground(get(name))


def base() -> list[float]:
    return [10000.0 ** (-2 * i / DIM) for i in range(DIM // 2)]


def yarn_divisors(fast: float, slow: float, factor: float) -> list[float]:
    """YaRN's ramp over pair indices, without rounding its ends, as its paper and its repository have it."""
    low, high = (DIM * math.log(LENGTH / (beta * 2 * math.pi)) / (2 * math.log(10000.0)) for beta in (fast, slow))
    low, high = max(low, 0), min(high, DIM - 1)
    found = []
    for i in range(DIM // 2):
        kept = 1 - min(max((i - low) / (high - low), 0), 1)
        found.append(1 / (kept + (1 - kept) / factor))
    return found


def divisors(point: Point) -> np.ndarray:
    return np.array(point.params["long_factor"])


def test_the_ground_is_the_trained_table_and_the_default_of_extend() -> None:
    found = ground("yarn")
    assert np.allclose(found.inv_freq, base(), rtol=1e-12)
    assert (found.length, found.factor) == (LENGTH, FACTOR)
    assert found.attention_factor == pytest.approx(0.1 * math.log(4) + 1)
    plan = ropetool.plan(DEMO, "yarn", target_length=1024)
    assert plan.target is not None
    table = plan.target.entries["full_attention"].table
    assert table is not None
    assert np.allclose(found.inv_freq / found.divisors, table.at(1024).inv_freq, rtol=1e-12)


@pytest.mark.parametrize("name", SPACES)
def test_every_space_begins_with_points_that_can_be_planned(name: str) -> None:
    space, made = get(name), planner()
    begin = made.ground(space)
    starts = space.starts(begin)
    assert starts
    rng = np.random.default_rng(0)
    for vector in (*starts, *(rng.random(space.size(begin)) for _ in range(3))):
        assert vector.shape == (space.size(begin),)
        assert ((vector >= 0) & (vector <= 1)).all()
        plan = made.plan(space, begin, vector)
        assert plan.max_position_embeddings == 1024
        assert space.point(begin, vector).words


def test_an_original_length_twice_as_long_is_both_betas_halved() -> None:
    starts = get("yarn").starts(ground("yarn"))
    points = [get("yarn").point(ground("yarn"), start) for start in starts]
    stated = [(p.params["beta_fast"], p.params["beta_slow"]) for p in points]
    assert stated == [(32, 1), (16, 0.5), (8, 1), (4, 0.5)]
    doubled = yarn_divisors(16.0, 0.5, FACTOR)
    longer = [1 / (k + (1 - k) / FACTOR) for k in _kept_of_length(2 * LENGTH)]
    assert np.allclose(doubled, longer, rtol=1e-12)


def _kept_of_length(length: int) -> list[float]:
    low, high = (DIM * math.log(length / (beta * 2 * math.pi)) / (2 * math.log(10000.0)) for beta in (32, 1))
    low, high = max(low, 0), min(high, DIM - 1)
    return [1 - min(max((i - low) / (high - low), 0), 1) for i in range(DIM // 2)]


def test_another_factor_goes_as_a_list_of_the_same_formula() -> None:
    vector = np.array([0.8, 1 / 3, 0.8, 0.25])
    point = get("yarn").point(ground("yarn"), vector)
    factor = FACTOR * 3 ** ((0.8 - 0.6) / 0.4)
    assert point.method == "longrope"
    assert np.allclose(divisors(point), yarn_divisors(32.0, 1.0, factor), rtol=1e-3)  # numbers of 4 and 5 digits


def test_another_factor_keeps_the_attention_factor_of_the_target_and_says_so() -> None:
    begin, made = ground("yarn"), planner()
    for unit, factor in (0.8, FACTOR * 3**0.5), (0.0, FACTOR * 0.75):
        vector = np.array([unit, 1 / 3, 0.8, 0.25])
        target = made.plan(get("yarn"), begin, vector).target
        assert target is not None
        attention_factor = target.entries["full_attention"].attention_factor
        assert attention_factor == pytest.approx(0.1 * math.log(FACTOR) + 1, rel=1e-6)
        assert get("yarn").point(begin, vector).words == (
            f"yarn's table of factor {factor:.5g}, beta_fast 32, beta_slow 1, ramp dims, with the attention factor of 4 "
            f"({attention_factor:.5g}), as a list"
        )
    own = get("yarn").point(begin, np.array([0.5, 1 / 3, 0.8, 0.25]))
    assert own.words == "yarn, factor 4, beta_fast 32, beta_slow 1, ramp dims"


def test_a_straight_ramp_between_the_ends_of_yarn_is_yarn() -> None:
    begin = ground("ramp")
    for start, betas in zip(get("ramp").starts(begin), ((32.0, 1.0), (16.0, 0.5), (8.0, 1.0)), strict=True):
        assert np.allclose(divisors(get("ramp").point(begin, start)), yarn_divisors(*betas, FACTOR), rtol=1e-5)


def test_no_divisor_of_pairs_is_below_the_one_before() -> None:
    begin, rng = ground("pairs"), np.random.default_rng(3)
    for _ in range(5):
        found = divisors(get("pairs").point(begin, rng.random(32)))
        assert (np.diff(found) >= 0).all()
        assert found.min() >= 1
        assert found.max() <= 2 * FACTOR * (1 + 1e-5)
    interpolation = get("pairs").point(begin, get("pairs").starts(begin)[-1])
    assert np.allclose(divisors(interpolation), FACTOR, rtol=1e-5)
    ramps = [get("pairs").point(begin, start) for start in get("pairs").starts(begin)[1:3]]
    for ramp, betas in zip(ramps, ((16.0, 0.5), (8.0, 1.0)), strict=True):
        assert np.allclose(divisors(ramp), yarn_divisors(*betas, FACTOR), rtol=1e-5)
    ntk = get("pairs").point(begin, get("pairs").starts(begin)[3])
    assert np.allclose(divisors(ntk), [FACTOR ** (2 * i / (DIM - 2)) for i in range(DIM // 2)], rtol=1e-5)


def test_gains_are_one_in_the_middle_and_none_is_beyond_its_bounds() -> None:
    begin = ground("pair-gain")
    flat = get("pair-gain").point(begin, np.full(8, 0.5))
    assert flat.pair_gains == (1.0,) * 32
    ends = get("pair-gain").point(begin, np.array([0.0] + [0.5] * 6 + [1.0]))
    assert (ends.pair_gains[0], ends.pair_gains[-1]) == (0.5, 2.0)
    heads = get("head-band-gain").point(ground("head-band-gain"), np.full(4 * 4 * 3, 0.5))
    assert heads.head_gains == (((((1.0,) * 3),) * 4),) * 4


def test_an_unknown_space_is_named_with_those_there_are() -> None:
    with pytest.raises(UnknownName, match=r"unknown search space 'pear'.*known are yarn, ramp"):
        get("pear")


def test_a_space_that_a_runtime_cannot_hold_is_refused_with_those_that_it_can(tmp_path: Path) -> None:
    made = planner(write_config(tmp_path / "model", configs.config("cohere2", "v4")), 65536, ("sglang",))
    with pytest.raises(LossyExport, match="no file can store a point of space pairs for sglang: ") as found:
        made.opened(get("pairs"))
    assert found.value.try_ == "--space yarn; possible are yarn"
    begin = made.opened(get("yarn"))
    assert made.possible(get("yarn"), begin, get("yarn").starts(begin)[0])
    assert not made.possible(get("yarn"), begin, np.array([0.9, 0.5, 0.5, 0.25]))  # another factor goes as a list


def test_heads_that_share_a_norm_have_no_gains_of_their_own(tmp_path: Path) -> None:
    torch.manual_seed(0)
    sizes = {"vocab_size": 60, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "head_dim": 32}
    config = Qwen3Config(**sizes, num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=128)
    Qwen3ForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(LossyExport, match=r"space head-gain: .*the 2 heads share .*q_norm.weight") as found:
        planner(tmp_path, 512).opened(get("head-gain"))
    assert "pair-gain" in found.value.try_
    assert "head-band-gain" not in found.value.try_


@pytest.mark.parametrize("family", ["deepseek_v2", "deepseek_v3", "minicpm3", "glm4_moe_lite", "youtu"])
def test_no_point_loses_what_the_default_puts_into_the_softmax_scale(family: str, tmp_path: Path) -> None:
    """YaRN of these families multiplies the whole score by (0.1 ln 4 + 1)^2, and a list by nothing."""
    known = {**configs.FAMILIES, **configs.MORE_FAMILIES}
    config = configs.config(family, "v4") if family in known else {"model_type": family, **configs.EXPORTED[family]}
    made = planner(write_config(tmp_path / "model", config), 2048)
    yarn = get("yarn")
    begin = made.opened(yarn)
    plan = made.plan(yarn, begin, yarn.starts(begin)[1])
    assert plan.softmax_multiplier == pytest.approx((0.1 * math.log(4) + 1) ** 2)
    assert not made.possible(yarn, begin, np.array([0.9, 0.5, 0.5, 0.25]))  # another factor goes as a list
    for name in "ramp", "pairs":
        with pytest.raises(
            LossyExport, match=rf"space {name}: YaRN multiplies the softmax scale of this model by 1.296"
        ) as found:
            made.opened(get(name))
        assert found.value.try_.startswith("--space yarn")
        assert not {"ramp", "pairs"} & {*found.value.try_.replace(",", "").split()}

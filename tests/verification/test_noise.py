"""The noise of a checkpoint, by runners whose logits are made up: which tokens are left out, and when none are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest

from ropetool.verification.measures import noise
from ropetool.verification.measures.divergence import diverge
from ropetool.verification.results import DivergenceResult, Noise
from ropetool.verification.scoring import Logits, ignore

LENGTH, VOCABULARY = 200, 50
ROWS = [list(range(row, row + LENGTH)) for row in range(2)]
LOGITS = np.random.default_rng(0).standard_normal((LENGTH, VOCABULARY)).astype(np.float32)
MOVED = np.random.default_rng(1).standard_normal((LENGTH, VOCABULARY)).astype(np.float32)


class Fake:
    """A runner whose logits are moved a little everywhere, and far at some places."""

    prefix: tuple[int, ...] = ()
    description = "fake"

    def __init__(self, amount: float = 0.0, places: Sequence[int] = (), padding: int = 0) -> None:
        self._logits = LOGITS + np.float32(amount) * MOVED
        self._logits[list(places)] = np.roll(self._logits[list(places)], 1, axis=1)
        self._logits = np.pad(self._logits, ((0, 0), (0, padding)), constant_values=-50.0)

    def logits(self, ids: Sequence[int]) -> Iterator[tuple[int, Logits]]:
        for start in range(0, LENGTH, 64):
            yield start, self._logits[start : start + 64].copy()


def measured(target: Any, noisy: Sequence[Any], routed: bool) -> tuple[DivergenceResult, Noise]:
    reference: Any = Fake()
    compare = partial(diverge, reference, rows=ROWS, trained_length=LENGTH, documents=[0, 1], done=ignore, seed=None)
    return noise.with_noise(compare, compare(target), reference, target, noisy, routed)


@pytest.mark.parametrize("padding", [0, 7])
def test_tokens_that_one_of_both_runs_moves_far_are_left_out(padding: int) -> None:
    target: Any = Fake(1e-6, [3, 70, 199], padding)
    found, own = measured(target, [Fake(1e-5, [3, 120]), Fake(-1e-5, [70, 199])], routed=True)
    assert (own.tied, own.tokens, own.left_out) == (8, 2 * LENGTH, True)
    assert found.within.mean.mean < 1e-9
    assert all(run.within.mean.mean < 1e-9 for run in own.runs)


def test_a_token_that_no_run_moves_counts() -> None:
    found, own = measured(Fake(1e-6, [3, 70]), [Fake(1e-5, [3]), Fake(-1e-5, [3])], routed=True)
    assert own.tied == 2
    assert found.within.mean.mean > 1e-3


def test_without_experts_every_token_counts() -> None:
    found, own = measured(Fake(1e-6, [3]), [Fake(1e-5, [3])], routed=False)
    assert (own.tied, own.left_out) == (0, False)
    assert found.within.mean.mean > 1e-3
    assert own.runs[0].within.mean.mean > 1e-3


@pytest.mark.parametrize("count", [30, 150, LENGTH])
def test_where_rounding_moves_too_many_tokens_none_is_left_out(count: int) -> None:
    found, own = measured(Fake(1e-6, [3]), [Fake(1e-5, range(count))], routed=True)
    assert (own.tied, own.left_out) == (2 * count, False)
    assert found.within.mean.mean > 1e-3


def test_the_hooks_are_gone_afterwards() -> None:
    """GELU is rounded as ggml's table has it, inputs of matrices are shifted, and then the model is as before."""
    torch = pytest.importorskip("torch")
    from ropetool.verification.runners.torch_noise import is_gelu, noisy

    gelu, silu = torch.nn.GELU(approximate="tanh"), torch.nn.SiLU()
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), gelu, torch.nn.Linear(8, 4), silu)
    inputs = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
    before = model(inputs)
    with noisy(model, 2.0**-16):
        one = model(inputs)
    with noisy(model, -(2.0**-16)):
        other = model(inputs)
    assert torch.equal(model(inputs), before)
    assert not torch.equal(one, other)
    with noisy(gelu, 0.0):
        rounded = gelu(inputs)
    assert torch.equal(rounded, torch.nn.functional.gelu(inputs.half().float(), approximate="tanh").half().float())
    assert (is_gelu(gelu), is_gelu(silu)) == (True, False)

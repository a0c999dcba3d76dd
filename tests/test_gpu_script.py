"""scripts/gpu in small, on the CPU: that it runs where no card is, what fails a row, and what it says where something is missing."""

from __future__ import annotations

import runpy
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from forks import run_python

from ropetool.verification.runners.torch_runner import TorchRunner

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "gpu"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True)


@pytest.fixture(scope="module")
def gpu() -> Iterator[dict[str, Any]]:
    """Its names, as a module without a suffix gives them."""
    path = list(sys.path)
    yield runpy.run_path(str(SCRIPT), run_name="gpu")
    sys.path[:] = path


# Each figure is measured once and at shorter lengths, and commands that need torch run in the process that has it.
SMALLER = """
import runpy, sys
from dataclasses import replace
from running import run
names = runpy.run_path(sys.argv[0], run_name="gpu")
own = names["ropetool"]
def command(*arguments, codes=(0,)):
    if arguments[0] == "extend":
        return own(*arguments, codes=codes)
    done = run(*arguments)
    assert done.code in codes, done.err
    return done.out
names["main"].__globals__.update(ROUNDS=1, SMALL=[replace(names["SMALL"][0], lengths=(512, 1024))], ropetool=command)
names["main"]()
"""


def test_in_small_it_passes_on_the_cpu() -> None:
    done = run_python(f"import sys; sys.argv[0] = {str(SCRIPT)!r}\n{SMALLER}", "--small", "--device", "cpu")
    assert done.code == 0, done.out + done.err
    for row in ("demo x8 in bfloat16", "--device map", "halved 2 times", "verify --suite quick", "5M at 1,024 tokens"):
        assert row in done.out
        assert row in done.err  # as it is measured
    assert "failed" not in done.out


@pytest.mark.skipif(torch.cuda.is_available(), reason="a card is here")
def test_without_a_card_it_says_so() -> None:
    done = run()
    assert "torch finds no CUDA card here\nTry: --small --device cpu" in done.stderr


def test_losses_beyond_a_limit_fail_their_row_and_others_go_on(gpu: dict[str, Any]) -> None:
    rows, losses = gpu["Rows"](), np.zeros((1, 4))

    def check() -> Iterator[Any]:
        yield gpu["near"]("alike", losses + 0.1, losses, 0.2)
        yield gpu["near"]("apart", losses - 0.3, losses, 0.2)
        yield gpu["near"]("no numbers", losses * np.nan, losses, 0.2)
        raise RuntimeError("CUDA error:\n an illegal memory access")

    rows.take(check())
    rows.take(iter([gpu["Row"]("after", "1 s")]))
    assert [row.passed for row in rows.found] == [True, False, False, False, True]
    assert rows.failed == 3
    text = gpu["table"](rows.found)
    assert "| **failed**: apart, largest difference of a loss | 3.0e-01 nats | 0.2 |" in text
    assert "| **failed**: CUDA error: an illegal memory access | - | - |" in text


def test_what_a_card_holds_is_checked(gpu: dict[str, Any]) -> None:
    def passed(weights: int, beside: int) -> list[bool]:
        return [row.passed for row in gpu["loading"](gpu["WHOLE"][1], 16 * 10**9, weights, beside)]

    assert passed(16 * 10**9, 10**9) == [True, True]
    assert passed(16 * 10**9, 16 * 10**9) == [True, False]  # read into memory, then moved
    assert passed(32 * 10**9, 10**9) == [False, True]  # read in another type


def test_memory_of_the_process_itself_is_seen(gpu: dict[str, Any]) -> None:
    with gpu["host_memory"]() as most:
        held = np.ones(2**25)  # 256 MiB, written
        for _ in range(500):
            if most[0] > held.nbytes / 2:
                break
            threading.Event().wait(0.02)
    assert held.nbytes / 2 < most[0] < 2 * held.nbytes


@pytest.mark.parametrize("full", [True, False])
def test_a_row_on_too_small_a_card_is_one_that_was_halved(gpu: dict[str, Any], full: bool) -> None:
    told: list[str] = []
    runner = TorchRunner(gpu["DEMO"], dtype="float64", report=told.append)
    model, limits = runner.model, []

    class Card:
        most = 1000

        def forget(self) -> None: ...

        @contextmanager
        def at_most(self, nbytes: int) -> Iterator[None]:
            limits.append(nbytes)
            whole = type(model).hidden

            def hidden(ids: Any, first: int, chunk: int) -> Any:
                if full and chunk > 1024:
                    raise torch.OutOfMemoryError("CUDA out of memory.")
                return whole(model, ids, first, chunk)

            model.hidden = hidden  # type: ignore[method-assign]
            yield
            del model.hidden

    crowded = gpu["crowded"]
    crowded.__globals__.update(CROWDED=2048, row_of=lambda count, _vocabulary: gpu["row_of"](count, 2048))
    row = crowded(Card(), runner, gpu["SMALL"][0], 200, 300, told)
    assert limits == [200 + 300 + int(0.75 * 500)]
    assert row.passed is full
    assert f"out of memory {int(full)} times" in row.what
    without = crowded(Card(), runner, gpu["SMALL"][0], 200, 801, told)
    assert "pieces cannot help" in without.what
    assert len(limits) == 1


@pytest.mark.parametrize(("device", "number"), [("cuda", 3), ("cuda:1", 1)])
def test_a_share_of_the_card_is_asked_of_a_numbered_device(gpu: dict[str, Any], device: str, number: int) -> None:
    asked: list[tuple[float, int]] = []
    card = gpu["Card"]("cpu")
    card.device = torch.device(device)
    card.torch = SimpleNamespace(
        cuda=SimpleNamespace(
            mem_get_info=lambda device: (0, 1000), empty_cache=lambda: None, current_device=lambda: 3,
            set_per_process_memory_fraction=lambda share, device: asked.append((share, device)),
        )
    )  # fmt: skip
    with card.at_most(250):
        assert asked == [(0.25, number)]
    assert asked[1:] == [(1.0, number)]

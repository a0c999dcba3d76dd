"""scripts/gpu in small, on the CPU: that it runs where no card is, and what it says where something is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "gpu"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True)


def test_in_small_it_passes_on_the_cpu() -> None:
    done = run("--small", "--device", "cpu")
    assert done.returncode == 0, done.stdout + done.stderr
    for row in ("demo x8 in bfloat16", "--device map", "halved 2 times", "verify --suite quick", "5M at 4,096 tokens"):
        assert row in done.stdout


@pytest.mark.skipif(torch.cuda.is_available(), reason="a card is here")
def test_without_a_card_it_says_so() -> None:
    done = run()
    assert "torch finds no CUDA card here\nTry: --small --device cpu" in done.stderr

"""A second trained model, of another architecture: what the gate says of its extension, and of a context that is only stated.

scripts/train_demo_model.py --second makes it in the cache; without it these tests skip.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from loading import script
from models import copied

import ropetool
from ropetool import machine
from ropetool.verification.gate import Limits
from ropetool.verification.results import VerifyResult

CACHE = machine.cache()  # the user's, before the tests get one of their own
LENGTHS = [128, 512, 1024]


@pytest.fixture(scope="module")
def second() -> Path:
    place = script("train_demo_model.py").second_place(CACHE)
    if not place.is_dir():
        pytest.skip(
            f"{place} is not there; `python scripts/train_demo_model.py --second` makes it in 8 minutes of one core"
        )
    return place


@pytest.fixture(scope="module")
def source(second: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(second / "model", tmp_path_factory.mktemp("second") / "model"))


def verified(target: Path, source: Path, second: Path, grade: str) -> VerifyResult:
    return ropetool.verify(
        target,
        baseline=source,
        texts=[second / "text"],
        lengths=LENGTHS,
        suite="quick",
        limits=Limits(grade=grade),
        device="cpu",
        dtype="float32",
    )


def verdicts(found: VerifyResult) -> dict[str, str]:
    return {check.name: check.verdict for check in found.checks}


def test_it_is_what_the_demo_is_not(source: Path) -> None:
    found = ropetool.inspect(source)
    config = json.loads((source / "config.json").read_text())
    assert (found.model_type, found.trained_length) == ("qwen3", 128)
    assert config["num_attention_heads"] == 2 * config["num_key_value_heads"]
    assert config["head_dim"] * config["num_attention_heads"] != config["hidden_size"]


def test_its_extension_passes_the_gate(source: Path, second: Path) -> None:
    target = ropetool.apply(ropetool.plan(source, "yarn", factor=8), source, source.parent / "model-yarn-8x").output
    found = verified(target, source, second, "research")
    assert verdicts(found) == {
        "tables": "pass", "weights": "pass", "files": "pass", "rotation": "pass", "ratio": "pass", "far text": "-",
        "useful": "-",
    }  # fmt: skip
    assert (found.verdict, found.exit_code) == ("pass", 0)
    assert all(entry.documents >= 4 and not entry.partial for entry in found.lengths)
    assert found.texts is not None
    assert found.texts["origin"] == "own"


def test_a_context_that_is_only_stated_fails(source: Path, second: Path, tmp_path: Path) -> None:
    stated = copied(source, tmp_path / "stated", max_position_embeddings=1024)
    found = verified(stated, source, second, "usable")  # it loses less to a wrong table than the demo
    assert (found.verdict, found.exit_code, verdicts(found)["ratio"]) == ("fail", 3, "fail")

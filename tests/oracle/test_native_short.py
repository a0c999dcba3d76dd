"""`native_short`: the logits of the source up to its length, and of the extension beyond it, in the real runtimes."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import models
import numpy as np
import pytest

import ropetool
from ropetool.errors import InvalidRope, LossyExport, RopetoolError
from ropetool.rope.tables import RopeTable
from ropetool.runtimes import inspection

TRAINED, TARGET = 512, 2048
METHODS = ("linear", "ntk", "yarn", "llama3", "mixed-ntk")
TOLERANCE = 2e-4  # of the largest logit, between two programs


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.write(tmp_path_factory.mktemp("native") / "model", "llama", {"max_position_embeddings": TRAINED})


def extended(source: Path, output: Path, method: str, native_short: bool, **options: Any) -> Path:
    """Extend to four times the length, in both cases with the factor 1."""
    arguments = {"method": method, "target_length": TARGET, "attention_factor": "none", **options}
    return ropetool.extend(source, output, native_short=native_short, **arguments).output


@pytest.mark.parametrize("style", ["v4", "v5"])
@pytest.mark.parametrize("method", METHODS)
def test_transformers_switches_by_the_length_of_the_text(source: Path, tmp_path: Path, method: str, style: str) -> None:
    both = extended(source, tmp_path / "both", method, True, config_style=style)
    plain = extended(source, tmp_path / "plain", method, False, config_style=style)
    of_source, at_limit = (models.torch_logits(path, TRAINED) for path in (source, both))
    assert np.array_equal(of_source, at_limit)
    assert models.apart(of_source, models.torch_logits(plain, TRAINED)) > 0.01  # the extension alone costs here
    beyond = models.torch_logits(both, TRAINED + 1)
    assert models.apart(models.torch_logits(plain, TRAINED + 1), beyond) < 1e-5
    assert models.apart(models.torch_logits(source, TRAINED + 1), beyond) > 0.01


def llama_logits(path: Path, length: int, context: int) -> np.ndarray:
    """Return the logits of the last tokens, with the table that llama.cpp chooses for a context."""
    from ropetool.verification.runners.llama_runner import LlamaRunner

    with closing(LlamaRunner(path, context_length=context)) as runner:
        return np.concatenate([piece.copy() for _, piece in runner.logits(models.TOKENS[:length])])


@pytest.mark.parametrize("way", ["extended, then exported", "exported, then extended"])
@pytest.mark.parametrize("method", ["yarn", "llama3"])
def test_llama_cpp_switches_by_the_allocated_context(source: Path, tmp_path: Path, method: str, way: str) -> None:
    pytest.importorskip("llama_cpp")
    file = models.export(source, tmp_path / "model.gguf", outtype="f32").output
    if way.startswith("extended"):
        both = models.export(
            extended(source, tmp_path / "both", method, True), tmp_path / "both.gguf", outtype="f32"
        ).output
    else:
        both = extended(file, tmp_path / "both.gguf", method, True)
    plain = extended(source, tmp_path / "plain", method, False)  # as transformers reads it
    assert np.array_equal(llama_logits(file, TRAINED, TRAINED), llama_logits(both, TRAINED, TRAINED))
    expected = models.torch_logits(plain, 300)
    assert models.apart(expected, llama_logits(both, 300, TRAINED + 1)[[5]]) < TOLERANCE
    assert models.apart(expected, llama_logits(both, 300, TRAINED)[[5]]) > TOLERANCE


def test_an_option_of_llama_server_adds_the_factor_that_both_tables_leave_out(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lib = pytest.importorskip("llama_cpp")
    file = models.export(source, tmp_path / "model.gguf", outtype="f32").output
    plan = ropetool.plan(file, "yarn", target_length=TARGET, native_short=True)
    (note,) = (note for note in plan.notes if "--yarn-attn-factor" in note)
    both = ropetool.apply(plan, file, tmp_path / "both.gguf").output
    factor = float(note.split("--yarn-attn-factor ")[1].split("`")[0])
    yarn = ropetool.extend(file, tmp_path / "yarn.gguf", method="yarn", target_length=TARGET).output
    expected = llama_logits(yarn, 300, TARGET)
    assert models.apart(expected, llama_logits(both, 300, TARGET)) > TOLERANCE
    of_context = lib.llama_context_default_params

    def with_option() -> Any:
        params = of_context()
        params.yarn_attn_factor = factor
        return params

    monkeypatch.setattr(lib, "llama_context_default_params", with_option)
    assert models.apart(expected, llama_logits(both, 300, TARGET)) < 1e-5
    with_factor = ropetool.plan(
        source, "yarn", target_length=TARGET, native_short=True, attention_factor="yarn", for_runtimes="vllm"
    )
    assert not any("--yarn-attn-factor" in note for note in with_factor.notes)
    assert "we measured no model with this method" in with_factor.notes[0]


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("dynamic", {}, "depends on the text length already"),
        ("longrope", {"params": {"long_factor": [2.0] * 16, "short_factor": [1.5] * 16}}, "depends on the text length"),
        ("length", {"attention_factor": "auto"}, "changes only the context length"),
        ("yarn", {"attention_factor": "yarn"}, "up to 512 tokens, the attention factor is 1.13863 instead of 1"),
        ("yarn", {"for_runtimes": "mlx-lm"}, "one table for all lengths"),
    ],
)
def test_what_no_file_can_hold_is_refused(source: Path, method: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(RopetoolError, match=message) as error:
        ropetool.plan(source, method, **{"factor": 4, "attention_factor": "none", "native_short": True, **options})
    assert isinstance(error.value, (InvalidRope, LossyExport))
    assert error.value.try_


def test_vllm_gets_a_factor_beyond_the_trained_length_only(source: Path, tmp_path: Path) -> None:
    both = extended(source, tmp_path / "both", "yarn", True, attention_factor="yarn", for_runtimes="vllm")
    keys = models.config_of(both)["rope_scaling"]
    assert (keys["short_mscale"], keys["long_mscale"]) == (1.0, pytest.approx(1.138629))


def test_the_default_factor_is_the_source_s(source: Path) -> None:
    plan = ropetool.plan(source, "yarn", factor=4, native_short=True)
    assert [regime["attention_factor"] for regime in plan.tables["full_attention"]] == [1.0, 1.0]
    assert plan.suffix == "yarn-native-short-4x"


def test_on_top_of_a_scaling_its_table_stays_up_to_its_context(source: Path, tmp_path: Path) -> None:
    first = extended(source, tmp_path / "first", "yarn", False)
    second = ropetool.extend(
        first, tmp_path / "second", method="yarn", factor=2, reading="current", native_short=True
    ).output
    before, after = (_table(path) for path in (first, second))
    assert after.regimes[0].up_to == TARGET
    assert np.allclose(after.regimes[0].inv_freq, before.regimes[0].inv_freq, rtol=1e-12)


def _table(path: Path) -> RopeTable:
    rope = inspection.inspect(path).rope
    assert rope is not None
    table = rope.entries["full_attention"].table
    assert table is not None
    return table

"""The probe against transformers' own classes, and against classes with one thing changed: it has to see each change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from loading import script
from transformers.models.llama import modeling_llama

from ropetool import families
from ropetool.probing import facts, records

probe_records = script("families/probe_records.py")
ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(families.__file__).parent / "generated"
# Of each mechanism one: plain, two bases, MLA, linear attention, no rotation on full layers, norm behind the rotation and
# chunks, a temperature, proportional and head sizes by layer type, rope groups of other names, no rotation, a wrapper.
SAMPLE = (
    "llama", "gemma3_text", "deepseek_v3", "qwen3_next", "exaone4", "llama4_text", "ministral3", "gemma4_text", "deepseek_v4",
    "jamba", "qwen2_vl", "llava",
)  # fmt: skip


def written(name: str) -> dict[str, Any]:
    return dict(json.loads((FOLDER / f"{name}.json").read_text()))


@pytest.mark.skipif(
    transformers.__version__ != written("llama")["transformers"], reason="the records are of another transformers"
)
@pytest.mark.parametrize("name", SAMPLE)
def test_the_record_is_what_the_classes_do(name: str) -> None:
    probe_records.compare(name, written(name), records.record(name))


def test_there_is_a_record_of_every_type() -> None:
    records.load()
    assert {path.stem for path in FOLDER.glob("*.json")} == set(probe_records.model_types())


def llama(monkeypatch: pytest.MonkeyPatch, rotate: Any) -> dict[str, Any]:
    """Return what the probe says of llama when another function rotates."""
    records.load()
    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", rotate)
    return facts.probe("llama")


def half(q: Any, k: Any, cos: Any, sin: Any) -> tuple[Any, Any]:
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return q * cos + modeling_llama.rotate_half(q) * sin, k * cos + modeling_llama.rotate_half(k) * sin


def test_the_same_rotation_written_anew_is_the_same_record(monkeypatch: pytest.MonkeyPatch) -> None:
    probe_records.compare("llama", written("llama"), llama(monkeypatch, half))


def test_neighbours_that_pair_up_are_interleaved(monkeypatch: pytest.MonkeyPatch) -> None:
    def neighbours(q: Any, k: Any, cos: Any, sin: Any) -> tuple[Any, Any]:
        def rotated(x: Any) -> Any:
            c, s = (one[..., : one.shape[-1] // 2].unsqueeze(1) for one in (cos, sin))
            even, odd = x[..., ::2], x[..., 1::2]
            return torch.stack((even * c - odd * s, odd * c + even * s), -1).flatten(-2)

        return rotated(q), rotated(k)

    assert llama(monkeypatch, neighbours)["layout"] == "interleaved"


def test_a_norm_behind_the_rotation_makes_the_factor_vanish(monkeypatch: pytest.MonkeyPatch) -> None:
    def normed(q: Any, k: Any, cos: Any, sin: Any) -> tuple[Any, Any]:
        return tuple(one / one.norm(dim=-1, keepdim=True) for one in half(q, k, cos, sin))  # type: ignore[return-value]

    assert [layer["factor_vanishes"] for _, layer in llama(monkeypatch, normed)["layers"]] == [True]


def test_a_rotation_that_is_left_out_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = llama(monkeypatch, lambda q, k, cos, sin: (q, k))
    assert (entry["outcome"], entry["reason"]) == (
        "does not rotate", "it has rotary modules, but no layer uses their tables",
    )  # fmt: skip


def test_half_of_the_channels_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def part(q: Any, k: Any, cos: Any, sin: Any) -> tuple[Any, Any]:
        turned = half(q[..., :64], k[..., :64], cos[..., :64], sin[..., :64])
        return tuple(torch.cat((one, x[..., 64:]), -1) for one, x in zip(turned, (q, k), strict=True))  # type: ignore[return-value]

    (layer,) = [layer for _, layer in llama(monkeypatch, part)["layers"]]
    assert layer["rotations"] == [{"channels": 64, "layout": "half"}]


def test_a_layer_that_does_not_rotate_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    records.load()
    forward = modeling_llama.LlamaAttention.forward

    def without(self: Any, hidden_states: Any, position_embeddings: Any = None, **kwargs: Any) -> Any:
        if self.layer_idx == 2:
            position_embeddings = (torch.ones_like(position_embeddings[0]), torch.zeros_like(position_embeddings[1]))
        return forward(self, hidden_states, position_embeddings=position_embeddings, **kwargs)

    monkeypatch.setattr(modeling_llama.LlamaAttention, "forward", without)
    entry = facts.probe("llama")
    assert [(times, layer["rotates"]) for times, layer in entry["layers"]] == [(2, True), (1, False), (1, True)]
    assert entry["rotates"] == "layers"


def test_a_temperature_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    records.load()
    forward = modeling_llama.LlamaAttention.forward

    def warm(self: Any, hidden_states: Any, **kwargs: Any) -> Any:
        self.scaling = self.head_dim**-0.5 * (1 + 0.1 * torch.arange(hidden_states.shape[1])[:, None])
        return forward(self, hidden_states, **kwargs)

    monkeypatch.setattr(modeling_llama.LlamaAttention, "forward", warm)
    assert all(layer.get("temperature") for _, layer in facts.probe("llama")["layers"])


def test_the_check_refuses_a_planted_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    program = script("families/probe")
    monkeypatch.setattr(program, "FOLDER", tmp_path)
    monkeypatch.setattr("sys.argv", ["families", "--check", "--jobs", "1", "cohere2"])
    (tmp_path / "cohere2.json").write_text(probe_records.text(written("cohere2")))
    assert program.main() == 0
    (tmp_path / "cohere2.json").write_text(probe_records.text({**written("cohere2"), "rotates": "all"}))
    assert program.main() == 1
    said = capfd.readouterr().err.splitlines()
    assert said[-2:] == [
        'Error: ropetool/families/generated/cohere2.json: rotates: is "all" in the record, but "sliding" in '
        f"transformers {transformers.__version__}",
        "Try: scripts/families/probe cohere2",
    ]


HOLD_OTHERS = {"fuyu", "got_ocr2", "moss_transcribe_diarize", "gemma4_assistant", "gemma4_unified_assistant"}


def test_the_types_without_rotary_positions_are_all_that_have_no_such_code() -> None:
    records.load()
    without = {name for name in facts.causal() if not probe_records.rotates_somewhere(name)}
    listed = families.records.unrotated() - families.records.OTHERS
    assert without - HOLD_OTHERS - {*probe_records.UNLIMITED} <= listed
    assert not {name for name in listed if probe_records.rotates_somewhere(name)}
    assert not listed & families.records.names()


@pytest.mark.parametrize("model_type", ["gpt_bigcode", "falcon_mamba", "kimi_linear", "blip"])
def test_a_tiny_model_of_a_type_without_rotary_positions_rotates_nothing(model_type: str) -> None:
    assert records.record(model_type)["outcome"] == "does not rotate"

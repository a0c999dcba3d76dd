"""Our vLLM decoders against vLLM's own classes: recorded answers of every release always, a live one where it is at hand.

The real AutoConfig, patch_rope_parameters, decoder layers, rotary classes and length rules run; see vllm_probe.py.
"""

from __future__ import annotations

from pathlib import Path

import peers
import pytest

from ropetool.runtimes import vllm

# Two requests in a batch share a call, so what transformers' rule would do depends on both.
UNKNOWN = {"olmo3-dynamic-v4", "olmo3-dynamic-v5"}


def expected(version: str) -> set[str]:
    return UNKNOWN if version >= "0.29" else set()


@pytest.mark.parametrize("version", peers.RELEASES["vllm"])
def test_recorded_answers(version: str) -> None:
    found = peers.compared("vllm", version, peers.golden("vllm", version))
    assert {name for name, reasons in found.items() if reasons == ["not known"]} == expected(version)
    assert {name: reasons for name, reasons in found.items() if name not in UNKNOWN} == {}


@pytest.mark.parametrize("version", peers.RELEASES["vllm"])
def test_a_release_at_hand(version: str, tmp_path: Path) -> None:
    answers = peers.asked_live("vllm", version, tmp_path)
    found = peers.compared("vllm", version, answers)
    assert {name: reasons for name, reasons in found.items() if name not in expected(version)} == {}
    long = [layer["long"] for layer in answers["llama-longrope-v4"]["layers"]]
    assert long == [[False, True]] * 2  # decided once, by whether the context is above the trained length


def test_every_cell_is_asked_of_a_real_class() -> None:
    """No config is compared by way of errors alone, but for those that stop for a reason that is named here."""
    newest = peers.golden("vllm", "0.33.0")
    stopped = {name.rpartition("-")[0] for name, answer in newest.items() if "error" in answer}
    assert stopped == {
        "llama-linear-whole", "qwen3-linear-whole", "llama-yarn-beta-0", "qwen3-yarn-beta-0",
        "mixtral-longrope-alike", *(f"deepseek_{v}-{cell}" for v in ("v2", "v3") for cell in ("linear", "dynamic")),
    }  # fmt: skip


# --- planted defects: the same comparison turns red


DEFECTS = {
    "attention_factor honoured before 0.30": ("0.25.1", "llama-yarn-attention-1-v4", {"HF_SEMANTICS": (0, 25)}),
    "attention_factor dropped since 0.30": ("0.33.0", "llama-yarn-attention-1-v4", {"HF_SEMANTICS": (9, 0)}),
    "attn_factor honoured since 0.30": ("0.33.0", "llama-yarn-attn-v4", {"HF_SEMANTICS": (9, 0)}),
    "DeepSeek run as a plain family": ("0.33.0", "deepseek_v3-yarn-mscales-v4", {"deepseek_v3.formula": ""}),
    "olmo3 on transformers' code too early": ("0.26.0", "olmo3-yarn-attention-1-v5", {"olmo3.on_transformers": "0.26"}),
    "the context of linear taken as stated": ("0.33.0", "llama-linear-v4", {"LENGTH_KEYS": ("n_positions",)}),
}  # fmt: skip


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_planted_defect_is_seen(defect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    version, name, changes = DEFECTS[defect]
    answers = {name: peers.golden("vllm", version)[name]}
    assert peers.compared("vllm", version, answers) == {}
    peers.plant(monkeypatch, vllm, changes)
    if defect == "the context of linear taken as stated":
        monkeypatch.setattr(vllm, "_derived", lambda view, given, first: 2048)
    assert peers.compared("vllm", version, answers) != {}

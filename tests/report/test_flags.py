"""The command lines that serve a source as a plan's target: which are printed, which are not, and that each was checked."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import peers
import pytest
from gguf_files import TRAINED, Tiny
from models import write_config

import ropetool
from ropetool import families, runtimes
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.plans import flags
from ropetool.plans.plan import Plan
from ropetool.runtimes import config_overrides, engine_formulas
from ropetool.runtimes.base import PlannedChange
from ropetool.runtimes.llama_cpp import server_options

ENGINES = {"vllm": (False,), "sglang": (False, True)}  # whether the rope keys are merged into the source's


def planned(folder: Path, data: dict[str, Any], method: str, *asked: str, **options: Any) -> tuple[Plan, Path]:
    source = write_config(folder / "model", {**data, "rms_norm_eps": 1e-5})
    options = options if "target_length" in options else {"factor": 4, **options}
    return ropetool.plan(source, method, for_runtimes=list(asked), **options), source


def by_program(lines: list[str]) -> dict[str, str]:
    found = dict(line.split(": ", 1) for line in lines)
    assert len(found) == len(lines)
    return found


def test_what_a_dry_run_prints(tmp_path: Path) -> None:
    plan, source = planned(tmp_path, peers.config("llama", "v4", None), "yarn")
    values = (
        '\'{"max_position_embeddings": 2048, "rope_parameters": {"rope_type": "yarn", "factor": 4.0, '
        '"original_max_position_embeddings": 512, "rope_theta": 10000.0}}\''
    )
    assert flags.flag_lines(plan, source) == [
        f"vllm: vllm serve {source} --max-model-len 2048 --hf-overrides {values}",
        f"sglang: python -m sglang.launch_server --model-path {source} --context-length 2048 --json-model-override-args {values}",
        "llama.cpp: llama-server -m EXPORTED.gguf -c 2048 --rope-scaling yarn --rope-scale 4 --yarn-orig-ctx 512",
        "KoboldCpp, LM Studio: not possible with flags: they accept only a base and a scale",
    ]


CASES: dict[str, tuple[str, str, str | None, str, dict[str, Any]]] = {
    "llama": ("llama", "v4", None, "yarn", {}),
    "qwen2 in the other style": ("qwen2", "v5", None, "yarn", {}),
    "qwen3 linear": ("qwen3", "v4", None, "linear", {}),
    "mistral with another base": ("mistral", "v4", None, "ntk", {}),
    "deepseek_v3": ("deepseek_v3", "v4", None, "yarn", {}),
    "gemma3_text": ("gemma3_text", "v5", None, "yarn", {}),
    "olmo3": ("olmo3", "v4", None, "yarn", {}),
    "phi3": ("phi3", "v4", None, "yarn", {"attention_factor": "logn"}),
    "glm4": ("glm4", "v4", None, "yarn", {}),
    "betas": ("llama", "v4", None, "yarn", {"params": {"beta_fast": 8}}),
    "a scaled source": ("llama", "v4", "yarn", "yarn", {"reading": "original", "factor": 8}),
    "a scaled source to another base": ("llama", "v4", "llama3", "ntk", {"reading": "original"}),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_printed_decodes_to_the_target(case: str, tmp_path: Path) -> None:
    family, style, cell, method, options = CASES[case]
    plan, source = planned(
        tmp_path, peers.config(family, style, peers.CELLS[cell] if cell else None), method, **options
    )
    found = by_program(flags.flag_lines(plan, source))
    assert any("--hf-overrides" in line for line in found.values())
    assert any("--json-model-override-args" in line for line in found.values())
    view = HfCheckpoint(json.loads((source / "config.json").read_text()), families.get(family))
    for program, line in found.items():
        name, _, stretch = program.partition(" ")
        if name not in ENGINES or line.startswith("not possible with flags"):
            continue
        overrides = json.loads(shlex.split(line)[-1])
        assert f" {plan.max_position_embeddings} --" in line
        for runtime in runtimes.all_of(name):
            if stretch and not runtimes.display_ranges([runtime.name])[0].startswith(
                f"{name} {stretch.partition(' ')[0]}"
            ):
                continue
            for merges in ENGINES[name]:
                config = config_overrides.overridden(view, overrides, merges=merges)
                decoded = runtime.decode(HfCheckpoint(config, view.family))
                assert decoded.max_position_embeddings >= plan.max_position_embeddings
                for layer_type, table in plan.rope_tables().items():
                    assert decoded.entries[layer_type].table.agrees(table)
                full = decoded.entries["full_attention"]
                assert full.softmax_multiplier == pytest.approx(plan.softmax_multiplier, rel=1e-9)


def test_releases_that_drop_a_key_are_told_apart(tmp_path: Path) -> None:
    plan, source = planned(tmp_path, peers.config("llama", "v4", None), "ntk-by-parts")
    found = by_program(flags.flag_lines(plan, source))
    refusal = (
        "not possible with flags: attention factor 1.13863 instead of 1: scores of the rotated channels times 1.29648"
    )
    assert (found["vllm 0.25 to 0.29"], found["sglang"]) == (refusal, refusal)
    assert found["vllm 0.30 to 0.33"].startswith(f"vllm serve {source} ")
    assert found["llama.cpp"].endswith("--override-kv llama.rope.scaling.attn_factor=float:0.8782489")


def test_a_key_of_the_source_that_would_stay_behind_is_seen(tmp_path: Path) -> None:
    """SGLang merges in some releases, and reads attn_factor; vLLM replaces."""
    data = peers.config("llama", "v4", peers.CELLS["yarn-attn"])
    plan, source = planned(tmp_path, data, "yarn", reading="original", factor=8)
    found = by_program(flags.flag_lines(plan, source))
    assert found["sglang"].startswith("not possible with flags: attention factor 0.966355 instead of 1.20794")
    assert found["vllm"].startswith("vllm serve")


def test_model_files_that_lose_the_scaling_are_refused(tmp_path: Path) -> None:
    plan, source = planned(tmp_path, peers.config("mixtral", "v4", None), "yarn")
    found = by_program(flags.flag_lines(plan, source))
    assert found["sglang"].startswith(
        "not possible with flags: table: 14 of 16 pairs differ: distances look up to 4x longer"
    )
    assert found["vllm"].startswith("vllm serve")


def test_a_text_config_is_replaced_by_some_releases(tmp_path: Path) -> None:
    text = {**peers.config("gemma3_text", "v4", None), "architectures": ["Gemma3ForCausalLM"]}
    data = {"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"], "text_config": text}
    plan, source = planned(tmp_path, data, "yarn")
    found = by_program(flags.flag_lines(plan, source))
    assert found["sglang"] == (
        "not possible with flags: --json-model-override-args replaces all of text_config in some releases"
    )
    assert set(json.loads(shlex.split(found["vllm"])[-1])) == {"text_config"}


def test_a_vector_of_the_source_stays_in_force(tmp_path: Path) -> None:
    """A Llama 3.1 holds its table in rope_freqs.weight; options would scale it once more."""
    data = peers.config("llama", "v4", peers.CELLS["llama3"])
    plan, source = planned(tmp_path, data, "yarn", reading="original", factor=8)
    found = by_program(flags.flag_lines(plan, source))
    assert found["llama.cpp"] == "not possible with flags: the file itself must contain rope_freqs.weight"


def test_a_program_that_stops_is_said_so(tmp_path: Path) -> None:
    plan, source = planned(tmp_path, peers.config("olmo3", "v4", None), "yarn")
    found = by_program(flags.flag_lines(plan, source))
    assert found["vllm 0.25"].startswith("not possible with flags: it stops with KeyError: 'rope_theta'")


def test_what_goes_into_the_weights_no_flag_reaches(tmp_path: Path) -> None:
    plan, source = planned(tmp_path, peers.config("llama", "v4", None), "ntk-by-parts", "transformers", "vllm")
    assert plan.bakes
    assert flags.flag_lines(plan, source) == [
        "vllm, sglang, llama.cpp: not possible with flags: the plan also changes the weights"
    ]


# --- llama-server


BASE = {"rope.freq_base": 10000.0}  # stated, as converters do


def server(folder: Path, arch: str, keys: dict[str, Any], method: str, **options: Any) -> str:
    source = Tiny(arch, {"context_length": TRAINED, **BASE, **keys}).write(folder / "source.gguf")
    options = options if "target_length" in options else {"factor": 4, **options}
    line = flags.flag_lines(ropetool.plan(source, method, **options), source)[0]
    assert line.startswith(("llama.cpp: llama-server -m ", "llama.cpp: not possible with flags: "))
    return line.removeprefix(f"llama.cpp: llama-server -m {source} ").removeprefix("llama.cpp: ")


def test_options_of_llama_server(tmp_path: Path) -> None:
    assert server(tmp_path, "qwen2", {}, "yarn") == "-c 2048 --rope-scaling yarn --rope-scale 4 --yarn-orig-ctx 512"
    assert server(tmp_path, "qwen2", {}, "linear") == (
        "-c 2048 --rope-scaling linear --rope-scale 4 --yarn-orig-ctx 512 --override-kv qwen2.context_length=int:2048"
    )
    assert server(tmp_path, "llama", {}, "abf", params={"rope_theta": 1e6}) == (
        "-c 2048 --rope-freq-base 1000000 --override-kv llama.context_length=int:2048"
    )
    assert server(tmp_path, "llama", {}, "yarn", params={"beta_fast": 8}) == (
        "-c 2048 --yarn-beta-fast 8 --yarn-beta-slow 1 --rope-scaling yarn --rope-scale 4 --yarn-orig-ctx 512"
    )


def embedded(folder: Path, arch: str, keys: dict[str, Any], method: str, **options: Any) -> list[str]:
    """Return what the programs that hold llama.cpp are told."""
    source = Tiny(arch, {"context_length": TRAINED, **BASE, **keys}).write(folder / "x.gguf")
    lines = flags.flag_lines(ropetool.plan(source, method, factor=4, **options), source)[1:]
    return [line.replace(str(source), "x.gguf") for line in lines]


def test_what_takes_a_base_and_a_scale(tmp_path: Path) -> None:
    assert embedded(tmp_path, "qwen2", {}, "linear") == [
        "KoboldCpp: koboldcpp --model x.gguf --contextsize 2048 --ropeconfig 0.25 10000",
        "LM Studio: Context Length 2048, RoPE Frequency Scale 0.25, RoPE Frequency Base 10000 in its window",
    ]
    (kobold, _) = embedded(tmp_path, "llama", {"rope.freq_base": 5e5}, "abf", params={"rope_theta": 1e6})
    assert kobold.endswith(" --contextsize 2048 --ropeconfig 1 1000000")
    (kobold, _) = embedded(tmp_path, "llama", {"rope.freq_base": 5e5}, "linear")
    assert kobold.endswith(" --ropeconfig 0.25 500000")  # KoboldCpp's own default would be 10000


def test_what_a_base_and_a_scale_cannot_say(tmp_path: Path) -> None:
    no_more = ["KoboldCpp, LM Studio: not possible with flags: they accept only a base and a scale"]
    assert embedded(tmp_path, "llama", {}, "yarn") == no_more
    assert embedded(tmp_path, "llama", {}, "yarn", params={"beta_fast": 8}) == no_more
    assert embedded(tmp_path, "llama", SCALED, "ntk", reading="original") == no_more  # the file's yarn would stay
    assert embedded(tmp_path, "llama", {"rope.scaling.type": "none"}, "linear") == no_more  # and with it no scale


def test_what_only_a_file_holds(tmp_path: Path) -> None:
    refusal = "not possible with flags: the file itself must contain rope_freqs.weight"
    assert server(tmp_path, "llama", {}, "mixed-ntk") == refusal
    assert server(tmp_path, "llama", {}, "yarn", params={"truncate": False}) == refusal


def test_a_scale_that_float32_cuts_short_is_said_by_the_keys(tmp_path: Path) -> None:
    """512 / (1 / 1.625f) is 831.99994 in float32: llama-server would cap a request at 831."""
    target = server(tmp_path, "qwen2", {}, "yarn", target_length=832)
    assert target == (
        "-c 832 --override-kv qwen2.context_length=int:832,qwen2.rope.scaling.type=str:yarn,"
        "qwen2.rope.scaling.factor=float:1.625,qwen2.rope.scaling.original_context_length=int:512"
    )


SCALED = {
    "rope.scaling.type": "yarn", "rope.scaling.factor": 2.0, "rope.scaling.original_context_length": TRAINED,
    "context_length": 2 * TRAINED, "rope.scaling.attn_factor": 0.9,
}  # fmt: skip


def test_keys_of_the_source_are_taken_back(tmp_path: Path) -> None:
    assert server(tmp_path, "llama", SCALED, "ntk", reading="original").split() == [
        "-c", "2048", "--rope-scaling", "none", "--rope-freq-base", "41829.367", "--override-kv",
        "llama.context_length=int:2048,llama.rope.scaling.attn_factor=float:1",
    ]  # fmt: skip


# --- planted defects: a flag that is wrong is not printed


def test_a_forgotten_share_of_channels_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, source = planned(tmp_path, {**peers.config("glm4", "v4", None), "partial_rotary_factor": 0.25}, "yarn")
    assert '"partial_rotary_factor": 0.25' in by_program(flags.flag_lines(plan, source))["vllm"]
    monkeypatch.setattr(config_overrides, "_share", lambda view: {})
    assert by_program(flags.flag_lines(plan, source))["vllm"].startswith(
        "not possible with flags: 8 rotary pairs instead of 4"
    )


def test_a_forgotten_base_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, source = planned(tmp_path, {**peers.config("llama", "v4", None), "rope_theta": 5e5}, "yarn")
    whole = engine_formulas.loaded_keys

    def without_base(view: HfCheckpoint) -> dict[str, dict[str, Any]]:
        return {t: {k: v for k, v in keys.items() if k != "rope_theta"} for t, keys in whole(view).items()}

    def overrides_of(change: PlannedChange) -> dict[str, Any]:
        return {"rope_parameters": without_base(change.output)["full_attention"]}

    monkeypatch.setattr(config_overrides, "overrides_of", overrides_of)
    found = {name: line for name, line in by_program(flags.flag_lines(plan, source)).items() if "llama" not in name}
    assert found
    assert all(line.startswith("not possible with flags: ") for line in found.values())


def test_a_wrong_option_of_llama_server_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_options, "NEUTRAL", {})
    assert server(tmp_path, "llama", SCALED, "ntk", reading="original").startswith("not possible with flags: ")

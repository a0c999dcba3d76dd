"""What extend writes against what the real transformers computes from it, for every family, style and method.

The chain: the planner keeps only encodings that our decoder reads back as the method's table; here the real rotary
modules must agree with our decoder; tests/test_golden.py holds the methods against independent tables.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import configs
import numpy as np
import pytest
from models import write_config
from probes import PROBE, probe, v4_python
from settled import Comparison

import ropetool
from ropetool import families
from ropetool.errors import LossyExport, RopetoolError, UnknownFamily
from ropetool.report.inspected import inspection_json
from ropetool.runtimes import inspection

LENGTHS = [256, 512, 513, 1024, 2048]
TOLERANCE = 3e-6  # transformers computes its tables in float32
LISTS = {"long_factor": [1.0 + 0.2 * i for i in range(16)], "short_factor": [1.0 + 0.01 * i for i in range(16)]}

# name -> method, options; each is written for every family in every style.
CELLS: dict[str, tuple[str, dict[str, Any]]] = {
    "linear": ("linear", {}),
    "ntk": ("ntk", {}),
    "abf": ("abf", {"params": {"rope_theta": 1e6}}),
    "abf-smaller": ("abf", {"params": {"rope_theta": 500.0}}),
    "ntk-by-parts": ("ntk-by-parts", {}),
    "yarn": ("yarn", {}),
    "yarn-factor-1.7": ("yarn", {"attention_factor": 1.7}),
    "yarn-logn": ("yarn", {"attention_factor": "logn"}),
    "yarn-beta-8": ("yarn", {"params": {"beta_fast": 8, "beta_slow": 2}}),
    "yarn-no-truncate": ("yarn", {"params": {"truncate": False}}),
    "yarn-turns": ("yarn", {"params": {"ramp": "turns", "beta_fast": 12}}),
    "mixed-ntk": ("mixed-ntk", {}),
    "dynamic": ("dynamic", {}),
    "dynamic-transformers": ("dynamic", {}),  # with transformers' own factor, put in by hand
    "dynamic-frozen": ("dynamic", {"params": {"freeze": 1500}}),
    "llama3": ("llama3", {}),
    "longrope": ("longrope", {"params": LISTS}),
    "longrope-one-list": ("longrope", {"params": {"long_factor": LISTS["long_factor"]}}),
    "attention": ("attention", {}),
    "linear-with-factor": ("linear", {"attention_factor": 1.2}),
}
STYLES = ("v4", "v5", "both")
ALL_FAMILIES = (*configs.FAMILIES, *configs.MORE_FAMILIES)
# For the further families one cell of each rope type, and what only some read: a factor, betas, two lists.
FEWER = ("linear", "abf", "yarn", "yarn-factor-1.7", "yarn-beta-8", "dynamic", "llama3", "longrope")
# What transformers itself does not take: family, style or "", cell or "".
REFUSED = {
    ("phi3", "", "dynamic"): "phi3 accepts only the rope_type default or longrope",
    ("gpt_oss", "v4", ""): "no data on gpt_oss without rope keys; its default is yarn",
    ("ministral3", "v4", ""): "no data on ministral3 without rope keys; its default is yarn",
}


def cells_of(family: str) -> tuple[str, ...]:
    return FEWER if family in configs.MORE_FAMILIES else tuple(CELLS)


def refusal(family: str, style: str, cell: str) -> str:
    """Return why a cell cannot be, empty where it can."""
    tried = ((family, one, other) for one in ("", style) for other in ("", cell))
    return next((REFUSED[key] for key in tried if key in REFUSED), "")


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str, str], Path]:
    """Return the extended config directories by family, style and cell."""
    root = tmp_path_factory.mktemp("cells")
    written = {}
    for family in ALL_FAMILIES:
        for style in STYLES:
            source = write_config(root / f"{family}-{style}", configs.config(family, "v4" if style == "v4" else "v5"))
            if family == "olmo3" and style != "v5":
                data = json.loads((source / "config.json").read_text())
                if "rope_parameters" in data:
                    # v4 has one base for both kinds of olmo3 layers; transformers 5 gives the sliding ones 500000.
                    for keys in data["rope_parameters"].values():
                        keys["rope_theta"] = 500000.0
                else:
                    data["rope_theta"] = 500000.0
                (source / "config.json").write_text(json.dumps(data, indent=2) + "\n")
            for cell in cells_of(family):
                method, options = CELLS[cell]
                if refusal(family, style, cell):
                    with pytest.raises(RopetoolError, match=refusal(family, style, cell)):
                        ropetool.plan(source, method, factor=4, config_style=style, **options)
                    continue
                plan = ropetool.plan(
                    source, method, factor=4, config_style=style, for_runtimes=readers(family, style, cell), **options
                )
                target = root / f"{family}-{style}-{cell}"
                ropetool.apply(plan, source, target)
                if cell == "dynamic-transformers":
                    config = (target / "config.json").read_text()
                    (target / "config.json").write_text(config.replace('"factor": 1.0', '"factor": 4.0'))
                written[family, style, cell] = target
    return written


def readers(family: str, style: str, cell: str) -> list[str]:
    """Return the runtimes that must agree: 4.57 too, where we know how it reads the family and it can hold the cell."""
    if style == "v5" or not families.get(family).in_v4:
        return ["transformers"]
    # transformers 4.57 leaves mscale_all_dim out of deepseek_v2's softmax scale, so yarn cannot agree there.
    yarn_in_v2 = family == "deepseek_v2" and cell.startswith("yarn")
    return ["transformers"] if yarn_in_v2 else ["transformers", "transformers-v4"]


ASKED = ("llama", "phi3", "deepseek_v3", "gemma3_text")  # in every run


@pytest.fixture(scope="module")
def comparisons(outputs: dict[tuple[str, str, str], Path]) -> dict[tuple[str, str], Comparison]:
    """The comparisons with transformers 5 by family and style: of the configs, and of what our decoder makes of them."""
    inputs: dict[tuple[str, str], dict[str, bytes | Path]] = {}
    for (family, style, cell), path in outputs.items():
        reading = next(r for r in inspection.inspect(path).readings if r.name == "transformers")
        found = inputs.setdefault((family, style), {"probe": PROBE, "lengths": str(LENGTHS).encode()})
        found |= {f"config of {cell}": path / "config.json", f"reading of {cell}": stated(reading)}
    return {
        (family, style): Comparison(f"rotation: {family}, {style}", found, "torch", "transformers")
        for (family, style), found in inputs.items()
    }


def stated(reading: Any) -> bytes:
    """Return all that a reading says of the lengths that are asked."""
    if reading.rope is None:
        return b"refused"
    regimes = [
        (layer_type, entry.softmax_multiplier, at.attention_factor, at.inv_freq.tobytes().hex())
        for layer_type, entry in reading.rope.entries.items()
        for at in map(entry.table.at, LENGTHS)
    ]
    return repr(regimes).encode()


@pytest.fixture(scope="module")
def answers_5(
    outputs: dict[tuple[str, str, str], Path], comparisons: dict[tuple[str, str], Comparison]
) -> dict[tuple[str, str, str], dict[str, Any]]:
    """The answers of transformers 5 where a comparison is not settled."""
    asked = {key: path for key, path in outputs.items() if not is_settled(key[0], key[1], comparisons)}
    return dict(zip(asked, probe([{"path": str(path), "lengths": LENGTHS} for path in asked.values()]), strict=True))


def is_settled(family: str, style: str, comparisons: Mapping[tuple[str, str], Comparison]) -> bool:
    """Return whether a comparison need not be made."""
    if (family, style) not in comparisons:  # every cell is refused
        return True
    return comparisons[family, style].settled and family not in ASKED


@pytest.fixture(scope="module")
def answers_4(outputs: dict[tuple[str, str, str], Path]) -> dict[tuple[str, str, str], dict[str, Any]]:
    wanted = {key: path for key, path in outputs.items() if key[1] != "v5" and families.get(key[0]).in_v4}
    jobs = [{"path": str(path), "lengths": LENGTHS} for path in wanted.values()]
    return dict(zip(wanted, probe(jobs, v4_python()), strict=True))


def assert_agrees(answer: dict[str, Any], directory: Path, runtime: str) -> None:
    """The real module's tables, factors and softmax scale are those that our decoder of this runtime gives."""
    reading = next(r for r in inspection.inspect(directory).readings if r.name == runtime)
    if reading.rope is None:
        assert "error" in answer, f"our decoder refuses ({reading.refuses}), the real one loads"
        return
    assert "error" not in answer, answer
    assert set(answer["layers"]) == set(reading.rope.entries)
    for layer_type, entry in reading.rope.entries.items():
        assert entry.table is not None
        for length, found in zip(LENGTHS, answer["layers"][layer_type], strict=True):
            wanted = entry.table.at(length)
            np.testing.assert_allclose(found["inv_freq"], wanted.inv_freq, rtol=TOLERANCE, atol=0)
            assert found["attention_factor"] == pytest.approx(wanted.attention_factor, rel=TOLERANCE)
    full = reading.rope.entries["full_attention"]
    assert answer["softmax"] == pytest.approx(full.softmax_multiplier, rel=TOLERANCE)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_transformers_5_computes_what_was_written(
    family: str, style: str, outputs: Any, answers_5: Any, comparisons: Any
) -> None:
    if not is_settled(family, style, comparisons):
        for cell in cells_of(family):
            if not refusal(family, style, cell):
                assert_agrees(answers_5[family, style, cell], outputs[family, style, cell], "transformers")
        comparisons[family, style].passed()


@pytest.mark.parametrize("style", ["v4", "both"])
@pytest.mark.parametrize("family", [name for name in ALL_FAMILIES if families.get(name).in_v4])
def test_transformers_4_computes_what_was_written(family: str, style: str, outputs: Any, answers_4: Any) -> None:
    for cell in cells_of(family):
        assert_agrees(answers_4[family, style, cell], outputs[family, style, cell], "transformers-v4")


@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_every_cell_changes_what_the_model_computes(family: str, outputs: Any) -> None:
    """A cell that changes nothing could not turn red: three pairs or the factor differ from the source's."""
    source = inspection.inspect(outputs[family, "v5", "yarn"].parent / f"{family}-v5").rope
    assert source is not None
    before = source.entries["full_attention"].table.at(2048)
    for cell in cells_of(family):
        if refusal(family, "v5", cell):
            continue
        after = inspection.inspect(outputs[family, "v5", cell]).rope.entries["full_attention"]
        regime = after.table.at(2048)
        moved = int(np.sum(np.abs(regime.inv_freq / before.inv_freq - 1) > 1e-3))
        assert moved >= 3 or abs(regime.attention_factor - before.attention_factor) > 1e-3, cell


KEPT = ("linear", "yarn", "yarn-factor-1.7", "llama3", "longrope")  # scaled sources of the method length


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("family", ASKED)
def test_a_longer_context_alone_leaves_what_the_real_module_computes(
    family: str, style: str, outputs: Any, answers_5: Any, tmp_path: Path
) -> None:
    cells = [cell for cell in KEPT if not refusal(family, style, cell)]
    for cell in cells:
        source = outputs[family, style, cell]
        ropetool.apply(ropetool.plan(source, "length", target_length=16384), source, tmp_path / cell)
        assert inspection.inspect(tmp_path / cell).rope.max_position_embeddings == 16384
    answers = probe([{"path": str(tmp_path / cell), "lengths": LENGTHS} for cell in cells])
    for cell, after in zip(cells, answers, strict=True):
        assert after == answers_5[family, style, cell], cell


def test_a_context_written_by_hand_changes_the_real_module(outputs: Any, answers_5: Any, tmp_path: Path) -> None:
    """The comparison above can fail: longrope's factor follows the context that the file states."""
    data = json.loads((outputs["phi3", "v4", "longrope"] / "config.json").read_text())
    for key in ("factor", "attention_factor"):
        data["rope_scaling"].pop(key, None)
    plain = {"path": str(write_config(tmp_path / "plain", data)), "lengths": LENGTHS}
    longer = {
        "path": str(write_config(tmp_path / "longer", {**data, "max_position_embeddings": 16384})),
        "lengths": LENGTHS,
    }
    before, after = probe([plain, longer])
    assert before["layers"] != after["layers"]
    plan = ropetool.plan(tmp_path / "plain", "length", target_length=16384)
    assert [each.rejected != "" for each in plan.candidates] == [True, False]


def test_every_family_is_asked() -> None:
    """gemma3 has the table of gemma3_text; mistral4 is never unscaled, and has a test of its own."""
    assert {*families.baked()} - {*ALL_FAMILIES} == {"gemma3", "mistral4"}


def test_mistral4_is_extended_from_its_original_length(tmp_path: Path) -> None:
    source = write_config(tmp_path / "mistral4", MISTRAL_4)
    jobs, targets = [], []
    for name, style in (("yarn", "v5"), ("yarn", "both"), ("ntk-by-parts", "v5"), ("longrope", "v5")):
        params = {"params": {"long_factor": LISTS["long_factor"]}} if name == "longrope" else {}
        plan = ropetool.plan(source, name, factor=8, reading="original", config_style=style, **params)
        ropetool.apply(plan, source, tmp_path / f"{name}-{style}")
        targets.append(tmp_path / f"{name}-{style}")
        jobs.append({"path": str(targets[-1]), "lengths": LENGTHS})
    for answer, directory in zip(probe(jobs), targets, strict=True):
        assert_agrees(answer, directory, "transformers")


SABOTAGE = {
    "attention_factor dropped": ("v4", "yarn-factor-1.7", lambda keys: keys.pop("attention_factor")),
    "theta left out of v5": ("v5", "abf", lambda keys: keys.pop("rope_theta")),
    "wrong original length": ("v4", "yarn", lambda keys: keys.update(original_max_position_embeddings=1024)),
    "truncate dropped": ("v5", "yarn-no-truncate", lambda keys: keys.pop("truncate")),
    "wrong factor": ("v4", "linear", lambda keys: keys.update(factor=3.9)),
    "betas dropped": ("v5", "yarn-beta-8", lambda keys: (keys.pop("beta_fast"), keys.pop("beta_slow"))),
}


@pytest.mark.parametrize("defect", SABOTAGE)
def test_a_planted_defect_is_seen_by_the_real_module(defect: str, outputs: Any, tmp_path: Path) -> None:
    """The same comparison turns red when the file is broken and the expectation is that of the intact one."""
    style, cell, change = SABOTAGE[defect]
    intact = outputs["llama", style, cell]
    data = json.loads((intact / "config.json").read_text())
    change(data["rope_scaling" if style == "v4" else "rope_parameters"])
    broken = write_config(tmp_path / "broken", data)
    answer = probe([{"path": str(broken), "lengths": LENGTHS}])[0]
    with pytest.raises(AssertionError):
        assert_agrees(answer, intact, "transformers")


def test_type_and_rope_type_that_differ_are_read_differently_and_refused(tmp_path: Path) -> None:
    """The two generations really disagree on such a file, so ropetool refuses to choose."""
    data = configs.config("llama", "v4")
    data["rope_scaling"] = {
        "type": "linear",
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 512,
    }
    source = write_config(tmp_path / "model", data)
    job = [{"path": str(source), "lengths": [512]}]
    new, old = probe(job)[0], probe(job, v4_python())[0]
    assert new["layers"]["full_attention"][0]["attention_factor"] == pytest.approx(1.1386, abs=1e-4)
    assert old["layers"]["full_attention"][0]["attention_factor"] == 1.0
    with pytest.raises(ropetool.errors.AmbiguousRope, match='type is "linear"'):
        ropetool.plan(source, "yarn", factor=4, reading="original")


REAL = Path(os.environ.get("ROPETOOL_REAL_FILES", "")) / "configs"
REAL_FAMILIES = {
    "meta-llama__Llama-2-7b-hf", "meta-llama__Meta-Llama-3-8B-Instruct", "meta-llama__Llama-3.1-8B-Instruct",
    "codellama__CodeLlama-7b-hf", "HuggingFaceTB__SmolLM2-1.7B-Instruct", "mistralai__Mistral-7B-v0.1",
    "mistralai__Mistral-7B-Instruct-v0.3", "mistralai__Mixtral-8x7B-v0.1", "Qwen__Qwen2-7B-Instruct",
    "Qwen__Qwen2.5-7B-Instruct", "Qwen__Qwen2.5-7B-Instruct-1M", "Qwen__Qwen3-8B", "Qwen__Qwen3-0.6B",
    "google__gemma-3-1b-it", "google__gemma-3-4b-it", "google__gemma-3-27b-it", "deepseek-ai__DeepSeek-V3",
    "deepseek-ai__DeepSeek-V2-Lite-Chat", "CohereForAI__c4ai-command-r-v01", "Qwen__Qwen3-30B-A3B-Instruct-2507",
    "allenai__OLMo-2-1124-7B-Instruct", "bigcode__starcoder2-15b", "deepseek-ai__DeepSeek-V3.2",
    "google__gemma-2-2b-it", "h2oai__h2ogpt-oig-oasst1-512-6_9b", "ibm-granite__granite-3.3-8b-instruct",
    "microsoft__Phi-3-mini-128k-instruct", "microsoft__Phi-3-mini-4k-instruct", "microsoft__Phi-3.5-mini-instruct",
    "microsoft__phi-4", "openai__gpt-oss-20b", "stabilityai__stablelm-3b-4e1t", "tiiuae__falcon-40b-instruct",
    "Qwen__Qwen3.5-9B",
}  # fmt: skip
NORMALISED = {"meta-llama__Llama-4-Scout-17B-16E"}  # behind the rotation, so that half of the methods have no encoding
REMOTE = {"LGAI-EXAONE__EXAONE-3.5-7.8B-Instruct", "internlm__internlm2-7b"}  # no class of transformers to compare with
GROUPED = {"deepseek-ai__DeepSeek-V4-Flash"}  # compared in test_recorded_families.py, by the names of its rope groups
UNREAD = {"THUDM__glm-4-9b": "its only rope key is rope_ratio"}
MISTRAL_4 = {  # the shape of its rope keys, with the lengths of a small model
    "model_type": "mistral4", **configs.MLA, "qk_nope_head_dim": 32, "max_position_embeddings": 2048,
    "rope_parameters": {
        "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 512,
        "max_position_embeddings": 2048, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1,
        "partial_rotary_factor": 0.5,
    },
}  # fmt: skip
OLMO_3 = {  # the published rope values of Olmo-3-7B
    **configs.config("olmo3", "v4", 500000.0), "max_position_embeddings": 65536, "sliding_window": 4096,
    "rope_scaling": {
        "rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8192, "beta_fast": 32.0,
        "beta_slow": 1.0, "attention_factor": 1.2079441541679836,
    },
}  # fmt: skip
needs_real_files = pytest.mark.skipif(not REAL.is_dir(), reason="ROPETOOL_REAL_FILES names no folder with configs/")


def real_cells(source: Path) -> list[tuple[str, dict[str, Any]]]:
    """Return the methods that the model's class takes, with lists that fit it."""
    found = inspection.inspect(source)
    assert found.rope is not None
    assert found.family is not None
    pairs = found.rope.entries["full_attention"].rotary_dim // 2
    cells = []
    for name in ("linear", "ntk", "ntk-by-parts", "yarn", "mixed-ntk", "dynamic", "llama3", "attention"):
        if found.family.model_type != "phi3" or name != "dynamic":
            cells.append((name, {}))
    cells.append(("abf", {"params": {"rope_theta": 7e6}}))
    cells.append(("longrope", {"params": {"long_factor": [1 + 0.1 * i for i in range(pairs)]}}))
    return cells


@needs_real_files
def test_real_configs_in_every_method(tmp_path: Path) -> None:
    """Each real config of a known family, as it is and extended by every method, is read by transformers 5 as we say."""
    targets = []
    for name in sorted(REAL_FAMILIES):
        source = write_config(tmp_path / name, json.loads((REAL / f"{name}.json").read_text()))
        targets.append(source)
        for method, options in real_cells(source):
            targets.append(extend_any(source, method, options, tmp_path / f"{name}-{method}"))
    answers = probe([{"path": str(path), "lengths": LENGTHS} for path in targets])
    for answer, directory in zip(answers, targets, strict=True):
        assert_agrees(answer, directory, "transformers")
        assert "error" not in answer
    phi3 = 4  # of which each has no dynamic
    assert len(targets) == 11 * len(REAL_FAMILIES) - phi3


def extend_any(source: Path, method: str, options: dict[str, Any], target: Path) -> Path:
    """Extend from the original reading where the source is scaled and says its length, else from the current one."""
    found = inspection.inspect(source).rope
    assert found is not None
    entry = found.entries["full_attention"]
    scaled = entry.rope_type != "default"
    known = {"original_length": 16384} if scaled and entry.original_max_position_embeddings is None else {}
    plan = ropetool.plan(source, method, factor=64, reading="original" if scaled else None, **known, **options)
    ropetool.apply(plan, source, target)
    return target


def test_nested_style_of_the_published_olmo_3(tmp_path: Path) -> None:
    source = write_config(tmp_path / "olmo3", OLMO_3)
    jobs, targets = [], []
    for style in ("v4", "v5", "both"):
        plan = ropetool.plan(source, "yarn", factor=16, reading="original", config_style=style)
        ropetool.apply(plan, source, tmp_path / style)
        jobs.append({"path": str(tmp_path / style), "lengths": LENGTHS})
        targets.append(tmp_path / style)
    answers = probe(jobs)
    for answer, directory in zip(answers, targets, strict=True):
        assert_agrees(answer, directory, "transformers")
        assert answer["layers"]["sliding_attention"][0]["attention_factor"] == 1.0
        assert answer["layers"]["full_attention"][0]["attention_factor"] == pytest.approx(1.2772589, rel=1e-6)
    assert "rope_parameters" in json.loads((tmp_path / "v5" / "config.json").read_text())


@needs_real_files
def test_all_real_configs_survive_inspect(tmp_path: Path) -> None:
    names = sorted(path.stem for path in REAL.glob("*.json"))
    assert len(names) >= 30
    for name in names:
        source = write_config(tmp_path / name, json.loads((REAL / f"{name}.json").read_text()))
        found = inspection.inspect(source)
        data = inspection_json(found, 262144)
        json.dumps(data, allow_nan=False)
        assert (found.family is not None) == (name in REAL_FAMILIES | NORMALISED | REMOTE | GROUPED)
        if found.family is None:
            assert found.stated or name.startswith(("tiiuae", "THUDM"))


@needs_real_files
def test_all_real_configs_are_planned_or_told_why_not(tmp_path: Path) -> None:
    refused = {}
    for path in sorted(REAL.glob("*.json")):
        source = write_config(tmp_path / path.stem, json.loads(path.read_text()))
        try:
            found = inspection.inspect(source).rope
            scaled = found is not None and found.entries["full_attention"].rope_type != "default"
            plan = ropetool.plan(source, "linear", factor=2, reading="current" if scaled else None)
        except UnknownFamily as refusal:
            refused[path.stem] = refusal.message
        else:
            assert plan.edits, path.stem
    assert refused.keys() == UNREAD.keys()
    for name, reason in UNREAD.items():
        assert reason in refused[name]


def test_current_reading_of_scaled_sources(tmp_path: Path) -> None:
    """Extensions on top of a llama3, a yarn and a longrope table are computed by transformers as we say."""
    scalings = {
        "llama3": {
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 512,
        },
        "yarn": {"factor": 4.0, "original_max_position_embeddings": 512, "attention_factor": 1.3},
        "longrope": {**LISTS, "factor": 4.0, "original_max_position_embeddings": 512},
    }
    jobs, targets = [], []
    for rope_type, keys in scalings.items():
        data = {
            **configs.config("llama", "v4"),
            "max_position_embeddings": 2048,
            "rope_scaling": {"rope_type": rope_type, **keys},
        }
        source = write_config(tmp_path / rope_type, data)
        for method in ("yarn", "ntk", "linear", "llama3"):
            plan = ropetool.plan(
                source, method, factor=2, reading="current", for_runtimes=["transformers", "transformers-v4"]
            )
            target = tmp_path / f"{rope_type}-{method}"
            ropetool.apply(plan, source, target)
            jobs.append({"path": str(target), "lengths": LENGTHS})
            targets.append(target)
    for python, runtime in ((sys.executable, "transformers"), (v4_python(), "transformers-v4")):
        for answer, directory in zip(probe(jobs, python), targets, strict=True):
            assert_agrees(answer, directory, runtime)


def test_what_cannot_be_held_is_refused(tmp_path: Path) -> None:
    """transformers 4.57 has one base for both kinds of olmo3 layers, so different ones cannot be written for it."""
    source = write_config(tmp_path / "olmo3", configs.config("olmo3", "v5"))
    with pytest.raises(LossyExport, match="sliding_attention"):
        ropetool.plan(source, "yarn", factor=4, config_style="both", for_runtimes=["transformers", "transformers-v4"])

"""The conformance kit without running it: its right tables, what it ships, the recorded scores and the page."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import sys
import tarfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / name) for name in ("scripts", "scripts/golden", "tests/baking")]

import golden_formulas  # noqa: E402
from conformance_kit import cases, checkpoints, goldens, making, page, record  # noqa: E402

from ropetool import families, runtimes  # noqa: E402
from ropetool.checkpoint.hf import HfCheckpoint  # noqa: E402

SHIPPED = ROOT / "scripts" / "conformance_kit" / "shipped"
LARGEST = 25_000_000  # bytes of the whole kit


# --- what is made


def test_numbers_are_drawn_as_stated() -> None:
    found = checkpoints.drawn("model.layers.0.self_attn.q_proj.weight", (64, 64), "llama")
    digest = hashlib.shake_256(f"{cases.SEED}/llama/model.layers.0.self_attn.q_proj.weight/(64, 64)".encode())
    first = int.from_bytes(digest.digest(2), "little")
    assert found[0, 0] == pytest.approx(0.175 * np.sqrt(3) * ((first + 0.5) / 32768 - 1), rel=1e-12)
    assert found.std() == pytest.approx(0.175, rel=0.05)
    rounded = checkpoints.bfloat16(np.array([1.0, 1.00390625, 1.01171875, -2.5]))  # two of them half way
    assert rounded.tolist() == [0x3F80, 0x3F80, 0x3F82, 0xC020]


# The key of a published formula by the type of a config, and what the type's own factor is.
PUBLISHED = {"yarn": "yarn", "linear": "linear", "llama3": "llama3", "ntk": "ntk", "longrope": "longrope"}


@pytest.mark.parametrize("name", cases.CASES)
@pytest.mark.parametrize("length", [cases.LENGTHS[0], cases.LENGTHS[2], cases.LENGTHS[-1]])
def test_the_right_table_is_that_of_the_published_formula(name: str, length: int) -> None:
    stated = cases.config(cases.CASES[name])
    rope = runtimes.get("transformers").decode(HfCheckpoint(stated, families.of_config(stated)))
    checked = 0
    for kind, keys in _keys(stated).items():
        entry = rope.entries[kind]
        assert entry.table is not None
        regime = entry.table.at(length)
        table, factor = _published(keys, stated, entry.rotary_dim, length)
        np.testing.assert_allclose(regime.inv_freq, table, rtol=1e-9)
        assert regime.attention_factor == pytest.approx(factor, rel=1e-9)
        checked += 1
    assert checked == sum(entry.table is not None for entry in rope.entries.values())


def _keys(stated: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the keys of each kind of layer, as the documentation of transformers has them."""
    keys = stated.get("rope_parameters") or {"rope_theta": stated["rope_theta"], **(stated["rope_scaling"] or {})}
    if "full_attention" in keys:
        return dict(keys)
    if stated["model_type"] == "gemma3_text":
        return {"full_attention": keys, "sliding_attention": {"rope_theta": stated["rope_local_base_freq"]}}
    if stated["model_type"] == "olmo3":
        return {"full_attention": keys, "sliding_attention": {"rope_theta": stated["rope_theta"]}}
    if stated["model_type"] == "deepseek_v4":
        local = {"rope_theta": stated["rope_theta"], "partial_rotary_factor": 0.5}
        # The class of DeepSeek V4 does not multiply cos and sin.
        compressed = {**keys, "rope_theta": stated["compress_rope_theta"], "attention_factor": 1.0}
        return {"full_attention": compressed, "sliding_attention": local}
    return {"full_attention": keys}


def _published(keys: dict[str, Any], stated: dict[str, Any], channels: int, length: int) -> tuple[list[float], float]:
    kind = keys.get("rope_type", keys.get("type", "default"))
    source = {
        "head_dim": channels,
        "partial_rotary_factor": 1,
        "rope_theta": keys["rope_theta"],
        "length": cases.TRAINED,
    }
    case = {
        "source": source,
        "factor": keys.get("factor", cases.FACTOR),
        "params": {},
        "attention_factor": "auto",
        "at": length,
    }
    if kind in ("default", "proportional"):
        plain = golden_formulas.table("length", {**case, "factor": 1})["inv_freq"]
        rotated = len(plain) if kind == "default" else int(len(plain) * keys["partial_rotary_factor"])
        return [*plain[:rotated], *[0.0] * (len(plain) - rotated)], 1.0
    known = (
        "beta_fast", "beta_slow", "truncate", "low_freq_factor", "high_freq_factor", "short_factor", "long_factor",
    )  # fmt: skip
    case["params"] = {key: keys[key] for key in known if key in keys}
    if kind == "dynamic":  # of transformers: NTK with a factor that grows from 1 at the trained length
        kind, factor = "ntk", keys["factor"]
        case["factor"] = max(factor * length / cases.TRAINED - (factor - 1), 1)
    if "attention_factor" in keys:
        case["attention_factor"] = keys["attention_factor"]
    found = golden_formulas.table(PUBLISHED[kind], case)
    factor = found["attention_factor"]
    if "mscale" in keys:  # DeepSeek's: the quotient of two of YaRN's factors
        of = [1 + 0.1 * keys[key] * np.log(keys["factor"]) for key in ("mscale", "mscale_all_dim")]
        factor = of[0] / of[1]
    return found["inv_freq"], factor


# --- what is shipped


@pytest.mark.parametrize("path", sorted(SHIPPED.rglob("*.py")), ids=lambda path: str(path.name))
def test_what_is_shipped_needs_no_package_of_ours(path: Path) -> None:
    """The scorer: the standard library. A driver: that and, in its functions, its engine."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    places = tree.body if path.parent.name == "drivers" else list(ast.walk(tree))
    imported = {
        name.partition(".")[0]
        for node in places
        for name in (
            [one.name for one in node.names] if isinstance(node, ast.Import)
            else [str(node.module)] if isinstance(node, ast.ImportFrom) else []
        )
    }  # fmt: skip
    assert imported <= {*sys.stdlib_module_names, "answering", "run_llama_cpp"}, "my_engine is imported in functions"
    assert "ropetool" not in {name for node in ast.walk(tree) if isinstance(node, ast.Name) for name in [node.id]}


# --- the record


def test_the_record_is_of_the_current_kit() -> None:
    known = record.known()
    assert (known["kit"]["version"], known["kit"]["cases"]) == (cases.VERSION, record.fingerprint()), (
        "the cases have changed: raise VERSION, make the kit, run the engines with --record"
    )
    for engine in known["engines"].values():
        assert engine["kit"] == cases.VERSION
        assert engine["cases"].keys() == cases.CASES.keys()


def test_the_whole_kit_is_small() -> None:
    known = record.known()["kit"]
    assert known["bytes"] < LARGEST
    assert known["measured"].keys() == cases.CASES.keys()


@pytest.mark.parametrize("name", cases.CASES)
def test_the_wrong_tables_are_those_that_were_scored(name: str, tmp_path: Path) -> None:
    """What `identify` learns is no case of the kit until it is listed there."""
    path = tmp_path / "model" / "config.json"
    path.parent.mkdir()
    case = cases.CASES[name]
    path.write_text(json.dumps({"architectures": [], "torch_dtype": "bfloat16", **cases.config(case)}))
    found = [table.name for table in goldens.tables(path.parent, case)]
    assert found[0] == goldens.RIGHT
    assert len(found) == len(set(found)) == 1 + record.known()["kit"]["measured"][name]["wrong"]
    assert set(found[1:]) <= {*cases.MISTAKES, *case.wrong, *case.engines}
    assert record.known()["kit"]["measured"][name]["nearest"] in found


def test_every_case_tells_its_tables_apart_and_is_computed_right_by_transformers() -> None:
    for name, measured in record.known()["kit"]["measured"].items():
        assert measured["apart"] >= making.TELLS * making.EXACT, name
        assert measured["float32"] <= making.EXACT, name
        assert measured["wrong"] >= 1, name
    found = record.known()["engines"]["transformers float32"]["cases"]
    assert {name: case["level"] for name, case in found.items()} == dict.fromkeys(cases.CASES, 3)


def test_every_recorded_answer_has_the_numbers_that_exact_asks_for() -> None:
    """Each driver returns the scores of whole prompts, or 20 next tokens for each later turn."""
    for engine in record.known()["engines"].values():
        for name, case in engine["cases"].items():
            calls = cases.CASES[name].calls
            if "numbers" in case:
                assert case["numbers"] > len(making.places(calls, 0)), name
                assert case["numbers"] >= record.scorer().ENOUGH * len(calls.lengths), name


# --- the page


def test_every_failing_case_has_its_line_and_no_other() -> None:
    known = [(one["engine"], case) for one in page.faults() for case in one["cases"]]
    assert sorted(known) == sorted(page.failing(record.known()))


PYTHONS = {
    "transformers-4.57 float32": "ROPETOOL_V4_PYTHON", "vllm float32": "ROPETOOL_ENGINE_VLLM",
    "mlx-lm float32": "ROPETOOL_ENGINE_MLX",
}  # fmt: skip


@cache
def llama_cpp_sources() -> dict[str, str]:
    """Return the files at fault of llama.cpp, from the archive of llama-cpp-python that scripts/test keeps."""
    folder = Path(os.environ.get("ROPETOOL_LLAMA_CPP", "/nowhere/none"))
    archive = folder.parent / f"llama_cpp_python-{folder.name.rpartition('-')[2]}.tar.gz"
    wanted = {one["file"] for one in page.faults() if one["engine"].startswith("llama.cpp")}
    found = {}
    if archive.is_file():
        with tarfile.open(archive) as files:
            for member in files:
                name = member.name.partition("/vendor/llama.cpp/")[2]
                if name in wanted:
                    content = files.extractfile(member)
                    assert content is not None
                    found[name] = content.read().decode()
    return found


def source(engine: str, file: str) -> str | None:
    """Return the text of an engine's file; None where the engine is not here."""
    if engine.startswith("llama.cpp"):
        return llama_cpp_sources().get(file)
    python = Path(os.environ.get(PYTHONS[engine], "/nowhere/bin/python"))
    folders = list(python.parents[1].glob("lib/python3*/site-packages"))
    return (folders[0] / file).read_text(encoding="utf-8") if folders else None


@pytest.mark.parametrize("fault", page.faults(), ids=lambda one: f"{one['engine']}, {one['cases'][0]}")
def test_the_line_at_fault_says_what_is_quoted(fault: dict[str, Any]) -> None:
    text = source(fault["engine"], fault["file"])
    if text is None:
        pytest.skip(f"{fault['engine']} is not here with its sources")
    assert fault["code"] in text.splitlines()[fault["line"] - 1]


def test_the_page_shows_the_record() -> None:
    text = (ROOT / "scripts/conformance_kit/conformance.md").read_text(encoding="utf-8")
    for name, table in page.tables().items():
        assert f"<!-- {name} -->\n\n{table}\n<!-- /{name} -->" in text, "run scripts/conformance page"

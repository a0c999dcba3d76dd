"""Tables that llama.cpp cannot hold: the nearest is found, the difference is stated, and it is never passed in silence.

The oracles are transformers' own tables, ggml's ramp written out here, and the logits of both programs.
"""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import gguf_files
import models
import numpy as np
import pytest
from running import run

import ropetool
from ropetool.checkpoint import certificate
from ropetool.checkpoint.opening import open_checkpoint
from ropetool.errors import LossyExport
from ropetool.files.gguf import Patch, Value, ValueType, read_header, write_patched
from ropetool.gguf_export import export_checkpoint
from ropetool.rope.arithmetic import base_inv_freq
from ropetool.rope.deviation import deviation
from ropetool.rope.tables import LayerRope, Regime, RopeSet, RopeTable
from ropetool.verification import short_divergence
from ropetool.verification.readback.comparing import read_back, same_tables
from ropetool.verification.results import INEXACT, PASS, UNDECIDED, Check

pytest.importorskip("llama_cpp")

DEMO = Path(ropetool.__file__).parent / "demo" / "model"
# As openai/gpt-oss-20b is published.
PUBLISHED = {
    "rope_type": "yarn", "rope_theta": 150000.0, "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
    "original_max_position_embeddings": 4096,
}  # fmt: skip
SHORT = {**PUBLISHED, "original_max_position_embeddings": 128}
YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 256, "truncate": False}


@pytest.fixture(scope="module")
def oss(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a tiny gpt-oss whose ramp is not rounded."""
    changes = {"rope_parameters": SHORT, "max_position_embeddings": 4096, "head_dim": 64}
    return models.write(tmp_path_factory.mktemp("oss") / "model", "gpt_oss", changes)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the demo as a seed_oss of eight times its context: the same model, and llama.cpp takes no vectors for it."""
    changes = {"model_type": "seed_oss", "max_position_embeddings": 2048, "rope_scaling": YARN}
    folder = tmp_path_factory.mktemp("demo") / "model"
    return models.copied(DEMO, folder, architectures=["SeedOssForCausalLM"], **changes)


@pytest.fixture(scope="module")
def written(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """Return what exporting it says, and the file, with logits of few tokens compared."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(short_divergence, "MOST", 512)
        made = export_checkpoint(
            demo,
            tmp_path_factory.mktemp("out") / "x.gguf",
            outtype="f32",
            allow_inexact=True,
            command="ropetool export",
        )
    return made, made.output


# --- the distance


def ggml_yarn(base: float, dim: int, factor: float, length: int, *, truncate: bool = True) -> np.ndarray:
    """Return YaRN's table as ggml-cpu/ops.cpp computes it, or with ends that are not rounded, as transformers does."""

    def end(turns: float) -> float:
        return dim * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = end(32.0), end(1.0)
    low, high = (math.floor(low), math.ceil(high)) if truncate else (low, high)
    low, high = max(0, low), min(dim - 1, high)
    found = []
    for pair in range(dim // 2):
        turned = base ** (-2 * pair / dim)
        mix = 1 - min(1, max(0, (pair - low) / max(0.001, high - low)))
        found.append(turned / factor * (1 - mix) + turned * mix)
    return np.array(found)


def one_kind(table: RopeTable, context: int, window: int | None = None) -> RopeSet:
    entry = LayerRope("yarn", table, 2 * table.regimes[0].inv_freq.size, 2 * table.regimes[0].inv_freq.size, "half", (0, 1),
                      sliding_window=window)  # fmt: skip
    return RopeSet({"full_attention": entry}, context, None)


def test_the_figures_are_those_of_counting_token_by_token() -> None:
    wanted, found = (ggml_yarn(150000.0, 64, 32.0, 4096, truncate=truncate) for truncate in (False, True))
    apart = deviation(*(one_kind(RopeTable.fixed(table, 1.5), 8192) for table in (wanted, found)))
    assert apart is not None
    angles = np.abs(wanted - found).max() * np.arange(1, 8193)
    assert apart.tenth == 1 + int(np.argmax(angles >= 0.1))
    assert apart.radian == 1 + int(np.argmax(angles >= 1))
    differ = np.abs(wanted / found - 1) > 1e-6
    assert (apart.pairs, apart.of, apart.factor) == (int(differ.sum()), 32, 1)
    assert apart.ratio == pytest.approx(np.max(np.maximum(wanted / found, found / wanted)))
    lengths = np.exp(np.random.default_rng(0).uniform(0, np.log(8192), 20_000))[:, None]
    squares = np.abs(np.exp(1j * wanted * lengths) - np.exp(1j * found * lengths)) ** 2
    assert apart.rms == pytest.approx(math.sqrt(squares.mean()), rel=0.03)


def test_factors_windows_and_lengths_count() -> None:
    table = base_inv_freq(10000.0, 16)
    slower = RopeTable.fixed(table / 1.01, 1.25)
    apart = deviation(one_kind(RopeTable.fixed(table), 4096), one_kind(slower, 4096))
    near = deviation(one_kind(RopeTable.fixed(table), 4096, window=8), one_kind(slower, 4096, window=8))
    assert apart is not None
    assert near is not None
    assert apart.factor == near.factor == 1.25
    assert (apart.tenth, near.tenth) == (11, None)  # 0.1 rad is ten tokens of 0.0099 rad and a bit
    assert 0.25 < near.rms < apart.rms
    by_length = RopeTable((Regime(table, up_to=1024), Regime(table / 1.01)))
    later = deviation(one_kind(by_length, 4096), one_kind(RopeTable.fixed(table), 4096))
    assert later is not None
    assert later.tenth == 1025
    assert deviation(one_kind(by_length, 1024), one_kind(RopeTable.fixed(table), 1024)).rms == 0  # type: ignore[union-attr]
    assert deviation(one_kind(slower, 64), one_kind(slower, 64, window=8)) is None


# --- the nearest


def test_the_refusal_names_the_option_and_how_far_it_is(oss: Path, tmp_path: Path) -> None:
    with pytest.raises(LossyExport, match="truncate False") as caught:
        models.export(oss, tmp_path / "x.gguf")
    assert (
        "; or --allow-inexact, which writes the nearest table for llama.cpp: 8 of 32 pairs rotate" in caught.value.try_
    )
    assert list(tmp_path.iterdir()) == []


def test_gpt_oss_as_published_keeps_the_length_that_it_states(tmp_path: Path) -> None:
    """Its nearest ramp is its own, rounded; 8 and 18 stand for 8.09 and 17.4."""
    changes = {"rope_parameters": PUBLISHED, "max_position_embeddings": 131072, "head_dim": 64}
    source = models.write(tmp_path / "model", "gpt_oss", changes)
    made = models.export(source, tmp_path / "x.gguf", allow_inexact=True)
    keys = gguf_files.keys(made.output)
    assert keys["gpt-oss.rope.scaling.original_context_length"] == 4096
    exact, rounded = (ggml_yarn(150000.0, 64, 32.0, 4096, truncate=truncate) for truncate in (False, True))
    assert keys["ropetool.inexact.pairs"] == int((np.abs(exact / rounded - 1) > 1e-6).sum()) == 9
    assert keys["ropetool.inexact.radian_from"] == math.ceil(1 / np.abs(exact - rounded).max()) == 4530
    assert keys["ropetool.inexact.ratio"] == pytest.approx(np.max(rounded / exact), rel=1e-6)
    assert keys["ropetool.inexact"] == str(made.deviation)
    assert keys["ropetool.inexact.kl"] == -1  # nothing was run


def test_what_is_found_is_nearer_in_logits_than_the_plain_keys(oss: Path, tmp_path: Path) -> None:
    made = models.export(oss, tmp_path / "x.gguf", allow_inexact=True)
    stated = "gpt-oss.rope.scaling.original_context_length"
    assert gguf_files.keys(made.output)[stated] != 128
    plain = tmp_path / "plain.gguf"
    write_patched(read_header(made.output), Patch(set={stated: Value.of(ValueType.U32, 128)}), plain)
    wanted = models.torch_logits(oss)
    found, other = (models.apart(wanted, models.llama_logits(file)) for file in (made.output, plain))
    assert 0.01 < found < 0.4 < 0.7 < other


def test_what_is_exact_is_written_as_without_the_option(tmp_path: Path) -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
    source = models.checkpoint(tmp_path / "model", "qwen2", rope_scaling=scaling)
    without, made = (
        models.export(source, tmp_path / name / "x.gguf", allow_inexact=allowed)
        for name, allowed in (("without", False), ("with", True))
        if (tmp_path / name).mkdir() is None
    )
    assert made.output.read_bytes() == without.output.read_bytes()
    assert (made.deviation, made.notes) == (None, without.notes)


def test_a_table_that_follows_the_length_becomes_the_unscaled_one(tmp_path: Path) -> None:
    source = models.checkpoint(tmp_path / "model", rope_scaling={"rope_type": "dynamic", "factor": 4.0})
    made = models.export(source, tmp_path / "x.gguf", allow_inexact=True)
    assert (made.encoding, str(made.deviation)) == (
        "base frequency, inexact", "the tables agree up to 512 tokens and differ beyond"
    )  # fmt: skip
    assert same_tables(made.output, source).verdict == INEXACT


# --- what is said of it


def test_the_difference_stands_in_the_file_the_record_and_the_card(written: tuple[Any, Path]) -> None:
    made, file = written
    checks = {check.name: check for check in made.checks}
    assert checks["same tables"].verdict == INEXACT
    assert (checks["KL"].verdict, checks["KL"].figure > checks["KL"].limit) == (UNDECIDED, True)
    assert 1e-3 < checks["KL"].figure < 0.1
    keys = gguf_files.keys(file)
    assert keys["ropetool.inexact.kl"] == pytest.approx(checks["KL"].figure)
    assert keys["ropetool.inexact"] == str(made.deviation) == checks["same tables"].detail
    record = json.loads(Path(f"{file}.ropetool.json").read_text())
    assert record["export"]["deviation"] == made.to_json()["deviation"] == made.deviation.to_json()
    card = Path(f"{file}.README.md").read_text()
    assert (
        f"cannot represent the positions of the checkpoint exactly: {made.deviation}; KL {checks['KL'].figure:.2g} nats per token."
        in card
    )
    assert f"the RoPE table differs from the checkpoint (--allow-inexact): {made.deviation}" in made.notes


def tables_of(file: Path, source: Path) -> dict[str, Check]:
    return {check.name: check for check in read_back(file, source)}


@pytest.mark.parametrize("recorded", [True, False])
def test_readback_says_that_tables_differ_and_by_how_much(
    recorded: bool, written: tuple[Any, Path], demo: Path, tmp_path: Path
) -> None:
    made, file = written
    place = Path(shutil.copy(file, tmp_path / "x.gguf"))
    if recorded:
        record = json.loads(Path(f"{file}.ropetool.json").read_text()) | {"source": str(demo)}
        models.save(Path(f"{place}.ropetool.json"), record)
    found = tables_of(place, demo)
    assert (found["tables"].verdict, found["tables"].detail) == (INEXACT, str(made.deviation))
    assert found["files"].verdict == PASS


def test_without_its_checkpoint_it_is_held_against_the_plan(tmp_path: Path) -> None:
    source = Path(shutil.copytree(DEMO, tmp_path / "source"))
    config = json.loads((source / "config.json").read_text())
    models.save(source / "config.json", {**config, "model_type": "seed_oss", "architectures": ["SeedOssForCausalLM"]})
    plan = ropetool.plan(source, "yarn", factor=8, params={"truncate": False}, for_runtimes=("transformers",))
    extended = ropetool.apply(plan, source, tmp_path / "extended").output
    made = models.export(extended, tmp_path / "x.gguf", outtype="f32", allow_inexact=True, allow_unverified=True)
    shutil.rmtree(extended)
    tables = {check.name: check for check in read_back(made.output)}["tables"]
    assert (tables.verdict, tables.detail) == (INEXACT, str(made.deviation))
    header = read_header(made.output)
    record = Path(f"{made.output}.ropetool.json").read_text()
    for key, value in (("rope.freq_base", 10100.0), ("rope.scaling.attn_factor", 1.1)):
        other = tmp_path / f"{key}.gguf"
        write_patched(header, Patch(set={f"seed_oss.{key}": Value.of(ValueType.F32, value)}), other)
        Path(f"{other}.ropetool.json").write_text(record)
        assert {check.name: check for check in read_back(other)}["tables"].verdict == "fail"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("seed_oss.rope.freq_base", 10100.0), ("seed_oss.rope.scaling.factor", 7.0), ("seed_oss.rope.scaling.attn_factor", 0.9),
        ("seed_oss.context_length", 4096),
    ],
)  # fmt: skip
def test_what_differs_further_than_the_file_states_fails(
    key: str, value: float, written: tuple[Any, Path], demo: Path, tmp_path: Path
) -> None:
    kind = ValueType.U32 if isinstance(value, int) else ValueType.F32
    write_patched(read_header(written[1]), Patch(set={key: Value.of(kind, value)}), tmp_path / "y.gguf")
    assert tables_of(tmp_path / "y.gguf", demo)["tables"].verdict == "fail"


def test_a_file_that_does_not_state_it_fails(written: tuple[Any, Path], demo: Path, tmp_path: Path) -> None:
    ours = frozenset(key for key in read_header(written[1]).values if key.startswith("ropetool."))
    write_patched(read_header(written[1]), Patch(remove=ours), tmp_path / "y.gguf")
    assert same_tables(tmp_path / "y.gguf", demo).verdict == "fail"


def test_a_certificate_names_it(written: tuple[Any, Path], demo: Path, tmp_path: Path) -> None:
    made, file = written
    for each in (file, Path(f"{file}.ropetool.json"), Path(f"{file}.README.md")):
        shutil.copy(each, tmp_path)
    found = ropetool.verify(tmp_path / file.name, baseline=demo, lengths=[64, 128], suite="quick", segments=8, trials=2)
    tables = next(check for check in found.checks if check.name == "tables")
    assert (tables.verdict, tables.detail) == (INEXACT, str(made.deviation))
    held = certificate.read(tmp_path / file.name)
    assert held is not None
    assert [check["verdict"] for check in held.checks if check["name"] == "tables"] == [INEXACT]
    assert str(made.deviation) in (tmp_path / f"{file.name}.README.md").read_text()


def test_the_command_says_it(demo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    refused = run("export", str(demo), "-o", "x.gguf")
    assert refused.code == 1
    assert "or --allow-inexact, which writes the nearest table for llama.cpp: 12 of 32 pairs" in refused.err
    done = run("export", str(demo), "-o", "x.gguf", "--allow-inexact", "--no-check", "--json")
    data = json.loads(done.out)
    assert done.code == 0
    assert (data["deviation"]["pairs"], data["deviation"]["of"], data["encoding"]) == (12, 32, "yarn keys, inexact")
    assert open_checkpoint(tmp_path / "x.gguf").name == "seed_oss"

"""Planted defects in the extended demo checkpoint and its GGUF files, and which checks find them, as docs/verify.md says.

Each is verified twice: with the provenance file at hand, and without it with the baseline alone.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from exporting import maker
from safetensors.torch import load_file, save_file
from verifying import cut_texts, remember

import ropetool
from ropetool.checkpoint import provenance
from ropetool.errors import RopetoolError
from ropetool.files.gguf import Patch, Value, ValueType, read_header, write_patched
from ropetool.runtimes.llama_cpp import architectures as archs
from ropetool.verification import run as verification_run
from ropetool.verification.checkpoints import verify_checkpoint
from ropetool.verification.gate import Limits
from ropetool.verification.measures.rotary import check_rotation
from ropetool.verification.readback.comparing import read_back
from ropetool.verification.results import FAIL, UNDECIDED, Check

ROOT = Path(ropetool.__file__).parents[1]
DEMO = ROOT / "ropetool" / "demo" / "model"
LENGTHS = [256, 512]
RESEARCH = Limits(grade="research")  # what a factor of 8 costs the demo is too much for more
PAGE = ROOT / "docs" / "verify.md"


@dataclass(frozen=True)
class Row:
    """A row of the table: what fails with provenance at hand, and what with the baseline alone."""

    defect: str
    recorded: str
    alone: str


def table() -> dict[str, Row]:
    """Return the rows between the markers of docs/verify.md, by the defect's name."""
    text = PAGE.read_text(encoding="utf-8").partition("<!-- defects -->")[2].partition("<!-- /defects -->")[0]
    rows = [
        [cell.strip() for cell in line.strip("| ").split("|")] for line in text.splitlines() if line.startswith("| ")
    ]
    return {row[0]: Row(*row[:3]) for row in rows[2:]}


def recorded_way(target: Path) -> str:
    """Return the names of the checks that fail before anything is measured, or what refuses the target."""
    try:
        return failures([*read_back(target), check_rotation(target)])
    except RopetoolError as error:
        return f"refused: {type(error).__name__}"


def alone_way(target: Path, **options: Any) -> str:
    """Return the names of all checks that fail without provenance, or what refuses the target."""
    provenance.place(target).unlink()
    try:
        return failures(
            verify_checkpoint(target, lengths=LENGTHS, suite="quick", segments=8, limits=RESEARCH, **options).checks
        )
    except RopetoolError as error:
        return f"refused: {type(error).__name__}"


def failures(checks: Sequence[Check]) -> str:
    """Return the names of the checks that fail, else of those that decide nothing, which is no pass either."""
    found = {
        verdict: ", ".join(check.name for check in checks if check.verdict == verdict) for verdict in (FAIL, UNDECIDED)
    }
    return found[FAIL] or (f"undecided: {found[UNDECIDED]}" if found[UNDECIDED] else "nothing")


# --- a directory


def rope(**changes: Any) -> Callable[[Path], None]:
    def plant(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        config["rope_scaling"] |= changes
        (folder / "config.json").write_text(json.dumps(config, indent=2))

    return plant


def theta(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["rope_theta"] *= 1.1
    (folder / "config.json").write_text(json.dumps(config, indent=2))


def tensors(change: Callable[[dict[str, torch.Tensor]], None]) -> Callable[[Path], None]:
    def plant(folder: Path) -> None:
        path = folder / "model.safetensors"
        found = load_file(path)
        change(found)
        path.unlink()  # a hard link of the source's
        save_file({name: tensor.contiguous() for name, tensor in found.items()}, path, metadata={"format": "pt"})

    return plant


def one_q_row(found: dict[str, torch.Tensor]) -> None:
    found["model.layers.1.self_attn.q_proj.weight"][70] *= -1


def one_k_head(found: dict[str, torch.Tensor]) -> None:
    found["model.layers.2.self_attn.k_proj.weight"][:64] = 0


def swapped_layers(found: dict[str, torch.Tensor]) -> None:
    for name in [name for name in found if ".layers.1." in name]:
        other = name.replace(".layers.1.", ".layers.2.")
        found[name], found[other] = found[other].clone(), found[name].clone()


def swapped_ids(folder: Path) -> None:
    path = folder / "tokenizer.json"
    data = json.loads(path.read_text())
    vocab = data["model"]["vocab"]
    vocab["Ġthe"], vocab["Ġof"] = vocab["Ġof"], vocab["Ġthe"]
    path.unlink()
    path.write_text(json.dumps(data))


def truncated(folder: Path) -> None:
    path = folder / "model.safetensors"
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data[:-4096])


IN_DIRECTORIES: dict[str, Callable[[Path], None]] = {
    "none": lambda folder: None,
    "attention factor dropped": rope(attention_factor=1.0),
    "rope_theta 10 % larger": theta,
    "original length doubled": rope(original_max_position_embeddings=512),
    "factor 7 for 8": rope(factor=7.0),
    "truncate false": rope(truncate=False),
    "scaling lost": rope(rope_type="default"),
    "one row of q negated": tensors(one_q_row),
    "one head of k zero": tensors(one_k_head),
    "two layers exchanged": tensors(swapped_layers),
    "two token ids exchanged": swapped_ids,
    "weights cut off": truncated,
}


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder whose intact files are measured once; each defect is planted into a copy beside them."""
    folder = tmp_path_factory.mktemp("defects")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verification_run, "DIVERGENCE_TOKENS", 2048)  # four rows say it as well
        cut_texts(patch, folder / "texts", 8000)
        remember(patch, [folder / name for name in ("model", "extended", "Q8_0.gguf", "Q4_K_M.gguf")])
        yield folder


@pytest.fixture(scope="module")
def extended(folder: Path) -> Path:
    source = Path(shutil.copytree(DEMO, folder / "model"))
    return ropetool.apply(ropetool.plan(source, "yarn", factor=8), source, source.with_name("extended")).output


@pytest.mark.parametrize("defect", IN_DIRECTORIES)
def test_defects_of_a_directory_are_found_as_the_table_says(defect: str, extended: Path, tmp_path: Path) -> None:
    broken = Path(shutil.copytree(extended, extended.with_name(tmp_path.name)))  # its record names the source beside it
    IN_DIRECTORIES[defect](broken)
    recorded = recorded_way(broken)
    alone = alone_way(broken, baseline=extended.with_name("model"))
    assert Row(defect, recorded, alone) == table()[defect]
    assert (recorded == "nothing") == (defect == "none")


# --- GGUF files, quantised


def quantised(source: Path, output: Path, kind: str) -> Path:
    """Return the file with its matrices in another type, written by llama.cpp's own quantiser."""
    llama_cpp = pytest.importorskip("llama_cpp")
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{kind}")
    assert llama_cpp.llama_model_quantize(str(source).encode(), str(output).encode(), params) == 0
    return output


def keys(**changes: tuple[ValueType, Any]) -> Callable[[Path], None]:
    def plant(path: Path) -> None:
        changed = path.with_name("changed.gguf")
        values = {f"llama.{key.replace('__', '.')}": Value.of(kind, value) for key, (kind, value) in changes.items()}
        write_patched(read_header(path), Patch(set=values), changed)
        changed.replace(path)

    return plant


def wrong_tensor(path: Path) -> None:
    header = read_header(path)
    tensor = next(t for t in header.tensors if t.name == "blk.1.ffn_up.weight")
    data = np.memmap(path, dtype=np.uint8, mode="r+")
    start = header.data_start + tensor.offset
    data[start : start + tensor.nbytes // 2] = np.random.default_rng(0).permutation(
        data[start : start + tensor.nbytes // 2]
    )
    data.flush()


F32, U32 = ValueType.F32, ValueType.U32
IN_GGUF: dict[str, Callable[[Path], None]] = {
    "none": lambda path: None,
    "attention factor dropped": keys(**{archs.ATTN_FACTOR.replace(".", "__"): (F32, 1 / (0.1 * np.log(8) + 1))}),
    "rope_theta 10 % larger": keys(rope__freq_base=(F32, 11000.0)),
    "original length doubled": keys(rope__scaling__original_context_length=(U32, 512)),
    "factor 7 for 8": keys(rope__scaling__factor=(F32, 7.0)),
    "bytes of a tensor wrong": wrong_tensor,
}


@pytest.fixture(scope="module")
def files(extended: Path) -> dict[str, tuple[Path, Path]]:
    """The unextended and the extended file of each type, extended without touching the data."""
    folder = extended.parent
    whole = maker.export(extended.with_name("model"), folder / "f32.gguf", outtype="f32").output
    made = {}
    for kind in ("Q8_0", "Q4_K_M"):
        source = quantised(whole, folder / f"{kind}.gguf", kind)
        plan = ropetool.plan(source, "yarn", factor=8)
        made[kind] = (source, ropetool.apply(plan, source, folder / f"{kind}-extended.gguf").output)
    return made


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_K_M"])
@pytest.mark.parametrize("defect", IN_GGUF)
def test_defects_of_a_quantised_file_are_found_as_the_table_says(
    defect: str, kind: str, extended: Path, files: dict[str, tuple[Path, Path]], tmp_path: Path
) -> None:
    source, good = files[kind]
    broken = Path(shutil.copyfile(good, good.with_name(f"{tmp_path.name}.gguf")))
    shutil.copyfile(provenance.place(good), provenance.place(broken))
    IN_GGUF[defect](broken)
    recorded = recorded_way(broken)
    alone = alone_way(broken, baseline=source, against=extended)
    assert Row(f"{kind}: {defect}", recorded, alone) == table()[f"{kind}: {defect}"]
    assert (recorded == "nothing") == (defect == "none")


def test_every_defect_is_in_the_table_and_found_at_least_one_way() -> None:
    rows = table()
    assert set(rows) == {*IN_DIRECTORIES, *(f"{kind}: {defect}" for kind in ("Q8_0", "Q4_K_M") for defect in IN_GGUF)}
    missed = [row.defect for row in rows.values() if row.recorded == row.alone == "nothing"]
    assert [name for name in missed if not re.search(r"\bnone$", name)] == []

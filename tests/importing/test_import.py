"""The way back: a GGUF file as a checkpoint whose tensors are the source's and which computes what llama.cpp does.

The oracles are the checkpoint that transformers wrote before the export, the gguf package's decoder of blocks, and the
logits of llama.cpp.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import gguf_files
import models
import numpy as np
import pytest
from configs import EXPORTED
from models import SHORT
from running import run

import ropetool
from ropetool import families
from ropetool.checkpoint.opening import open_checkpoint
from ropetool.errors import CorruptFile, LossyExport, VerificationFailed
from ropetool.files.gguf import Patch, Value, ValueType, read_header, write_patched
from ropetool.gguf_import import Imported, tensors
from ropetool.gguf_import import import_gguf as imported
from ropetool.gguf_model.shapes.orders import ORDERS

TOLERANCE = 2e-4  # of the largest logit, as for exports
# What a class computes otherwise than the checkpoint's own says: these are written as files of the other's architecture.
AS_LLAMA = dict.fromkeys(("mistral", "ministral", "internlm3", "iquestcoder"), "llama")
AS_TOLD = {
    "helium": "helium"
}  # its own class has the channels of a head in another order than the llama that it would become
RUN = ("llama", "mixtral", "qwen2", "qwen3_moe", "gemma3_text", "phi3", "deepseek_v3", "gpt_oss")
Files = Callable[..., tuple[Path, Path]]


def import_gguf(source: Path, output: Path, **options: Any) -> Imported:
    """Import without the comparison that ends it: tests look for themselves."""
    return imported(source, output, check=False, **options)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Make a checkpoint of a family and its file, each once: its source and the export of it, under yarn or as it is."""
    made: dict[tuple[str, str, str], tuple[Path, Path]] = {}

    def make(family: str, method: str = "", outtype: str = "auto") -> tuple[Path, Path]:
        if (family, method, outtype) not in made:
            folder = tmp_path_factory.mktemp(family)
            source = models.write(folder / "source", family)
            if method:
                source = ropetool.apply(ropetool.plan(source, method, factor=4), source, folder / method).output
            options: dict[str, Any] = {"allow_full_attention": True, "allow_unverified": True, "sidecars": False}
            made[family, method, outtype] = (
                source,
                models.export(source, folder / "m.gguf", outtype=outtype, **options).output,
            )
        return made[family, method, outtype]

    return make


def stored(path: Path) -> dict[str, np.ndarray]:
    """Return the tensors of a checkpoint as safetensors reads them, bfloat16 widened."""
    import torch
    from safetensors.torch import load_file

    found = {name: tensor for file in path.glob("*.safetensors") for name, tensor in load_file(file).items()}
    return {name: t.to(torch.float32).numpy() if t.dtype == torch.bfloat16 else t.numpy() for name, t in found.items()}


@pytest.mark.parametrize("family", sorted(name for name in EXPORTED if not families.get(name).alone))
def test_a_text_model_without_a_class_of_its_own_stays_a_file(family: str, files: Files, tmp_path: Path) -> None:
    _, file = files(family)
    arch = families.get(family).gguf_architecture
    if any(families.get(name).alone for name in families.exported() if families.get(name).gguf_architecture == arch):
        return
    with pytest.raises(LossyExport, match=f"import does not support a file of the architecture {arch!r}"):
        import_gguf(file, tmp_path / "back")


@pytest.mark.parametrize("family", sorted(name for name in EXPORTED if families.get(name).alone))
def test_tensors_come_back_byte_for_byte(family: str, files: Files, tmp_path: Path) -> None:
    source, file = files(family)
    written = import_gguf(file, tmp_path / "back", as_type=AS_TOLD.get(family, ""))
    assert written.model_type == AS_LLAMA.get(family, family)
    before, after = stored(source), stored(written.output)
    tied = {"lm_head.weight"} if "lm_head.weight" not in before else set()
    assert after.keys() - tied == before.keys()
    for name, tensor in before.items():
        if name.endswith("A_log"):  # the file holds -exp(w), which is rounded
            np.testing.assert_allclose(after[name], tensor, rtol=0, atol=1e-6)
        elif family in models.ADDED_ONE and "norm" in name:  # the file holds w + 1, which is rounded
            np.testing.assert_allclose(after[name], tensor, rtol=0, atol=1e-7 * (1 + np.abs(tensor).max()))
        else:
            np.testing.assert_array_equal(after[name], tensor, err_msg=name)


GEMMA4 = {
    "keys are values": {
        "attention_k_eq_v": True, "num_global_key_value_heads": 1, "num_kv_shared_layers": 0, "use_double_wide_mlp": False,
        "hidden_size_per_layer_input": 0,
    },
    "experts": {"enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 48},
    "capped logits": {"final_logit_softcapping": 3.0},
}  # fmt: skip


@pytest.mark.parametrize("name", ["", *GEMMA4])
def test_heads_and_layers_of_several_kinds_come_back(name: str, tmp_path: Path) -> None:
    source = models.write(tmp_path / "source", "gemma4_text", GEMMA4.get(name))
    if not name:  # all of whose pairs turn four times slower, but for those that stand still
        source = ropetool.apply(ropetool.plan(source, "linear", factor=4), source, tmp_path / "linear").output
    file = models.export(source, tmp_path / "m.gguf", allow_unverified=True, sidecars=False).output
    back = import_gguf(file, tmp_path / "back").output
    said, found = (json.loads((path / "config.json").read_text()) for path in (source, back))
    assert {key: found[key] for key in GEMMA4.get(name, {})} == GEMMA4.get(name, {})
    assert found["rope_parameters"]["full_attention"] == said["rope_parameters"]["full_attention"]
    before, after = stored(source), stored(back)
    assert {key: tensor.shape for key, tensor in before.items()} == {key: after[key].shape for key in before}
    assert all((after[key] == tensor).all() for key, tensor in before.items())


@pytest.mark.parametrize("family", RUN)
@pytest.mark.parametrize("method", ["", "yarn"])
def test_transformers_computes_what_llama_cpp_does_with_the_file(
    family: str, method: str, files: Files, tmp_path: Path
) -> None:
    pytest.importorskip("llama_cpp")
    _, file = files(family, method)
    back = import_gguf(file, tmp_path / "back").output
    apart = models.apart(models.llama_logits(file, SHORT), models.torch_logits(back, SHORT))
    assert apart < TOLERANCE


# No file of a gemma3 or smollm3 holds llama3's table.
TABLES = [
    *((family, method) for family in ("llama", "mistral", "granite", "arcee") for method in ("yarn", "linear", "ntk", "llama3")),
    *((family, method) for family in ("gemma3_text", "smollm3") for method in ("yarn", "linear", "ntk")),
]  # fmt: skip


@pytest.mark.parametrize(("family", "method"), TABLES)
def test_a_table_is_said_by_the_keys_of_its_method(family: str, method: str, files: Files, tmp_path: Path) -> None:
    source, file = files(family, method)
    config = json.loads((import_gguf(file, tmp_path / "back").output / "config.json").read_text())
    wanted = ropetool.inspect(source).rope
    found = ropetool.inspect(tmp_path / "back").rope
    assert wanted is not None
    assert found is not None
    for kind, entry in found.entries.items():
        assert entry.table is None or entry.table.agrees(wanted.entries[kind].table)
    if method != "ntk":  # another base alone
        assert f'"rope_type": "{method}"' in json.dumps(config)


def test_a_table_without_a_name_is_said_by_lists(tmp_path: Path) -> None:
    source = models.checkpoint(tmp_path / "source")
    file = models.export(source, tmp_path / "m.gguf", sidecars=False).output
    divisors = np.geomspace(1, 7, 4).astype(np.float32)
    write_patched(read_header(file), Patch(tensors={"rope_freqs.weight": divisors}), tmp_path / "odd.gguf")
    written = import_gguf(tmp_path / "odd.gguf", tmp_path / "back")
    assert written.encoding == "a full table as longrope lists"
    found = ropetool.inspect(tmp_path / "back").rope
    assert found is not None
    table = found.entries["full_attention"].table
    assert table is not None
    np.testing.assert_allclose(table.at(512).inv_freq, 10000.0 ** (-np.arange(4) / 4) / divisors, rtol=1e-6)


@pytest.mark.parametrize("outtype", ["q8_0", "q4_0", "f16", "bf16", "q4_k"])
@pytest.mark.parametrize("dtype", ["auto", "f32"])
def test_numbers_in_blocks_are_those_of_the_gguf_package(outtype: str, dtype: str, tmp_path: Path) -> None:
    if outtype == "q4_k":
        pytest.importorskip("llama_cpp")
    source = models.checkpoint(tmp_path / "source", "qwen3", hidden_size=256, intermediate_size=512)
    file = models.export(source, tmp_path / "m.gguf", outtype=outtype, sidecars=False).output
    written = import_gguf(file, tmp_path / "back", dtype=dtype)
    after = stored(written.output)
    names = {
        "token_embd.weight": "model.embed_tokens.weight",
        "blk.1.ffn_down.weight": "model.layers.1.mlp.down_proj.weight",
    }
    for tensor in gguf.GGUFReader(file).tensors:
        if tensor.name in names:
            raw = tensor.data
            if tensor.tensor_type.name == "BF16":
                wanted = (raw.view("<u2").astype("<u4") << 16).view("<f4").reshape(tensor.shape[::-1])
            else:
                wanted = gguf.quants.dequantize(raw, tensor.tensor_type)
            kept = dtype == "f32" or outtype in ("f16", "bf16")
            np.testing.assert_allclose(after[names[tensor.name]], wanted, rtol=0 if kept else 2**-8, atol=0)
    rounds = dtype == "auto" and outtype.startswith("q")
    assert ("--dtype f32" in " ".join(written.notes)) == (rounds or (dtype == "auto" and outtype != "f32"))


def test_tensors_are_made_piece_by_piece(files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, file = files("gpt_oss", "", "q8_0")
    whole = stored(import_gguf(file, tmp_path / "whole").output)
    monkeypatch.setattr(tensors, "CHUNK", 64)
    monkeypatch.setattr(tensors, "MAX_SHARD", 100_000)
    pieces = import_gguf(file, tmp_path / "pieces").output
    assert len(list(pieces.glob("model-*-of-*.safetensors"))) > 2
    index = json.loads((pieces / "model.safetensors.index.json").read_text())["weight_map"]
    found = stored(pieces)
    assert index.keys() == found.keys() == whole.keys()
    for name, tensor in whole.items():
        np.testing.assert_array_equal(found[name], tensor, err_msg=name)


@pytest.mark.parametrize("name", sorted(ORDERS))
def test_an_order_is_taken_back(name: str) -> None:
    counts = {
        "head_dim": 4, "heads": 6, "kv_heads": 3, "plain": 2, "value": 5, "linear_keys": 2, "linear_key_dim": 3, "linear_values": 4,
        "linear_value_dim": 5,
    }  # fmt: skip
    shapes = {
        "split_qkv": (48, 7), "latent_keys": (42, 6), "latent_values": (42, 6), "interleave_pairs": (12, 7), "delta_qkv": (52, 7),
        "delta_gate": (52, 7), "tiled_tail": (32, 7), "tiled_rows": (20, 7), "tiled_columns": (7, 20),
    }  # fmt: skip
    shape = shapes.get(name, (3, 4, 6))
    numbers = np.arange(np.prod(shape), dtype=np.float64)
    back = np.full(numbers.shape, -1.0)
    taken = 0
    for turn in ORDERS[name](counts, shape):
        moved = turn.apply(numbers)
        assert moved.size == turn.taken * turn.shape[0]
        turn.put(moved, back)
        taken += moved.size
    np.testing.assert_array_equal(back[back >= 0], numbers[back >= 0])
    assert (back >= 0).sum() == taken


def test_a_split_file_comes_back_whole(files: Files, tmp_path: Path) -> None:
    source, _ = files("qwen2")
    first = models.export(source, tmp_path / "m.gguf", split_max_tensors=8, sidecars=False).output
    before, after = stored(source), stored(import_gguf(first, tmp_path / "back").output)
    assert before.keys() == after.keys()
    assert all((after[name] == tensor).all() for name, tensor in before.items())


def test_another_class_of_the_architecture_can_be_asked_for(files: Files, tmp_path: Path) -> None:
    _, file = files("mistral")
    assert import_gguf(file, tmp_path / "a").model_type == "llama"
    written = import_gguf(file, tmp_path / "b", as_type="mistral")
    assert written.model_type == "mistral"
    assert json.loads((written.output / "config.json").read_text())["sliding_window"] is None
    with pytest.raises(LossyExport, match="import does not support a file as gemma2") as refused:
        import_gguf(file, tmp_path / "c", as_type="gemma2")
    assert {"--as llama", "--as mistral", "--as mixtral"} <= {*refused.value.try_.split(" or ")}


# --- bad input


def patched(file: Path, target: Path, **keys: tuple[ValueType, Any]) -> Path:
    values = {key.replace("__", "."): Value.of(kind, value) for key, (kind, value) in keys.items()}
    write_patched(read_header(file), Patch(set=values), target)
    return target


def rewritten(file: Path, target: Path, drop: str = "", **add: np.ndarray) -> Path:
    """Write the file again with the gguf package, with other tensors."""

    def kept(name: str, tensor: Any) -> Any:
        return None if name == drop else (tensor.tensor_type, tensor.data)

    return gguf_files.copy(file, target, tensor=kept, more=add)


def test_a_key_that_no_config_says_is_refused(files: Files, tmp_path: Path) -> None:
    _, file = files("qwen2")
    odd = patched(file, tmp_path / "odd.gguf", qwen2__logit_scale=(ValueType.F32, 0.5))
    with pytest.raises(LossyExport, match=r"qwen2\.logit_scale is 0.5, which a qwen2 config cannot set"):
        import_gguf(odd, tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_a_number_that_contradicts_others_is_refused(files: Files, tmp_path: Path) -> None:
    _, file = files("gemma2")
    odd = patched(file, tmp_path / "odd.gguf", gemma2__vocab_size=(ValueType.U32, 77))
    with pytest.raises(LossyExport, match=r"gemma2\.vocab_size is 77, but a gemma2 model of these sizes uses 300"):
        import_gguf(odd, tmp_path / "back")


def test_missing_and_unknown_tensors_are_named(files: Files, tmp_path: Path) -> None:
    _, file = files("qwen2")
    with pytest.raises(CorruptFile, match=r"has no tensor blk\.1\.ffn_up\.weight, which its class requires"):
        import_gguf(rewritten(file, tmp_path / "a.gguf", drop="blk.1.ffn_up.weight"), tmp_path / "back")
    with pytest.raises(LossyExport, match=r"has the tensor 'blk\.0\.attn_gate\.weight', which its class does not have"):
        import_gguf(
            rewritten(file, tmp_path / "b.gguf", **{"blk.0.attn_gate.weight": np.zeros(4, np.float32)}),
            tmp_path / "back",
        )
    assert not (tmp_path / "back").exists()


def test_an_architecture_without_a_class_is_refused(tmp_path: Path) -> None:
    gguf_files.write(tmp_path / "m.gguf", "rwkv7", {"context_length": 64}, {})
    with pytest.raises(LossyExport, match="import does not support a file of the architecture 'rwkv7'") as refused:
        import_gguf(tmp_path / "m.gguf", tmp_path / "back")
    assert refused.value.try_


def test_a_vocabulary_alone_is_no_model(files: Files, tmp_path: Path) -> None:
    _, file = files("qwen2")
    with pytest.raises(
        CorruptFile, match=r"has no tensor token_embd\.weight; a vocabulary without tensors is not a model"
    ):
        import_gguf(rewritten(file, tmp_path / "a.gguf", drop="token_embd.weight"), tmp_path / "back")


def test_a_file_cut_short_writes_nothing(files: Files, tmp_path: Path) -> None:
    _, file = files("qwen2")
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(file.read_bytes()[:-4096])
    done = run("import", str(cut), "-o", str(tmp_path / "back"))
    assert done.code == 1
    assert f"Error: {cut}: " in done.err
    assert "ends" in done.err
    assert not (tmp_path / "back").exists()


@pytest.mark.parametrize(
    ("defect", "sentence"),
    [
        ("absent", "the shard m-00002-of-00004.gguf is missing from its folder"),
        ("of another model", "but so does m-00001-of-00004.gguf"),
        ("of another split", "so llama.cpp requires the name m-00003-of-00004.gguf"),
        ("whole", "is not a shard: it has no split.count"),
    ],
)
def test_a_split_that_does_not_belong_together_is_refused(
    defect: str, sentence: str, files: Files, tmp_path: Path
) -> None:
    source, whole = files("qwen2")
    first = models.export(source, tmp_path / "m.gguf", split_max_tensors=8, sidecars=False).output
    second, third = (tmp_path / f"m-0000{number}-of-00004.gguf" for number in (2, 3))
    assert first.name == "m-00001-of-00004.gguf"
    second.unlink()
    if defect == "of another model":
        other, _ = files("llama")
        foreign = models.export(other, tmp_path / "o.gguf", split_max_tensors=6, sidecars=False).output
        count = Patch(set={"split.count": Value.of(ValueType.U16, 4)})
        write_patched(read_header(foreign.with_name(foreign.name.replace("00001-of", "00002-of"))), count, second)
    elif defect != "absent":
        shutil.copy(third if defect == "of another split" else whole, second)
    done = run("import", str(first), "-o", str(tmp_path / "back"))
    assert done.code == 1
    lines = done.err.strip().splitlines()
    assert lines[0].startswith("Error: ")
    assert sentence in lines[0]
    assert len(lines) == 2
    assert lines[1].startswith("Try: ")
    assert not (tmp_path / "back").exists()


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("tokenizer.ggml.model", "rwkv", 'tokenizer.ggml.model is "rwkv"; ropetool writes a tokenizer.json only for'),
        (
            "tokenizer.ggml.pre",
            "nobodys",
            r"llama.cpp cannot load this file: tokenizer.ggml.pre is 'nobodys', which llama.cpp does not know",
        ),
    ],
)
def test_a_tokenizer_that_cannot_be_said_is_named(
    key: str, value: str, sentence: str, files: Files, tmp_path: Path
) -> None:
    _, file = files("qwen2")
    write_patched(read_header(file), Patch(set={key: Value.of(ValueType.STR, value)}), tmp_path / "odd.gguf")
    done = run("import", str(tmp_path / "odd.gguf"), "-o", str(tmp_path / "back"))
    error, step = done.err.strip().splitlines()
    assert (done.code, error.startswith("Error: "), step.startswith("Try: ")) == (1, True, True)
    assert sentence in error
    assert not (tmp_path / "back").exists()


def test_numbers_beyond_the_type_are_refused(tmp_path: Path) -> None:
    source = models.checkpoint(tmp_path / "source")
    name = "model.layers.0.mlp.up_proj.weight"
    held = models.weights(json.loads((source / "config.json").read_text()))
    held[name][1][0, 0] = 1e6
    models.write_safetensors(source / "model.safetensors", held)
    file = models.export(source, tmp_path / "m.gguf", sidecars=False).output
    with pytest.raises(LossyExport, match="contains numbers too large for F16") as refused:
        import_gguf(file, tmp_path / "back", dtype="f16")
    assert refused.value.try_ == "--dtype bf16, or f32"


def test_a_checkpoint_is_sent_to_export(tmp_path: Path) -> None:
    source = models.checkpoint(tmp_path / "source")
    done = run("import", str(source))
    assert done.code == 1
    assert "is already a Hugging Face checkpoint" in done.err
    assert f"Try: ropetool export {source}" in done.err


# --- the comparison


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Export the demo checkpoint with weights in blocks of 256, whose inputs llama.cpp rounds in such blocks too."""
    source = shutil.copytree(
        Path(ropetool.__file__).parent / "demo" / "model", tmp_path_factory.mktemp("demo") / "demo"
    )
    return models.export(source, source.with_name("demo.gguf"), outtype="q4_k_m", sidecars=False).output


def test_a_sound_import_of_small_blocks_passes_with_room(demo: Path, tmp_path: Path) -> None:
    checks = {check.name: check for check in imported(demo, tmp_path / "m", dtype="f32").checks}
    for name in ("KL", "KL p99", "KL window", "KL rare tokens"):
        check = checks[name]
        assert check.verdict == "pass"
        assert check.figure is not None
        assert check.limit is not None
        assert check.figure < check.limit / 8


def test_rows_of_one_layer_in_the_order_of_the_file_fail(
    demo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from safetensors.numpy import load_file, save_file

    def spoiled(model: Any, made: Any, stage: Path, *rest: Any) -> Any:
        written = tensors.write_tensors(model, made, stage, *rest)
        found = load_file(stage / "model.safetensors")
        keys = found["model.layers.2.self_attn.k_proj.weight"]
        pairs = keys.reshape(-1, 2, 32, keys.shape[1]).swapaxes(1, 2)  # of heads of 64 channels
        found["model.layers.2.self_attn.k_proj.weight"] = pairs.reshape(keys.shape).copy()
        save_file(found, stage / "model.safetensors", metadata={"format": "pt"})
        return written

    monkeypatch.setattr("ropetool.gguf_import.write_tensors", spoiled)
    with pytest.raises(VerificationFailed, match="does not compute the same as the checkpoint"):
        imported(demo, tmp_path / "m", dtype="f32")
    assert not (tmp_path / "m").exists()


# --- the command


def test_the_command_writes_what_extend_and_export_take(files: Files, tmp_path: Path) -> None:
    _, file = files("llama")
    shutil.copy(file, tmp_path / "m.gguf")
    done = run("import", str(tmp_path / "m.gguf"), "--json")
    assert done.code == 0, done.err
    data = json.loads(done.out)
    assert data["output"] == str(tmp_path / "m")
    assert (data["schema"], data["model_type"], data["dtype"]) == (1, "llama", "F32")
    again = run("import", str(tmp_path / "m.gguf"))
    assert again.code != 0
    assert "exists" in again.err
    assert run("import", str(tmp_path / "m.gguf"), "--force").code == 0
    extended = run("extend", str(tmp_path / "m"), "--method", "yarn", "--factor", "4", "-o", str(tmp_path / "x"))
    assert extended.code == 0, extended.err
    assert open_checkpoint(tmp_path / "x").record is not None


def test_an_import_exports_to_the_same_file(files: Files, tmp_path: Path) -> None:
    _, file = files("qwen3", "yarn")
    back = import_gguf(file, tmp_path / "back").output
    if not (back / "tokenizer.json").exists():
        pytest.fail("an import has a tokenizer")
    again = models.export(back, tmp_path / "again.gguf", sidecars=False).output
    assert gguf_files.tensors(again) == gguf_files.tensors(file)
    before, after = gguf_files.keys(file), gguf_files.keys(again)
    apart = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
    assert not {key for key in apart if not key.startswith(("general.", "ropetool."))}

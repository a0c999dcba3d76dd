"""Targets without a record, held against what they say that they are: honest ones of other people's making pass, and
each planted change is named with both values.

The configs are written by hand after the published recipes of Qwen and Meta, and by gguf's own writer; nothing here was
made by ropetool.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import gguf_files
import numpy as np
import pytest
import torch
from models import SILENT, set_config, set_tensors

import ropetool
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.checkpoint.opening import open_checkpoint
from ropetool.errors import ConfigError
from ropetool.verification.checkpoints import verify_checkpoint
from ropetool.verification.gate import Limits
from ropetool.verification.readback.comparing import read_back
from ropetool.verification.readback.keys import of_directories
from ropetool.verification.readback.terms import Terms
from ropetool.verification.results import Check

DEMO = Path(ropetool.__file__).parent / "demo" / "model"
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}
Plant = Callable[[Path], object]


def config(**changes: Any) -> Plant:
    """Return what changes keys of config.json; None removes one."""

    given = {key: SILENT if value is None else value for key, value in changes.items()}
    return lambda folder: set_config(folder, **given)


def yarn(context: int | None = 1024, **changes: Any) -> Plant:
    more = {} if context is None else {"max_position_embeddings": context}
    return config(rope_scaling={**YARN, **changes}, **more)


def tensor(name: str, change: Callable[[torch.Tensor], Any]) -> Plant:
    def changed(tensors: dict[str, torch.Tensor]) -> None:
        change(tensors[name])

    return lambda folder: set_tensors(folder, changed)


def file(name: str, text: str) -> Plant:
    return lambda folder: void((folder / name).write_text(text))


def void(_: Any) -> None:
    return None


def tokenizer(change: Callable[[dict[str, Any]], Any], name: str = "tokenizer.json") -> Plant:
    def plant(folder: Path) -> None:
        data = json.loads((folder / name).read_text())
        change(data)
        (folder / name).write_text(json.dumps(data))

    return plant


def exchanged(data: dict[str, Any]) -> None:
    merges = data["model"]["merges"]
    merges[5], merges[6] = merges[6], merges[5]


@pytest.fixture
def third_party(tmp_path: Path) -> Callable[..., Path]:
    """Return what copies the demo and changes the copy by hand."""

    def make(*plants: Plant) -> Path:
        folder = tmp_path / "theirs"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(DEMO, folder)
        for plant in plants:
            plant(folder)
        return folder

    return make


def by_name(checks: list[Check]) -> dict[str, Check]:
    return {check.name: check for check in checks}


HONEST: dict[str, tuple[str, tuple[Plant, ...]]] = {
    "yarn": ("yarn x4 of 256 tokens", (yarn(),)),
    "the context left alone": ("yarn x4 of 256 tokens", (yarn(None),)),
    "type, the older word": ("yarn x4 of 256 tokens", (config(rope_scaling={"type": "yarn", **dict(list(YARN.items())[1:])}),)),
    "the method's own numbers stated": (
        "yarn x4 of 256 tokens", (yarn(attention_factor=0.1 * math.log(4) + 1, beta_fast=32.0, beta_slow=1),),
    ),
    "linear": ("linear x4 of 256 tokens", (config(rope_scaling={"type": "linear", "factor": 4.0}, max_position_embeddings=1024),)),
    "dynamic": ("dynamic x4 of 256 tokens", (config(rope_scaling={"type": "dynamic", "factor": 4.0}),)),
    "llama3": (
        "llama3 x4 of 256 tokens",
        (config(max_position_embeddings=1024, rope_scaling={
            "rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 256}),),
    ),
    "llama3 whose context is twice what its factor says, as Llama 3.1's": (
        "llama3 x4 of 256 tokens",
        (config(max_position_embeddings=2048, rope_scaling={
            "rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 256}),),
    ),
    "another base": ("abf with rope_theta 40000", (config(rope_theta=40000.0, max_position_embeddings=1024),)),
    "ntk": ("ntk x4 of 256 tokens", (config(rope_theta=10000.0 * 4 ** (64 / 62), max_position_embeddings=1024),)),
    "nothing": ("no extension", ()),
    "a padding id": ("yarn x4 of 256 tokens", (yarn(), config(pad_token_id=7))),
    "keys that say what the class fills in": ("yarn x4 of 256 tokens", (yarn(), config(attention_bias=False, mlp_bias=False))),
    "special tokens in a second file": ("yarn x4 of 256 tokens", (yarn(), file("special_tokens_map.json", "{}"))),
    "how batches are filled up": ("yarn x4 of 256 tokens", (yarn(), tokenizer(lambda data: data.update(padding={"x": 1})))),
}  # fmt: skip


@pytest.mark.parametrize("case", HONEST)
def test_an_honest_extension_of_others_is_what_it_says(case: str, third_party: Callable[..., Path]) -> None:
    words, plants = HONEST[case]
    checks = by_name(read_back(third_party(*plants), DEMO))
    assert {name: checks[name].verdict for name in ("tables", "weights", "files")} == dict.fromkeys(
        ("tables", "weights", "files"), "pass"
    )
    assert words in checks["tables"].detail


# defect: the check that names it, and what it says.
PLANTED: dict[str, tuple[Plant, str, str]] = {
    "attention factor": (yarn(attention_factor=1.2), "tables", "attention_factor 1.2 instead of none"),
    "beta_fast": (yarn(beta_fast=16), "tables", "beta_fast 16 instead of none"),
    "original length doubled": (
        yarn(original_max_position_embeddings=512), "tables", "original_max_position_embeddings 512 instead of 256",
    ),
    "original length not stated": (
        config(rope_scaling={"rope_type": "yarn", "factor": 4.0}, max_position_embeddings=1024), "tables",
        "original_max_position_embeddings none instead of 256",
    ),
    "factor 10 % larger": (yarn(factor=4.4), "tables", "the context length is 1024"),
    "context eight times as long": (yarn(8192), "tables", "the context length is 8192"),
    "theta beside the scaling": (
        lambda f: [plant(f) for plant in (yarn(), config(rope_theta=10100.0))].clear(), "tables",
        "rope_theta 10100.0 instead of 10000.0",
    ),
    "epsilon": (config(rms_norm_eps=1e-4), "files", "rms_norm_eps is 0.0001 instead of 1e-05"),
    "activation": (config(hidden_act="gelu"), "files", 'hidden_act is "gelu" instead of "silu"'),
    "end of text": (config(eos_token_id=77), "files", "eos_token_id is 77 instead of 1"),
    "a longer context and nothing else": (
        config(max_position_embeddings=1024), "tables", "the context length is 1024, but the tables equal the baseline",
    ),
    "another class": (config(model_type="gemma"), "files", 'model_type is "gemma" instead of "llama"'),
    "a key that the class fills in otherwise": (
        config(attention_bias=True), "files", "attention_bias is true instead of false",
    ),
    "quantised on loading": (
        config(quantization_config={"quant_method": "bitsandbytes"}), "files",
        'quantization_config is {"quant_method": "bitsandbytes"} instead of absent',
    ),
    "an adapter that is loaded with it": (file("adapter_config.json", "{}"), "files", "adapter_config.json is additional"),
    "pickled weights beside": (file("pytorch_model.bin", "x"), "files", "pytorch_model.bin is additional, and some programs"),
    "two merges exchanged": (tokenizer(exchanged), "files", "model.merges[5] is"),
    "another token begins a text": (
        file("special_tokens_map.json", '{"bos_token": "the"}'), "files", 'bos_token is "the" instead of',
    ),
    "an id of the tokenizer": (
        tokenizer(lambda data: data["model"]["vocab"].update(zzz=9999)), "files", "model.vocab.zzz is 9999 instead of absent",
    ),
    "final norm x1.02": (
        tensor("model.norm.weight", lambda t: t.mul_(1.02)), "weights", "model.norm.weight differs in 256 of 256 values",
    ),
    "one value of one layer": (
        tensor("model.layers.2.self_attn.k_proj.weight", lambda t: t[3, 5].add_(1)), "weights",
        "k_proj.weight differs in 1 of",
    ),
}  # fmt: skip


@pytest.mark.parametrize("defect", PLANTED)
def test_each_planted_change_is_named_with_both_values(defect: str, third_party: Callable[..., Path]) -> None:
    plant, name, says = PLANTED[defect]
    plants = (plant,) if name == "tables" else (yarn(), plant)
    checks = by_name(read_back(third_party(*plants), DEMO))
    others = {"tables", "weights", "files"} - {name}
    assert checks[name].verdict == "fail"
    assert says in checks[name].detail
    assert {checks[other].verdict for other in others} == {"pass"}


def test_what_is_stated_to_be_meant_passes_and_must_be_there(third_party: Callable[..., Path]) -> None:
    target = third_party(yarn(beta_fast=16, attention_factor=1.2), config(rms_norm_eps=1e-4))

    def verdicts(**stated: str) -> list[str]:
        checks = by_name(read_back(target, DEMO, Terms(stated=stated)))
        return [checks[name].verdict for name in ("tables", "files")]

    assert verdicts() == ["fail", "fail"]
    assert verdicts(beta_fast="16") == ["fail", "fail"]
    assert verdicts(beta_fast="16", attention_factor="as-is") == ["pass", "fail"]
    assert verdicts(beta_fast="16", attention_factor="1.2", rms_norm_eps="0.0001") == ["pass", "pass"]
    with pytest.raises(ConfigError, match="beta_fast is 16 in the target, not 17"):
        verdicts(beta_fast="17")
    with pytest.raises(ConfigError, match=r"beta_fast is 16 in the target, not \[\[\["):
        verdicts(beta_fast="[" * 100_000)
    with pytest.raises(ConfigError, match='does not contain "beta_slow"'):
        verdicts(beta_slow="1")


def test_weights_that_are_stored_wider_need_no_quantisation_in_the_config(
    third_party: Callable[..., Path], tmp_path: Path
) -> None:
    """Whoever stores FP8 weights as bf16 drops the key, and code of one's own is told; the numbers are judged themselves."""
    source = Path(shutil.copytree(DEMO, tmp_path / "source"))
    config(quantization_config={"quant_method": "fp8"})(source)
    target = third_party(yarn(), config(auto_map={"AutoModelForCausalLM": "modeling.Model"}))
    said = of_directories(HfCheckpoint.open(target), HfCheckpoint.open(source))
    assert (said.wrong, len(said.dress), "auto_map" in said.dress[0]) == ((), 1, True)


def test_a_longer_context_alone_is_meant_where_something_says_so(third_party: Callable[..., Path]) -> None:
    target = third_party(config(max_position_embeddings=1024))
    said = [
        Terms(), Terms(trained_length=512), Terms(trained_length=1024), Terms(finetuned=True),
        Terms(stated={"max_position_embeddings": "1024"}),
    ]  # fmt: skip
    verdicts = [read_back(target, DEMO, terms)[0].verdict for terms in said]
    assert verdicts == ["fail", "fail", "pass", "pass", "pass"]


def test_lists_cannot_be_made_again_and_count_when_they_are_stated(third_party: Callable[..., Path]) -> None:
    lists = {"short_factor": [1.0] * 32, "long_factor": [1.0 + 0.1 * pair for pair in range(32)]}
    scaling = {"rope_type": "longrope", "factor": 4.0, "original_max_position_embeddings": 256, **lists}
    target = third_party(config(rope_scaling=scaling, max_position_embeddings=1024))
    tables = read_back(target, DEMO)[0]
    assert tables.verdict == "not run"
    assert "cannot be rebuilt; pass --stated long_factor as-is --stated short_factor as-is" in tables.detail
    stated = Terms(stated=dict.fromkeys(lists, "as-is"))
    assert read_back(target, DEMO, stated)[0].verdict == "pass"


def test_lists_that_are_a_method_s_but_for_a_pair_are_that_method_with_a_defect(
    third_party: Callable[..., Path], tmp_path: Path
) -> None:
    """Lists of a method without a rope type of its own; they are read from a config of ropetool's and written by hand."""
    made = ropetool.apply(ropetool.plan(DEMO, "mixed-ntk", factor=4), DEMO, tmp_path / "made").output
    scaling = json.loads((made / "config.json").read_text())["rope_scaling"]
    honest = third_party(config(rope_scaling=scaling, max_position_embeddings=1024))
    tables = read_back(honest, DEMO)[0]
    assert (tables.verdict, "mixed-ntk x4" in tables.detail) == ("pass", True)
    for pair in (2, 31):
        wrong = [value * (1.5 if at == pair else 1) for at, value in enumerate(scaling["long_factor"])]
        target = third_party(config(rope_scaling={**scaling, "long_factor": wrong}, max_position_embeddings=1024))
        tables = read_back(target, DEMO)[0]
        assert tables.verdict == "fail"
        assert "differs from mixed-ntk x4 of 256 tokens" in tables.detail


def test_trained_weights_are_told_and_dress_is_judged_only_strictly(third_party: Callable[..., Path]) -> None:
    target = third_party(
        yarn(), tensor("model.norm.weight", lambda t: t.mul_(1.02)), file("generation_config.json", '{"eos_token_id": 77}'),
        file("chat_template.jinja", "{{ messages }}"), file("README.md", "# Theirs"),
    )  # fmt: skip
    told = by_name(read_back(target, DEMO, Terms(finetuned=True)))
    assert (told["weights"].verdict, told["dress"].verdict) == ("-", "-")
    assert "37 of 38" in told["weights"].detail
    assert "chat_template.jinja is additional; generation_config.json is additional" in told["dress"].detail
    assert by_name(read_back(target, DEMO, Terms(strict=True)))["dress"].verdict == "fail"


# --- GGUF


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "plain.gguf"
    ropetool.export(DEMO, path, outtype="f16", check=False)
    return path


def rewritten(source: Path, target: Path, tensor: Callable[[str, Any], Any] | None = None, /, **changes: Any) -> Path:
    """Copy a file key by key with gguf's reader and writer, as a third party's script does, with these keys changed."""
    keys = {key.replace(".", "__"): key for key in gguf.GGUFReader(source).fields}
    given = {keys.get(name, name.replace("__", ".")): value for name, value in changes.items()}
    return gguf_files.copy(source, target, given, **({} if tensor is None else {"tensor": tensor}))


SCALED = {
    "llama__rope__scaling__type": "yarn", "llama__rope__scaling__factor": 4.0,
    "llama__rope__scaling__original_context_length": 256, "llama__context_length": 1024,
}  # fmt: skip


def test_a_file_by_another_writer_is_what_it_says(plain: Path, tmp_path: Path) -> None:
    checks = by_name(read_back(rewritten(plain, tmp_path / "theirs.gguf", **SCALED), plain))
    assert {checks[name].verdict for name in ("tables", "weights", "files")} == {"pass"}
    assert "yarn x4 of 256 tokens" in checks["tables"].detail


@pytest.mark.parametrize(
    ("changes", "name", "says"),
    [
        ({"llama__context_length": 8192}, "tables", "the context length is 8192"),
        ({"llama__rope__freq_base": 10100.0}, "tables", "rope.freq_base 10100.0 instead of 10000.0"),
        ({"llama__rope__scaling__attn_factor": 1.02}, "tables", "rope.scaling.attn_factor 1.02 instead of none"),
        (
            {"llama__attention__layer_norm_rms_epsilon": 1e-4},
            "files",
            "layer_norm_rms_epsilon' is 0.0001 instead of 1e-05",
        ),
        ({"tokenizer__ggml__eos_token_id": 77}, "files", "eos_token_id' is 77 instead of 1"),
        ({"tokenizer__chat_template": "x"}, "dress", 'chat_template\' is "x" instead of absent'),
        ({"general__name": "Other"}, "dress", 'general.name\' is "Other"'),
    ],
)
def test_changed_keys_of_a_file_are_named(
    changes: dict[str, Any], name: str, says: str, plain: Path, tmp_path: Path
) -> None:
    target = rewritten(plain, tmp_path / "theirs.gguf", **{**SCALED, **changes})
    checks = by_name(read_back(target, plain, Terms(strict=True)))
    assert says in checks[name].detail
    assert checks[name].verdict == "fail"
    assert [check.name for check in checks.values() if check.verdict == "fail"] == [name]


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0"])
def test_a_file_of_another_type_is_the_same_model_within_its_rounding(kind: str, plain: Path, tmp_path: Path) -> None:
    """Quantised by gguf's own code; a tensor whose numbers are 3 % larger than the type allows is no rounding."""
    target, grown = tmp_path / "honest.gguf", tmp_path / "grown.gguf"
    for path, factor in ((target, 1.0), (grown, 1.2)):

        def quantised(name: str, tensor: Any, factor: float = factor) -> Any:
            if len(tensor.shape) != 2:
                return tensor.tensor_type, tensor.data
            data = tensor.data.astype("float32") * (factor if name == "blk.1.attn_k.weight" else 1)
            return gguf.GGMLQuantizationType[kind], gguf.quants.quantize(data, gguf.GGMLQuantizationType[kind])

        rewritten(plain, path, quantised, **SCALED)
    assert by_name(read_back(target, plain))["weights"].verdict == "pass"
    weights = by_name(read_back(grown, plain))["weights"]
    assert weights.verdict == "fail"
    assert f"blk.1.attn_k.weight is {kind} instead of F16, with an error of 0.2" in weights.detail


# --- GGUF files of a directory


@pytest.fixture(scope="module")
def converted(plain: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rewritten(plain, tmp_path_factory.mktemp("converted") / "theirs.gguf", **SCALED)


@pytest.mark.parametrize(
    ("changes", "name", "says"),
    [
        ({}, "", ""),
        ({"llama__context_length": 8192}, "tables", "the context length is 8192"),
        ({"llama__rope__freq_base": 10100.0}, "tables", "31 of 32 pairs differ"),
        (
            {"llama__attention__layer_norm_rms_epsilon": 1e-4},
            "files",
            "layer_norm_rms_epsilon' is 0.0001 instead of 1e-05",
        ),
        ({"tokenizer__ggml__eos_token_id": 77}, "files", "eos_token_id' is 77 instead of 1"),
    ],
)
def test_a_file_is_held_against_the_directory_that_it_was_converted_from(
    changes: dict[str, Any], name: str, says: str, converted: Path, tmp_path: Path
) -> None:
    target = rewritten(converted, tmp_path / "changed.gguf", **changes)
    checks = by_name(read_back(target, DEMO))
    assert [check.name for check in checks.values() if check.verdict == "fail"] == ([name] if name else [])
    assert says in checks[name or "files"].detail


def test_a_tensor_of_a_converted_file_that_grew_is_named(converted: Path, tmp_path: Path) -> None:
    target = Path(shutil.copyfile(converted, tmp_path / "grown.gguf"))
    reader = gguf.GGUFReader(target, "r+")
    found = next(each for each in reader.tensors if each.name == "blk.1.attn_k.weight")
    found.data[:] = found.data * np.float16(1.5)
    reader.data.flush()
    weights = by_name(read_back(target, DEMO))["weights"]
    assert weights.verdict == "fail"
    assert "blk.1.attn_k.weight is scaled" in weights.detail


# --- no yardstick, no pass


def test_an_unextended_model_that_states_more_is_never_passed(third_party: Callable[..., Path]) -> None:
    target = third_party(config(max_position_embeddings=512))
    alone = verify_checkpoint(target, suite="quick", segments=8, limits=Limits(grade="research"), lengths=[256, 512])
    assert (alone.verdict, alone.exit_code) == ("partial", 1)
    missing = {check.name: check.detail for check in alone.checks if check.verdict == "not run"}
    assert {"yardstick", "lengths"} <= set(missing)  # for the file says that it was trained on 512
    told = verify_checkpoint(
        target,
        suite="quick",
        segments=8,
        limits=Limits(grade="research"),
        lengths=[256, 512],
        terms=Terms(trained_length=256),
    )
    assert told.verdict == "fail"
    assert "yardstick" in {check.name for check in told.checks if check.verdict == "not run"}
    against = verify_checkpoint(
        target, baseline=DEMO, suite="quick", segments=8, limits=Limits(grade="research"), lengths=[256, 512]
    )
    assert (against.verdict, against.trained_length) == ("fail", 256)


@pytest.mark.parametrize(
    ("lengths", "says"), [([64, 128], "no measured length is beyond"), ([256, 512], "longest measured length is 512")]
)
def test_lengths_that_do_not_reach_the_context_are_no_pass(
    lengths: list[int], says: str, third_party: Callable[..., Path]
) -> None:
    found = verify_checkpoint(
        third_party(yarn()), baseline=DEMO, suite="quick", segments=8, limits=Limits(grade="research"), lengths=lengths
    )
    missing = next(check for check in found.checks if check.name == "lengths")
    assert says in missing.detail
    assert found.verdict == "partial"


def test_the_context_of_the_source_may_stay(third_party: Callable[..., Path]) -> None:
    """A recipe that adds rope_scaling alone, as Qwen's: what is stated then is what it was trained on."""
    target = open_checkpoint(third_party(yarn(None)))
    assert by_name(read_back(target, DEMO))["tables"].verdict == "pass"

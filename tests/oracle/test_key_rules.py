"""The rules for keys against llama.cpp itself: what they refuse does not load there, or is lost; what they take loads.

Each file is a tiny model with one key changed; llama.cpp loads it in a process of its own and decodes four tokens.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import gguf
import gguf_files
import gguf_headers
import pytest
from loading import script

from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.files.gguf import Patch, Value, ValueType, read_header, write_patched
from ropetool.files.gguf.texts import value_of
from ropetool.runtimes.llama_cpp import architectures as archs
from ropetool.runtimes.llama_cpp import key_rules, key_types

gguf_key_types = script("gguf_keys/gguf_key_types.py")

pytest.importorskip("llama_cpp")
PROBE = Path(__file__).with_name("key_probe.py")
LOADS = "loads"
NONE = ("", "")

# suffix or whole key, type, value; no type for a key that is removed. Refused: llama.cpp does not load these, or aborts, or
# computes no numbers.
REFUSED = [
    ("context_length", "u32", "0"), ("context_length", "i32", "512"), ("context_length", "f32", "512"),
    ("context_length", "u64", "512"), ("context_length", *NONE), ("embedding_length", "u32", "64"),
    ("embedding_length", *NONE), ("block_count", "u32", "0"), ("block_count", "u32", "2"), ("block_count", "u32", "513"),
    ("block_count", *NONE), ("feed_forward_length", "u32", "64"), ("feed_forward_length", *NONE),
    ("attention.head_count", "u32", "0"), ("attention.head_count", "u32", "3"), ("attention.head_count", *NONE),
    ("attention.head_count", "arr of u32", "[2, 2]"), ("attention.head_count", "arr of u32", "[]"),
    ("attention.head_count", "arr of f32", "[2]"), ("attention.head_count_kv", "u32", "0"),
    ("attention.head_count_kv", "u32", "2"), ("attention.head_count_kv", *NONE), ("attention.key_length", "u32", "0"),
    ("attention.key_length", "u32", "32"), ("attention.layer_norm_rms_epsilon", "f32", "-1"),
    ("attention.layer_norm_rms_epsilon", "f32", "nan"), ("attention.layer_norm_rms_epsilon", *NONE),
    ("attention.causal", "u32", "1"), ("rope.dimension_count", "u32", "0"), ("rope.dimension_count", "u32", "63"),
    ("rope.dimension_count", "u32", "32"), ("rope.scaling.type", "str", "dynamic"), ("rope.scaling.type", "str", "YARN"),
    ("rope.freq_base", "f32", "nan"), ("rope.freq_base", "f32", "0"), ("rope.freq_base", "f64", "10000"),
    ("rope.scaling.factor", "f32", "nan"), ("rope.scaling.factor", "u32", "4"), ("rope.scaling.attn_factor", "f32", "nan"),
    ("rope.scaling.original_context_length", "i32", "512"), ("expert_count", "u32", "2"), ("expert_count", "u32", "2000"),
    ("expert_used_count", "u32", "2"), ("nextn_predict_layers", "u32", "1"), ("nextn_predict_layers", "u32", "2"),
    ("classifier.output_labels", "arr of u32", "[1]"), ("vocab_size", "u32", "5"), ("vocab_size", *NONE),
    ("general.architecture", "str", "lama"), ("general.architecture", "str", "qwen3"), ("general.architecture", *NONE),
    ("general.name", "u32", "1"), ("general.file_type", "i32", "1"), ("tokenizer.ggml.model", "str", "gpt-2"),
    ("tokenizer.ggml.model", *NONE), ("tokenizer.ggml.model", "str", "llama"),
]  # fmt: skip
# Refused although these load: llama.cpp takes the value for another, or leaves it out, and says nothing.
LOST = [
    ("general.name", "str", "a\0b"), ("rope.scaling.factor", "f32", "-2"), ("rope.freq_base", "f32", "inf"),
    ("classifier.output_labels", "str", "x"), ("rope.dimension_sections", "arr of i32", "[1, 2, 3]"),
]  # fmt: skip
TAKEN = [
    ("context_length", "u32", "4096"), ("attention.head_count", "arr of u32", "[2]"),
    ("attention.head_count", "arr of i32", "[2]"), ("attention.layer_norm_rms_epsilon", "f32", "0"),
    ("rope.freq_base", "f32", "5e5"), ("rope.freq_base", *NONE), ("rope.scaling.type", "str", "none"),
    ("rope.scaling.type", "str", "yarn"), ("rope.scaling.factor", "f32", "4"), ("rope.scaling.original_context_length", "u32", "0"),
    ("rope.dimension_count", "u32", "64"), ("rope.dimension_count_swa", "u32", "64"), ("pooling_type", "u32", "1"),
    ("general.file_type", "u32", "9999"), ("general.name", "str", "new"), ("general.tags", "arr of str", '["a", ""]'),
    ("general.anything", "arr of f64", "[]"), ("split.no", "u16", "0"), ("tokenizer.chat_template", "str", "{{ messages }}"),
    ("attention.causal", "bool", "true"), ("expert_count", "u32", "0"), ("nextn_predict_layers", "u32", "0"),
    ("logit_scale", "f32", "0.5"), ("rope.scaling.finetuned", "bool", "true"),
]  # fmt: skip


def patch(arch: str, key: str, label: str, text: str) -> Patch:
    whole = key if key.startswith(("general.", "tokenizer.", "split.")) else f"{arch}.{key}"
    return Patch({whole: value_of(label, text)}) if label else Patch(remove=frozenset({whole}))


def outcomes(kind: str, paths: list[Path]) -> list[str]:
    environment = {**os.environ, "GGML_NO_BACKTRACE": "1"}  # for which an abort would start a debugger
    arguments = [sys.executable, PROBE, kind, *paths]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True, timeout=300, env=environment)
    found: Mapping[str, str] = json.loads(done.stdout)
    return [found[str(path)] for path in paths]


def edited(base: Path, patches: list[Patch], folder: Path) -> list[Path]:
    paths = [folder / f"{number}.gguf" for number in range(len(patches))]
    for path, each in zip(paths, patches, strict=True):
        write_patched(read_header(base), each, path)
    return paths


@pytest.mark.parametrize("arch", ["llama", "qwen2"])
def test_what_is_refused_fails_and_what_is_taken_loads(arch: str, tmp_path: Path) -> None:
    base = gguf_files.model(tmp_path / "base.gguf", arch)
    cases = [(each, True) for each in (*REFUSED, *LOST)] + [(each, False) for each in TAKEN]
    patches = [patch(arch, *case) for case, _ in cases]
    before = GgufCheckpoint.open(base)
    refused = [bool(key_rules.objections(before, before.after(each))) for each in patches]
    assert [case for (case, expected), found in zip(cases, refused, strict=True) if expected != found] == []
    found = outcomes("model", edited(base, patches, tmp_path))
    loading = {case for (case, _), outcome in zip(cases, found, strict=True) if outcome == LOADS}
    assert loading == {*LOST, *TAKEN}


@pytest.mark.parametrize("key", sorted(key_types.facts()["loaded"]))
def test_the_types_are_those_that_decoding_goes_by(key: str) -> None:
    suffix = key.removeprefix("%s.")
    if suffix in archs.TYPES:
        assert archs.TYPES[suffix].label in key_types.loaded(f"x.{suffix}", "x")


def test_every_key_that_all_models_load_is_refused_in_any_other_type(tmp_path: Path) -> None:
    base = gguf_files.model(tmp_path / "base.gguf")
    before = GgufCheckpoint.open(base)
    keys = [archs.CAUSAL, archs.SCALING_TYPE, archs.FREQ_BASE, archs.FACTOR, archs.ATTN_FACTOR, archs.FINETUNED, archs.ALPHA,
            archs.DIMENSION_COUNT, archs.ORIGINAL_CONTEXT_LENGTH, archs.EXPERT_COUNT]  # fmt: skip
    samples = {"u32": "64", "i32": "64", "u64": "64", "f32": "64", "f64": "64", "bool": "true", "str": "none"}
    cases = [(key, label) for key in keys for label in samples]
    patches = [patch("llama", key, label, samples[label]) for key, label in cases]
    wrong = {
        case for case, each in zip(cases, patches, strict=True)
        if any("reads it only as" in sentence for sentence in key_rules.objections(before, before.after(each)))
    }  # fmt: skip
    right = {(key, label) for key, label in cases if label == archs.TYPES.get(key, ValueType.BOOL).label}
    assert {*cases} - right == wrong
    found = dict(zip(cases, outcomes("model", edited(base, patches, tmp_path)), strict=True))
    assert {case for case in cases if found[case] == "does not load" and case not in right} == wrong


@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3", "gemma3", "hunyuan-dense", "nemotron", "phi3"])
def test_a_file_that_loads_breaks_no_rule(arch: str, tmp_path: Path) -> None:
    path = gguf_files.model(tmp_path / "a.gguf", arch)
    assert outcomes("model", [path]) == [LOADS]
    assert key_rules.refusals(GgufCheckpoint.open(path)) == {}


def test_no_architecture_objects_to_what_changes_no_size(tmp_path: Path) -> None:
    for arch in archs.names():
        before = GgufCheckpoint.open(gguf_headers.write(tmp_path / f"{arch}.gguf", arch))
        for key, label, text in (
            ("context_length", "u32", "65536"), ("tokenizer.chat_template", "str", "x"), ("general.name", "str", "y"),
        ):  # fmt: skip
            assert key_rules.objections(before, before.after(patch(arch, key, label, text))) == [], arch


def test_the_types_are_those_that_the_gguf_package_writes() -> None:
    written = gguf_key_types.written(Path(gguf.__file__).parent)
    loaded = key_types.facts()["loaded"]
    both = {key: label for key, label in written.items() if key in loaded}
    assert len(both) > 100
    assert {key: label for key, label in both.items() if label not in loaded[key]} == {}


# --- vocabularies

VOCABULARY = ["<unk>", "<s>", "</s>", "\n", "a", "b", "ab"]
WRONG = [
    ("tokenizer.ggml.tokens", "arr of str", json.dumps([*VOCABULARY[:-1], "a"])),
    ("tokenizer.ggml.tokens", "arr of str", json.dumps([*VOCABULARY, "c"])),
    ("tokenizer.ggml.tokens", "arr of i32", "[1, 2]"), ("tokenizer.ggml.tokens", "str", "a"), ("tokenizer.ggml.tokens", *NONE),
    ("tokenizer.ggml.scores", "arr of f32", "[0, 1]"), ("tokenizer.ggml.scores", "arr of f64", json.dumps([0] * 7)),
    ("tokenizer.ggml.scores", "f32", "1"), ("tokenizer.ggml.token_type", "arr of i32", "[1, 1]"),
    ("tokenizer.ggml.token_type", "arr of u32", json.dumps([1] * 7)), ("tokenizer.ggml.model", "str", "gpt2"),
    ("tokenizer.ggml.model", "str", "spm"), ("tokenizer.ggml.bos_token_id", "i32", "1"),
    ("tokenizer.ggml.add_bos_token", "u32", "1"), ("tokenizer.ggml.suppress_tokens", "arr of u32", "[1]"),
    ("tokenizer.ggml.suppress_tokens", "u32", "1"),
]  # fmt: skip
IGNORED = [("tokenizer.ggml.bos_token_id", "u32", "7"), ("tokenizer.ggml.eos_token_id", "u32", "4294967295")]
RIGHT = [
    ("tokenizer.ggml.bos_token_id", "u32", "6"), ("tokenizer.ggml.add_bos_token", "bool", "false"),
    ("tokenizer.ggml.scores", "arr of i32", json.dumps([0] * 7)), ("tokenizer.ggml.scores", "arr of f32", json.dumps([0] * 9)),
    ("tokenizer.ggml.tokens", "arr of str", json.dumps([*VOCABULARY[:-2], "", "c"])),
    ("tokenizer.ggml.tokens", "arr of str", json.dumps(VOCABULARY[:-1])), ("tokenizer.ggml.suppress_tokens", "arr of i32", "[1]"),
    ("tokenizer.ggml.pre", "str", "anything"), ("tokenizer.ggml.scores", *NONE), ("tokenizer.ggml.token_type", *NONE),
]  # fmt: skip


def test_vocabularies_as_llama_cpp_takes_them(tmp_path: Path) -> None:
    values = {
        "general.architecture": value_of("str", "llama"), "tokenizer.ggml.model": value_of("str", "llama"),
        "tokenizer.ggml.tokens": Value.array(ValueType.STR, VOCABULARY),
        "tokenizer.ggml.scores": Value.array(ValueType.F32, [0.0] * 7),
        "tokenizer.ggml.token_type": Value.array(ValueType.I32, [2, 3, 3, 1, 1, 1, 1]),
    }  # fmt: skip
    made = gguf_files.model(tmp_path / "made.gguf")
    header = read_header(made)
    base = tmp_path / "base.gguf"
    write_patched(header, Patch(values), base)
    before = GgufCheckpoint.open(base)
    cases = [*WRONG, *IGNORED, *RIGHT]
    patches = [patch("llama", *case) for case in cases]
    refused = [bool(key_rules.objections(before, before.after(each))) for each in patches]
    assert [case for case, found in zip(cases, refused, strict=True) if found] == [*WRONG, *IGNORED]
    found = outcomes("vocab", edited(base, patches, tmp_path))
    assert [case for case, outcome in zip(cases, found, strict=True) if outcome != LOADS] == WRONG


def test_names_that_llama_cpp_does_not_know_are_refused_only_where_it_reads_them(tmp_path: Path) -> None:
    values = {
        "general.architecture": value_of("str", "llama"), "tokenizer.ggml.model": value_of("str", "gpt2"),
        "tokenizer.ggml.pre": value_of("str", "qwen2"), "tokenizer.ggml.tokens": Value.array(ValueType.STR, VOCABULARY),
        "tokenizer.ggml.merges": Value.array(ValueType.STR, ["a b"]),
    }  # fmt: skip
    base = tmp_path / "base.gguf"
    write_patched(read_header(gguf_files.model(tmp_path / "made.gguf")), Patch(values), base)
    before = GgufCheckpoint.open(base)
    names = [*key_types.facts()["pretokenizers"], "qwen3", "llama-4"]
    patches = [patch("llama", "tokenizer.ggml.pre", "str", name) for name in names]
    patches += [
        patch("llama", "tokenizer.ggml.merges", *NONE),
        patch("llama", "tokenizer.ggml.merges", "arr of i32", "[1]"),
    ]
    refused = [bool(key_rules.objections(before, before.after(each))) for each in patches]
    found = outcomes("vocab", edited(base, patches, tmp_path))
    assert refused == [outcome != LOADS for outcome in found]
    assert refused[-4:] == [True] * 4
    assert not any(refused[:-4])

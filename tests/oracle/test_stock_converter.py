"""Exports against the programs that know: the stock converter's files, llama.cpp's tokens and logits.

ROPETOOL_LLAMA_CPP names a folder of llama.cpp's sources with convert_hf_to_gguf.py; ROPETOOL_REAL_FILES one with
tokenizers of published models, the only ones that the converter takes.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import configs
import converter
import models
import numpy as np
import pytest
import torch
from settled import Comparison
from token_strings import compared, letters, strings
from tokenizer_making import SPECIAL, trained_on_strings
from tokenizers import Regex, Tokenizer, pre_tokenizers

from ropetool.files.gguf import Patch, Value, ValueType, read_header, write_patched
from ropetool.gguf_model.shapes import Permutation
from ropetool.gguf_model.tokenizer.pretokenizer_names import LLAMA3, QWEN2

REAL = Path(os.environ.get("ROPETOOL_REAL_FILES", "nowhere"), "tokenizers")
REAL_NAMES = sorted(path.name for path in REAL.glob("*/")) if REAL.is_dir() else []
TOLERANCE = 2e-4  # of the largest logit, in float32

needs_converter = pytest.mark.skipif(
    not (converter.CONVERTER.is_file() and REAL_NAMES),
    reason="ROPETOOL_LLAMA_CPP and ROPETOOL_REAL_FILES name no converter",
)
FAMILIES = ("llama", "mistral", "mixtral", "qwen2", "qwen3")


def write_model(path: Path, config: dict[str, Any], dtype: torch.dtype = torch.float32) -> Any:
    """Write a random checkpoint through transformers, whose logits depend on every position; return the model."""

    def draw(name: str, weight: torch.Tensor) -> None:
        if "norm" in name:
            weight.uniform_(0.8, 1.2)
        elif "embed" in name:  # attention alone would make much of the last bits of float32 angles
            weight.normal_(0.0, 2.0)
        else:
            weight.normal_(0.0, 0.12 if weight.ndim > 1 else 0.05)

    model = models.random_model(path, config, 7, draw, dtype)
    models.save(path / "config.json", config)
    return model


# --- the stock converter


@dataclass(frozen=True)
class Case:
    """A checkpoint for both converters: its family, a published tokenizer, weights, output type, changes of config."""

    family: str
    tokenizer: str
    rows: int
    dtype: torch.dtype
    outtype: str
    changes: dict[str, Any]


SMALL = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48}
# What the classes assume where the config is silent; None removes the key.
SILENT = {
    "hidden_size": 128, "num_attention_heads": 32, "num_key_value_heads": None, "rope_theta": None, "head_dim": None,
    "max_position_embeddings": None, "tie_word_embeddings": None, "intermediate_size": 16, "num_hidden_layers": 1,
}  # fmt: skip
CASES = {
    "llama f32": Case("llama", "llama-bpe", 128256, torch.float32, "f32", {**SMALL, "head_dim": 16}),
    "llama with biases": Case(
        "llama", "gpt-2", 50304, torch.bfloat16, "bf16",
        {**SMALL, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    ),
    "mistral f32 to bf16": Case("mistral", "gpt-2", 50257, torch.float32, "bf16", SMALL),
    "mixtral f16": Case("mixtral", "gpt-2", 50257, torch.float16, "f16", SMALL),
    "qwen2 bf16": Case("qwen2", "qwen2", 152064, torch.bfloat16, "bf16", SMALL),
    "qwen3 f32 to f16": Case("qwen3", "gpt-2", 50257, torch.float32, "f16", {**SMALL, "head_dim": 16}),
    "qwen2, silent": Case("qwen2", "qwen2", 151936, torch.bfloat16, "bf16", SILENT),
    **{
        f"{f}, silent": Case(f, "gpt-2", 50304, torch.bfloat16, "bf16", SILENT) for f in FAMILIES if f != "qwen2"
    },
}  # fmt: skip

# What only our files state. Nothing of it changes what llama.cpp computes: it is its own default, said out loud.
STATED = {
    "vocab_size": "rows of the embedding; the converter states it for llama",
    "rope.dimension_count": "whole heads; the converter states it for llama",
    "attention.key_length": "the head's channels; the converter states them where config.json does",
    "attention.value_length": "as key_length",
    "tokenizer.ggml.add_bos_token": "without it llama.cpp goes by the name of the pre-tokenizer",
    "tokenizer.ggml.add_eos_token": "as add_bos_token",
    "tokenizer.ggml.eot_token_id": "config.json's eos_token_id where the tokenizer's is another; generation stops at it",
}


def write_source(case: Case, source: Path) -> None:
    """Write the checkpoint of a case, with everything beside it that the metadata is made of."""
    config = {**configs.config(case.family, "v4"), **case.changes, "vocab_size": case.rows}
    if case.family == "qwen2":
        config.pop("head_dim", None)
    write_model(source, {key: value for key, value in config.items() if value is not None}, case.dtype)
    for file in (REAL / case.tokenizer).iterdir():
        shutil.copyfile(file, source / file.name)
    (source / "chat_template.jinja").write_text("{{ messages[0].content }}")
    (source / "README.md").write_text("---\nlicense: mit\nlanguage: [en]\nbase_model: some-org/some-model\n---\n")
    (source / "generation_config.json").write_text('{"top_k": 20, "temperature": 0.6}')


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a checkpoint for each case."""
    folder = tmp_path_factory.mktemp("converted")
    for name, case in CASES.items():
        write_source(case, folder / name / "tiny-model")
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def stock(sources: Path) -> Callable[[str], Path]:
    """Give the stock converter's file of a case; it makes all of them when the first is asked for."""

    def found(name: str) -> Path:
        if not (sources / name / "stock.gguf").is_file():
            converter.convert(
                sources,
                [
                    [
                        sources / name / "tiny-model",
                        "--outfile",
                        sources / name / "stock.gguf",
                        "--outtype",
                        case.outtype,
                    ]
                    for name, case in CASES.items()
                ],
            )
        return sources / name / "stock.gguf"

    return found


@needs_converter
@pytest.mark.parametrize("name", CASES)
def test_the_file_is_the_stock_converters(
    name: str, sources: Path, stock: Callable[[str], Path], tmp_path: Path
) -> None:
    source, ours = sources / name / "tiny-model", tmp_path / "ours.gguf"
    result = models.export(source, ours, outtype=CASES[name].outtype, allow_full_attention=True)
    made = converter.compared(name, source, ours)
    if made.settled:
        return
    found, wanted = read_header(ours).values, read_header(stock(name)).values
    more = found.keys() - wanted.keys()
    assert {key.removeprefix(f"{result.arch}.") for key in more} <= STATED.keys()
    assert {key: value for key, value in found.items() if key not in more} == wanted  # byte for byte
    assert converter.tensors(ours) == converter.tensors(stock(name))
    made.passed()


@needs_converter
def test_rows_left_in_place_differ_from_the_stock_file(
    sources: Path, stock: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Permutation, "apply", lambda turn, elements: elements)
    source, ours = sources / "llama f32" / "tiny-model", tmp_path / "ours.gguf"
    models.export(source, ours)
    made = converter.compared("rows left in place", source, ours)
    if made.settled:
        return
    found, wanted = converter.tensors(ours), converter.tensors(stock("llama f32"))
    assert {name.split(".")[2] for name in found if found[name] != wanted[name]} == {"attn_q", "attn_k"}
    made.passed()


# --- tokens

DIGITS = pre_tokenizers.Digits(individual_digits=True)
STRUCTURES = {
    "llama-bpe": (pre_tokenizers.Split(Regex(LLAMA3), "isolated"), True),
    "smaug-bpe": (pre_tokenizers.Split(Regex(LLAMA3), "isolated"), False),
    "qwen2": (pre_tokenizers.Split(Regex(QWEN2), "isolated"), False),
    "gpt-2": (None, False),
    "smollm": (DIGITS, False),
}


# Where digits are not merged, as in qwen2's vocabularies, splitting by one or by three makes no difference.
MISTAKEN = {
    "llama-bpe": ("qwen2", "gpt-2"), "smaug-bpe": ("qwen2", "gpt-2"), "qwen2": ("gpt-2",), "gpt-2": ("qwen2", "smollm"),
    "smollm": ("qwen2",),
}  # fmt: skip


def trained(name: str) -> Tokenizer:
    split, ignore_merges = STRUCTURES[name]
    spelled = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=name in ("gpt-2", "smollm"))
    return trained_on_strings(spelled if split is None else pre_tokenizers.Sequence([split, spelled]), ignore_merges)


@pytest.fixture(scope="module", params=[*STRUCTURES, *(f"published {name}" for name in REAL_NAMES)])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Tokenizer, Path]]:
    """A tokenizer, and the GGUF file that its export makes."""
    name = request.param
    source = models.checkpoint(tmp_path_factory.mktemp("tokens") / "model", hidden_size=8, num_hidden_layers=1)
    if name.startswith("published "):
        for file in (REAL / name.removeprefix("published ")).iterdir():
            shutil.copyfile(file, source / file.name)
    else:
        trained(name).save(str(source / "tokenizer.json"))
        models.save(source / "tokenizer_config.json", {"bos_token": SPECIAL[0], "eos_token": SPECIAL[1]})
    tokenizer = Tokenizer.from_file(str(source / "tokenizer.json"))
    config = {**models.BY_HAND["llama"], "hidden_size": 8, "num_hidden_layers": 1}
    config["vocab_size"] = tokenizer.get_vocab_size() + 5
    models.save(source / "config.json", config)
    models.write_safetensors(source / "model.safetensors", models.weights(config, "BF16"))
    path = models.export(source).output
    assert pre_of(path) == name.removeprefix("published ")
    yield tokenizer, path
    shutil.rmtree(source.parent)


def pre_of(path: Path) -> str:
    return str(read_header(path).get("tokenizer.ggml.pre", ValueType.STR))


def special_of(tokenizer: Tokenizer) -> list[str]:
    return [token.content for token in tokenizer.get_added_tokens_decoder().values()]


def ids(tokenizer: Tokenizer, text: str) -> list[int]:
    found: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return found


def runner(path: Path) -> Any:
    pytest.importorskip("llama_cpp")
    from ropetool.verification.runners.llama_runner import LlamaRunner

    return LlamaRunner(path)


def comparison(strings: str, tokenizer: Tokenizer, path: Path) -> Comparison:
    """Return the comparison of an exported file with the tokenizer beside it, by such strings."""
    values = {key: value for key, value in read_header(path).values.items() if key.startswith("tokenizer.")}
    name = f"{strings} of an exported {pre_of(path)} of {tokenizer.get_vocab_size()} tokens"
    return compared(name, path.parent / "model" / "tokenizer.json", values)


def test_ten_thousand_strings_give_the_same_tokens(pair: tuple[Tokenizer, Path]) -> None:
    tokenizer, path = pair
    llama, made = runner(path), comparison("strings", tokenizer, path)
    texts = list(strings(500 if made.settled else 10_000, special_of(tokenizer)))
    wrong = [text for text in texts if ids(tokenizer, text) != llama.tokenize(text)]
    assert wrong == []
    assert any(token in text for text in texts for token in special_of(tokenizer))
    made.passed()


def test_every_letter_gives_the_same_tokens(pair: tuple[Tokenizer, Path]) -> None:
    tokenizer, path = pair
    llama, made = runner(path), comparison("letters", tokenizer, path)
    known = letters()[:: 60 if made.settled else 3]  # they come in runs of a kind
    around = (f"a{x}b {x}1 {x}{x}  {x}\n'{x}" for x in known)
    assert [text for text in around if ids(tokenizer, text) != llama.tokenize(text)] == []
    made.passed()


def test_the_wrong_pre_tokenizer_would_be_seen(pair: tuple[Tokenizer, Path], tmp_path: Path) -> None:
    tokenizer, path = pair
    for other in MISTAKEN[pre_of(path)]:
        changed = tmp_path / f"{other}.gguf"
        patch = Patch(set={"tokenizer.ggml.pre": Value.of(ValueType.STR, other)})
        write_patched(read_header(path), patch, changed)
        llama = runner(changed)
        assert any(ids(tokenizer, text) != llama.tokenize(text) for text in strings(500, special_of(tokenizer)))


def test_what_is_put_before_a_text_is_the_same(pair: tuple[Tokenizer, Path]) -> None:
    tokenizer, path = pair
    bare = ids(tokenizer, "some text")
    assert [*runner(path).prefix, *bare] == tokenizer.encode("some text").ids


# --- logits


@pytest.fixture(scope="module")
def small_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    trained("llama-bpe").save(str(path))
    return path


def yarn(**more: Any) -> dict[str, Any]:
    return {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512, **more}


LLAMA3_KEYS = {
    "rope_type": "llama3", "factor": 4.0, "original_max_position_embeddings": 512, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}  # fmt: skip
SCALED = [
    *((family, None) for family in FAMILIES),
    ("qwen2", yarn(attention_factor=1.7)),
    ("qwen3", {"rope_type": "linear", "factor": 4.0}),
    ("llama", yarn(beta_fast=8, truncate=False)),
    ("mixtral", LLAMA3_KEYS),
]


@pytest.mark.parametrize(
    ("family", "scaling"), SCALED, ids=[f"{f}, {s['rope_type'] if s else 'plain'}" for f, s in SCALED]
)
def test_logits_are_those_of_transformers(
    family: str, scaling: dict[str, Any] | None, small_tokenizer: Path, tmp_path: Path
) -> None:
    pytest.importorskip("llama_cpp")
    rows = Tokenizer.from_file(str(small_tokenizer)).get_vocab_size()
    config = {**configs.config(family, "v4"), "vocab_size": rows, "bos_token_id": 0, "eos_token_id": 1}
    if scaling is not None:
        config |= {"rope_scaling": scaling, "max_position_embeddings": 2048}
    if family == "mixtral":
        config |= {"head_dim": 32, "num_local_experts": 2, "num_experts_per_tok": 2}  # a choice could fall otherwise
    source = tmp_path / "model"
    model = write_model(source, config).eval()
    model = model if family == "mixtral" else model.double()  # torch joins experts in float32 alone
    shutil.copyfile(small_tokenizer, source / "tokenizer.json")
    tokens = torch.randint(4, rows, (1, 1500), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        wanted = model(tokens).logits[0].numpy()

    def error(path: Path) -> float:
        found = np.concatenate([piece.copy() for _, piece in runner(path).logits(tokens[0].tolist())])
        return float(np.abs(found - wanted).max() / np.abs(wanted).max())

    path = models.export(source, tmp_path / "x.gguf").output
    assert error(path) < TOLERANCE
    for number, defect in enumerate(defects(path)):
        write_patched(read_header(path), defect, tmp_path / f"{number}.gguf")
        assert error(tmp_path / f"{number}.gguf") > 20 * TOLERANCE


def defects(path: Path) -> Iterator[Patch]:
    """Yield changes that a comparison must see: another base, and the scaling forgotten."""
    header = read_header(path)
    base = next(key for key in header.values if key.endswith(".rope.freq_base"))
    yield Patch(set={base: Value.of(ValueType.F32, 10500.0)})
    scaling = frozenset(key for key in header.values if ".rope.scaling." in key)
    vector = header.tensor("rope_freqs.weight")
    ones = {} if vector is None else {vector.name: np.ones(vector.shape, np.float32)}
    if scaling:
        yield Patch(remove=scaling, tensors=ones)
    if any(key.endswith("attn_factor") for key in scaling):
        yield Patch(remove=frozenset(key for key in scaling if key.endswith("attn_factor")))

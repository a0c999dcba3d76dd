"""Defects planted into extended Hugging Face directories: what each changes, and which extension it is planted into.

Tensors are found by the names that Llama and Qwen3 share; sizes are read from config.json, so any such model serves.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

WEIGHTS = "model.safetensors"
FACTOR = 4  # of every extension that a defect is planted into
YARN, LISTS = "yarn", "mixed-ntk"  # the second has no rope type, so that its table is written as lists of longrope
Plant = Callable[[Path], None]
Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Defect:
    """What is planted, and into an extension by which method. strict: it is dress, which --strict judges."""

    plant: Plant
    of: str = YARN
    strict: bool = False


@dataclass(frozen=True)
class Sizes:
    """The sizes of a model that say which rows of its matrices are a head's."""

    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int

    @classmethod
    def of(cls, folder: Path) -> Sizes:
        """Return those that config.json states."""
        config = read(folder / "config.json")
        return cls(
            config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"], config["vocab_size"]
        )


def read(path: Path) -> dict[str, Any]:
    """Return a JSON object."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def write(path: Path, data: Any) -> None:
    """Write an object as another file, for the one that is there may be a link to the source's."""
    path.unlink(missing_ok=True)
    path.write_text(json.dumps(data, indent=2), encoding="utf-8")


def _changed(old: Any, change: Any) -> Any:
    return change(old) if callable(change) else change


def config(**changes: Any) -> Plant:
    """Return what changes keys of config.json, to a value or by a function of the old one; None removes one."""

    def plant(folder: Path) -> None:
        data = read(folder / "config.json")
        for key, change in changes.items():
            data[key] = _changed(data.get(key), change)
        write(folder / "config.json", {key: value for key, value in data.items() if value is not None})

    return plant


def rope(**changes: Any) -> Plant:
    """Return what changes keys of rope_scaling likewise."""
    return config(
        rope_scaling=lambda old: {**old, **{key: _changed(old.get(key), change) for key, change in changes.items()}}
    )


def one_of_list(key: str, pair: int) -> Plant:
    """Return what makes one entry of a list half as large again."""
    return rope(**{key: lambda old: [x * (1.5 if i == pair % len(old) else 1) for i, x in enumerate(old)]})


def tensors(change: Callable[[Tensors, Sizes], Any]) -> Plant:
    """Return what changes tensors, in float32, and rounds them to their own types again."""

    def plant(folder: Path) -> None:
        found = load_file(folder / WEIGHTS)
        kept = {name: tensor.clone() for name, tensor in found.items()}
        types = {name: tensor.dtype for name, tensor in found.items()}
        wide = {name: tensor.float() for name, tensor in found.items()}
        change(wide, Sizes.of(folder))
        for name, tensor in wide.items():
            kept[name] = tensor.to(types.get(name, torch.bfloat16)).contiguous()
        gone = kept.keys() - wide.keys()
        (folder / WEIGHTS).unlink()
        save_file({n: t for n, t in kept.items() if n not in gone}, folder / WEIGHTS, metadata={"format": "pt"})

    return plant


def one(name: str, change: Callable[[torch.Tensor, Sizes], Any]) -> Plant:
    """Return what changes one tensor in place."""
    return tensors(lambda found, sizes: change(found[name], sizes))


def scaled(name: str, factor: float) -> Plant:
    """Return what multiplies one tensor."""
    return one(name, lambda tensor, _: tensor.mul_(factor))


def layer(number: int, part: str) -> str:
    """Return the name of a tensor of a layer."""
    inner = "mlp" if part in ("up_proj", "gate_proj", "down_proj") else "self_attn"
    return f"model.layers.{number}.{inner}.{part}.weight"


EMBEDDING, NORM = "model.embed_tokens.weight", "model.norm.weight"


def tokenizer(change: Callable[[dict[str, Any]], Any]) -> Plant:
    """Return what changes tokenizer.json."""

    def plant(folder: Path) -> None:
        data = read(folder / "tokenizer.json")
        change(data)
        write(folder / "tokenizer.json", data)

    return plant


def added(name: str, text: str) -> Plant:
    """Return what adds a file, or puts another in the place of one."""

    def plant(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).write_text(text, encoding="utf-8")

    return plant


# --- what happens to tensors


def exchange(tensor: torch.Tensor, one_part: slice, other: slice) -> None:
    """Exchange two parts of the rows."""
    kept = tensor[one_part].clone()
    tensor[one_part] = tensor[other]
    tensor[other] = kept


def exchange_heads(part: str) -> Plant:
    """Return what exchanges the first two heads of a matrix of layer 1."""
    return one(layer(1, part), lambda t, s: exchange(t, slice(0, s.head_dim), slice(s.head_dim, 2 * s.head_dim)))


def exchange_k_and_v(found: Tensors, sizes: Sizes) -> None:
    """Exchange the key and value matrices of layer 1."""
    k, v = layer(1, "k_proj"), layer(1, "v_proj")
    found[k], found[v] = found[v], found[k]


def exchange_layers(found: Tensors, sizes: Sizes) -> None:
    """Exchange layers 1 and 2."""
    for name in [name for name in found if ".layers.1." in name]:
        other = name.replace(".layers.1.", ".layers.2.")
        found[name], found[other] = found[other], found[name]


def repeat_layer(found: Tensors, sizes: Sizes) -> None:
    """Put layer 1 in the place of layer 2."""
    for name in [name for name in found if ".layers.1." in name]:
        found[name.replace(".layers.1.", ".layers.2.")] = found[name].clone()


def exchange_norms(found: Tensors, sizes: Sizes) -> None:
    """Exchange the two norms of layer 0."""
    before, after = (f"model.layers.0.{part}_layernorm.weight" for part in ("input", "post_attention"))
    found[before], found[after] = found[after], found[before]


def slow_pairs(tensor: torch.Tensor, sizes: Sizes, part: float) -> None:
    """Set the slowest pairs of every head of a key matrix to 0; part: how many of all."""
    count, half = round(part * sizes.head_dim / 2), sizes.head_dim // 2
    heads = tensor.view(-1, sizes.head_dim, tensor.shape[1])
    heads[:, half - count : half] = 0
    heads[:, sizes.head_dim - count :] = 0


def mute_slow_pairs(part: float) -> Plant:
    """Return what sets that part of the pairs of all keys to 0, the slowest first."""

    def change(found: Tensors, sizes: Sizes) -> None:
        for name in [name for name in found if "k_proj" in name]:
            slow_pairs(found[name], sizes, part)

    return tensors(change)


def reordered(number: int, order: Callable[[int], list[int]]) -> Plant:
    """Return what orders the channels of every head of the queries and keys of a layer anew, their norms as well."""

    def change(found: Tensors, sizes: Sizes) -> None:
        rows = order(sizes.head_dim)
        for part in ("q_proj", "k_proj", "q_norm", "k_norm"):
            name = layer(number, part)
            if name in found:
                tensor = found[name]
                heads = tensor.reshape(-1, sizes.head_dim, *tensor.shape[1:])
                found[name] = heads[:, rows].reshape(tensor.shape)

    return tensors(change)


def interleaved(size: int) -> list[int]:
    """Return the order that puts the two channels of a pair side by side."""
    return [channel for pair in range(size // 2) for channel in (pair, pair + size // 2)]


def backwards(size: int) -> list[int]:
    """Return the order that exchanges the two channels of every pair, which turns them the other way."""
    return [*range(size // 2, size), *range(size // 2)]


def noise(part: float) -> Plant:
    """Return what adds Gaussian noise to every matrix, as a part of its standard deviation."""

    def change(found: Tensors, sizes: Sizes) -> None:
        numbers = torch.Generator().manual_seed(0)
        for tensor in found.values():
            if tensor.ndim == 2:
                tensor += part * tensor.std() * torch.randn(tensor.shape, generator=numbers)

    return tensors(change)


def rounded(bits: int, part: str = "") -> Plant:
    """Return what rounds matrices to so many bits with one scale each."""

    def change(found: Tensors, sizes: Sizes) -> None:
        for name, tensor in found.items():
            if tensor.ndim == 2 and part in name:
                step = tensor.abs().max() / (2 ** (bits - 1) - 1)
                tensor.copy_((tensor / step).round() * step)

    return tensors(change)


def baked_twice(folder: Path) -> None:
    """Multiply all keys by the square of the attention factor, which the config goes on to state."""
    square = (0.1 * math.log(FACTOR) + 1) ** 2

    def change(found: Tensors, sizes: Sizes) -> None:
        for name in [name for name in found if "k_proj" in name]:
            found[name.replace("k_proj", "k_norm") if name.replace("k_proj", "k_norm") in found else name] *= square

    tensors(change)(folder)


def without(name: str) -> Plant:
    """Return what takes a tensor away."""
    return tensors(lambda found, _: found.pop(name))


def head_of_its_own(found: Tensors, sizes: Sizes) -> None:
    """Add an output head that is not the embedding, which a tied model ignores."""
    found["lm_head.weight"] = found[EMBEDDING] * 1.1


def cut_off(folder: Path) -> None:
    """Leave out the last 4 KiB of the weights."""
    data = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).unlink()
    (folder / WEIGHTS).write_bytes(data[:-4096])


# --- what happens to configs and tokenizers


def theta(factor: float) -> Plant:
    """Return what multiplies rope_theta."""
    return config(rope_theta=lambda old: old * factor)


def plain_ntk(folder: Path) -> None:
    """State the base that NTK-aware scaling by the factor asks for, and no scaling."""
    size = Sizes.of(folder).head_dim
    config(rope_scaling=None, rope_theta=lambda old: old * FACTOR ** (size / (size - 2)))(folder)


def half_wide_heads(folder: Path) -> None:
    """State twice as many heads of half the width: every tensor keeps its shape."""
    twice: Callable[[int], int] = lambda old: 2 * old  # noqa: E731
    config(num_attention_heads=twice, num_key_value_heads=twice, head_dim=lambda old: old // 2)(folder)


def other_class(folder: Path) -> None:
    """State another model_type of which every size is the same: a norm or the norms of queries and keys are left out."""
    others = {"llama": "gemma", "qwen3": "llama"}
    config(model_type=lambda old: others[old])(folder)


def exchange_merges(data: dict[str, Any]) -> None:
    """Exchange two merges."""
    merges = data["model"]["merges"]
    merges[500], merges[501] = merges[501], merges[500]


def exchange_ids(first: str, second: str) -> Plant:
    """Return what exchanges the ids of two tokens."""

    def change(data: dict[str, Any]) -> None:
        vocabulary = data["model"]["vocab"]
        vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]

    return tokenizer(change)


def exchange_rare_ids(data: dict[str, Any]) -> None:
    """Exchange the two ids that were made last, those of the rarest tokens."""
    vocabulary = data["model"]["vocab"]
    first, second = sorted(vocabulary, key=vocabulary.__getitem__)[-2:]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]


def in_tokenizer_config(**changes: Any) -> Plant:
    """Return what states keys of tokenizer_config.json."""

    def plant(folder: Path) -> None:
        path = folder / "tokenizer_config.json"
        write(path, {**read(path), **changes})

    return plant


def special_word(data: dict[str, Any]) -> None:
    """Make an ordinary word a special token, which is cut out of a text before anything else."""
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    data["added_tokens"].append({"id": data["model"]["vocab"]["Ġthe"], "content": "the", "special": True, **flags})


def other_split(data: dict[str, Any]) -> None:
    """Split digits one by one."""
    pattern = data["pre_tokenizer"]["pretokenizers"][0]["pattern"]
    pattern["Regex"] = pattern["Regex"].replace("{1,3}", "{1,1}")


def factor_of_yarn(old: Any) -> float:
    """Return the attention factor of the method."""
    return 0.1 * math.log(FACTOR) + 1


def attention_factor(change: Callable[[float], float]) -> Plant:
    """Return what states another attention factor."""
    return rope(attention_factor=lambda old: change(factor_of_yarn(old)))


DEFECTS: dict[str, Defect] = {
    # The keys of the scaling.
    "factor 5 % smaller": Defect(rope(factor=lambda f: f * 0.95)),
    "factor 10 % larger": Defect(rope(factor=lambda f: f * 1.1)),
    "factor 25 % larger": Defect(rope(factor=lambda f: f * 1.25)),
    "factor 25 % smaller": Defect(rope(factor=lambda f: f * 0.75)),
    "factor halved": Defect(rope(factor=lambda f: f / 2)),
    "factor four times as large": Defect(rope(factor=lambda f: f * 4)),
    "original length doubled": Defect(rope(original_max_position_embeddings=lambda n: n * 2)),
    "original length halved": Defect(rope(original_max_position_embeddings=lambda n: n // 2)),
    "original length that of the context": Defect(rope(original_max_position_embeddings=lambda n: n * FACTOR)),
    "attention factor 2 % larger": Defect(attention_factor(lambda a: a * 1.02)),
    "attention factor 5 % larger": Defect(attention_factor(lambda a: a * 1.05)),
    "attention factor 10 % larger": Defect(attention_factor(lambda a: a * 1.1)),
    "attention factor 10 % smaller": Defect(attention_factor(lambda a: a * 0.9)),
    "attention factor squared": Defect(attention_factor(lambda a: a * a)),
    "attention factor dropped": Defect(attention_factor(lambda a: 1.0)),
    "mscale of another model": Defect(rope(mscale=0.707, mscale_all_dim=1.0)),
    "beta_fast 4": Defect(rope(beta_fast=4)),
    "beta_slow 4": Defect(rope(beta_slow=4)),
    "truncate false": Defect(rope(truncate=False)),
    "rope_theta 1 % larger": Defect(theta(1.01)),
    "rope_theta 10 % larger": Defect(theta(1.1)),
    "rope_theta 50 % larger": Defect(theta(1.5)),
    "rope_theta four times as large": Defect(theta(4)),
    "stated context halved": Defect(config(max_position_embeddings=lambda n: n // 2)),
    "stated context eight times as long": Defect(config(max_position_embeddings=lambda n: n * 8)),
    "scaling lost": Defect(config(rope_scaling=None)),
    "scaling under a misspelt key": Defect(
        lambda folder: write(
            folder / "config.json",
            {"rope_scalling" if k == "rope_scaling" else k: v for k, v in read(folder / "config.json").items()},
        )
    ),
    "scaling of no type": Defect(rope(rope_type="default")),
    "a second scaling beside": Defect(
        config(rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0})
    ),
    "ntk in place of yarn": Defect(plain_ntk),
    "linear in place of yarn": Defect(config(rope_scaling={"rope_type": "linear", "factor": float(FACTOR)})),
    "half of every head rotates": Defect(rope(partial_rotary_factor=0.5)),
    "lists: a slow pair wrong": Defect(one_of_list("long_factor", -1), LISTS),
    "lists: a fast pair wrong": Defect(one_of_list("long_factor", 2), LISTS),
    "lists: those of factor 2": Defect(rope(long_factor=lambda old: [min(x, 2.0) for x in old]), LISTS),
    "lists: all ones": Defect(rope(long_factor=lambda old: [1.0] * len(old)), LISTS),
    # Other keys of the config.
    "gelu for silu": Defect(config(hidden_act="gelu")),
    "epsilon of the norms ten times as large": Defect(config(rms_norm_eps=lambda e: 10 * e)),
    "epsilon of the norms 0.01": Defect(config(rms_norm_eps=1e-2)),
    "last layer left out": Defect(config(num_hidden_layers=lambda n: n - 1)),
    "embedding not tied": Defect(config(tie_word_embeddings=False)),
    "twice as many heads of half the width": Defect(half_wide_heads),
    "another model_type": Defect(other_class),
    "biases of attention": Defect(config(attention_bias=True)),
    "another id ends a text": Defect(config(eos_token_id=77)),
    "another id begins a text": Defect(config(bos_token_id=77)),
    "a larger vocabulary": Defect(config(vocab_size=lambda n: n + 64)),
    "quantised on loading": Defect(config(quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True})),
    "code of its own": Defect(config(auto_map={"AutoModelForCausalLM": "modeling.Model"}), strict=True),
    # The weights.
    "two heads of q exchanged": Defect(exchange_heads("q_proj")),
    "two heads of k exchanged": Defect(exchange_heads("k_proj")),
    "k and v of a layer exchanged": Defect(tensors(exchange_k_and_v)),
    "two layers exchanged": Defect(tensors(exchange_layers)),
    "a layer twice": Defect(tensors(repeat_layer)),
    "two norms of a layer exchanged": Defect(tensors(exchange_norms)),
    "a head of o zero": Defect(one(layer(1, "o_proj"), lambda t, s: t[:, : s.head_dim].zero_())),
    "a head of v zero": Defect(one(layer(1, "v_proj"), lambda t, s: t[: s.head_dim].zero_())),
    "a head of k zero": Defect(one(layer(3, "k_proj"), lambda t, s: t[: s.head_dim].zero_())),
    "q of the last layer zero": Defect(scaled(layer(3, "q_proj"), 0)),
    "k of the last layer zero": Defect(scaled(layer(3, "k_proj"), 0)),
    "k of a layer 50 % larger": Defect(scaled(layer(1, "k_proj"), 1.5)),
    "k of a layer 10 % larger": Defect(scaled(layer(1, "k_proj"), 1.1)),
    "attention factor in the weights too": Defect(baked_twice),
    "a row of q negated": Defect(one(layer(1, "q_proj"), lambda t, s: t[s.head_dim + 6].neg_())),
    "one number of a layer": Defect(one(layer(2, "up_proj"), lambda t, _: t[3, 5].add_(1))),
    "last norm 20 % larger": Defect(scaled(NORM, 1.2)),
    "last norm 2 % larger": Defect(scaled(NORM, 1.02)),
    "last norm 30 % smaller": Defect(scaled(NORM, 0.7)),
    "a channel of the last norm zero": Defect(one(NORM, lambda t, _: t[7].zero_())),
    "slowest eighth of the pairs of k mute": Defect(mute_slow_pairs(4 / 32)),
    "slowest third of the pairs of k mute": Defect(mute_slow_pairs(10 / 32)),
    "layout of layer 1 exchanged": Defect(reordered(1, interleaved)),
    "layout of layer 3 exchanged": Defect(reordered(3, interleaved)),
    "layer 1 rotates backwards": Defect(reordered(1, backwards)),
    "noise of 5 %": Defect(noise(0.05)),
    "noise of 15 %": Defect(noise(0.15)),
    "all matrices at 5 bits": Defect(rounded(5)),
    "all matrices at 4 bits": Defect(rounded(4)),
    "a layer at 4 bits": Defect(rounded(4, ".layers.1.")),
    "k at 2 bits": Defect(rounded(2, "k_proj")),
    "ten rows of the embedding zero": Defect(one(EMBEDDING, lambda t, s: t[s.vocabulary - 10 :].zero_())),
    "two rows of the embedding exchanged": Defect(
        one(
            EMBEDDING,
            lambda t, s: exchange(t, slice(s.vocabulary - 2, s.vocabulary - 1), slice(s.vocabulary - 1, s.vocabulary)),
        )
    ),
    "not a number in a row of the embedding": Defect(one(EMBEDDING, lambda t, _: t[2000].fill_(math.nan))),
    "a tensor missing": Defect(without(layer(2, "v_proj"))),
    "an output head of its own": Defect(tensors(head_of_its_own)),
    "weights cut off": Defect(cut_off),
    # Tokenizer and files.
    "two merges exchanged": Defect(tokenizer(exchange_merges)),
    "a merge dropped": Defect(tokenizer(lambda data: data["model"]["merges"].pop(700))),
    "ids of two rare tokens exchanged": Defect(tokenizer(exchange_rare_ids)),
    "ids of two common tokens exchanged": Defect(exchange_ids("Ġthe", "Ġof")),
    "no token begins a text": Defect(tokenizer(lambda data: data.update(post_processor=None))),
    "digits split otherwise": Defect(tokenizer(other_split)),
    "all letters made small": Defect(tokenizer(lambda data: data.update(normalizer={"type": "Lowercase"}))),
    "special tokens of another file": Defect(
        added("special_tokens_map.json", '{"bos_token": "the", "eos_token": "of"}')
    ),
    "a word ends a text": Defect(in_tokenizer_config(eos_token="the")),
    "no token begins a text, by another file": Defect(in_tokenizer_config(add_bos_token=False)),
    "a word made a special token": Defect(tokenizer(special_word)),
    "generation config added": Defect(added("generation_config.json", '{"eos_token_id": 77}'), strict=True),
    "chat template added": Defect(added("chat_template.jinja", "{{ messages }}"), strict=True),
    "other weights beside": Defect(added("consolidated.safetensors", "x")),
    "pickled weights beside": Defect(added("pytorch_model.bin", "x")),
    "an adapter beside": Defect(added("adapter_config.json", '{"peft_type": "LORA"}')),
    "an index of other weights": Defect(
        added(
            "model.safetensors.index.json", '{"metadata": {}, "weight_map": {"model.norm.weight": "other.safetensors"}}'
        )
    ),
}

# Of each kind some, which are verified with nothing at hand too: files say nothing then, and losses take seconds a row.
SEEN_BY_LOSSES = (
    "factor halved", "scaling lost", "gelu for silu", "epsilon of the norms 0.01", "last layer left out", "two layers exchanged",
    "q of the last layer zero", "layout of layer 1 exchanged", "noise of 15 %", "all matrices at 4 bits", "k at 2 bits",
    "not a number in a row of the embedding", "a tensor missing", "all letters made small",
)  # fmt: skip

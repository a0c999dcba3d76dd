#!/usr/bin/env python3
"""Plant engines' mistakes in small models that are served, ask `identify` for each, and ask it 300 times for honest ones.

Writes tests/identify/planted.json, which docs/inspecting.md cites, in about 40 minutes of one core. The models are of random
weights, in transformers' own classes, with the demo's tokenizer. A mistake is one of the keys in config.json, of q_proj's and
k_proj's rows, or of a module's scale: none of it is ropetool's arithmetic.

    scripts/identify/planted_tables.py               measure all, write the record
    scripts/identify/planted_tables.py --only llama  of one model again, the others as they are written
"""

from __future__ import annotations

import argparse
import copy
import json
import shutil
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from model_server import Served, serving

import ropetool
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.identify import prompts
from ropetool.identify.asking import AS_MEANT, Identified, IdentifyOptions, identify
from ropetool.servers.http import Http
from ropetool.servers.opening import open_server

RESULT = ROOT / "tests" / "identify" / "planted.json"
DEMO = Path(ropetool.__file__).parent / "demo" / "model"
TRAINED, CONTEXT = 128, 1024  # tokens
DEVIATION = 0.12  # of the weights: attention that depends on where tokens are
INTERFACES = ("vllm", "sglang", "llama-server")
TYPES = ("float32", "bfloat16", "float16")
LENGTHS = (300, 700)
SEEDS = 5
Config = dict[str, Any]
Keys = Mapping[str, Any]

SIZES: Config = {
    "vocab_size": 2048, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": CONTEXT, "tie_word_embeddings": False,
    "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1,
}  # fmt: skip
YARN = {
    "rope_type": "yarn", "rope_theta": 500000.0, "factor": 8.0, "original_max_position_embeddings": TRAINED,
    "attention_factor": 1.3, "beta_fast": 24.0, "beta_slow": 2.0,
}  # fmt: skip
LISTS = {
    "rope_type": "longrope", "rope_theta": 10000.0, "factor": 8.0, "original_max_position_embeddings": TRAINED,
    "short_factor": [1.0 + 0.05 * pair for pair in range(16)], "long_factor": [1.0 + 0.6 * pair for pair in range(16)],
}  # fmt: skip
BARE = {key: value for key, value in YARN.items() if key not in ("attention_factor", "beta_fast", "beta_slow")}
LINEAR = {"rope_type": "linear", "rope_theta": 500000.0, "factor": 8.0}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "original_max_position_embeddings": TRAINED,
    "low_freq_factor": 1.0, "high_freq_factor": 4.0,
}  # fmt: skip


# --- mistakes: of keys, of rows, of scales


@dataclass(frozen=True)
class Plant:
    """name: of the table that has to be named; empty, where it is none of the list."""

    name: str
    config: Callable[[Config], Config] = lambda config: config
    model: Callable[[Any], None] = lambda model: None


def keyed(name: str, kind: str = "", **changes: Any) -> Plant:
    """Return a mistake of rope keys, of one kind of layer or of the only one; those of None are not there."""

    def change(config: Config) -> Config:
        found = copy.deepcopy(config)
        keys = found["rope_parameters"][kind] if kind else found["rope_parameters"]
        keys |= changes
        for key in [key for key, value in changes.items() if value is None]:
            del keys[key]
        return found

    return Plant(name, change)


def plain(name: str, kind: str = "") -> Plant:
    """Return a scaling that is not read."""

    def change(config: Config) -> Config:
        found = copy.deepcopy(config)
        keys = found["rope_parameters"][kind] if kind else found["rope_parameters"]
        kept = {key: keys[key] for key in ("rope_theta", "partial_rotary_factor") if key in keys}
        keys.clear()
        keys.update({"rope_type": "default", **kept})
        return found

    return Plant(name, change)


def kinds(name: str, **taken: str) -> Plant:
    """Return kinds of layers that turn by the keys of others."""

    def change(config: Config) -> Config:
        found = copy.deepcopy(config)
        found["rope_parameters"] = {
            kind: copy.deepcopy(config["rope_parameters"][taken.get(kind, kind)]) for kind in config["rope_parameters"]
        }
        return found

    return Plant(name, change)


def interleaved_rows(model: Any) -> None:
    """Put the rows of queries and keys as files for interleaved pairs have them, in a class that pairs halves."""
    for name, module in model.named_modules():
        if name.endswith(("q_proj", "k_proj")):
            with torch.no_grad():
                width = module.weight.shape[1]
                heads = module.weight.reshape(-1, SIZES["head_dim"] // 2, 2, width)
                module.weight.copy_(heads.transpose(1, 2).reshape(-1, width))


def unscaled_scores(model: Any) -> None:
    """Leave the softmax scale what the size of a head makes it."""
    for module in model.modules():
        if hasattr(module, "qk_nope_head_dim"):
            module.scaling = (module.qk_nope_head_dim + module.qk_rope_head_dim) ** -0.5


LENGTH = [
    keyed("original length lost", original_max_position_embeddings=CONTEXT),
    keyed("original length doubled", original_max_position_embeddings=2 * TRAINED),
]  # fmt: skip
FACTOR = [keyed("factor halved", factor=4.0), keyed("factor doubled", factor=16.0)]
BASE = keyed("base 10000", rope_theta=10000.0)
DROPPED = keyed("attention factor dropped", attention_factor=1.0)
TRUNCATED = keyed("truncate the other way", truncate=False)
BETAS = keyed("betas not read", beta_fast=None, beta_slow=None)
FULL, SLIDING = "full_attention", "sliding_attention"
OF_YARN = [
    plain("scaling dropped"), DROPPED, keyed("attention factor squared", attention_factor=1.69),
    keyed("attention factor doubled", attention_factor=2.6), keyed("attention factor by default", attention_factor=None),
    BETAS, TRUNCATED, *LENGTH, *FACTOR, BASE, keyed("base 1e+06", rope_theta=1e6),
    keyed("linear in its place", rope_type="linear"), keyed("", rope_theta=40000.0), keyed("", factor=3.0),
]  # fmt: skip
OTHER_BETA = keyed("", beta_fast=6.0)
SWAPPED = Plant("layout swapped", model=interleaved_rows)


@dataclass(frozen=True)
class Made:
    """A model: what its config says beside SIZES, and the mistakes that are planted in it."""

    config: Config
    plants: Sequence[Plant]
    sizes: Config = field(default_factory=lambda: SIZES)


def _yarn(model_type: str, *plants: Plant, keys: Keys = YARN, **config: Any) -> Made:
    return Made({"model_type": model_type, "rope_parameters": dict(keys), **config}, [*OF_YARN, *plants])


MODELS: dict[str, Made] = {
    "llama": _yarn("llama", SWAPPED, OTHER_BETA),
    "mistral": _yarn("mistral", SWAPPED, OTHER_BETA, keys={**YARN, "beta_fast": 12.0}, sliding_window=None),
    "qwen2": Made(
        {"model_type": "qwen2", "rope_parameters": BARE},
        [
            plain("scaling dropped"), DROPPED, TRUNCATED, LENGTH[0], BASE,
            keyed("attention factor squared", attention_factor=(0.1 * np.log(8.0) + 1) ** 2), keyed("", attention_factor=1.12),
        ],
    ),
    "llama3": Made(
        {"model_type": "llama", "rope_parameters": LLAMA3},
        [plain("scaling dropped"), *FACTOR, *LENGTH, BASE, SWAPPED, keyed("", high_freq_factor=2.0)],
    ),
    "olmo2": Made({"model_type": "olmo2", "rope_parameters": LINEAR}, [plain("scaling dropped"), *FACTOR, BASE]),
    "phi3": Made(
        {"model_type": "phi3", "hidden_size": 128, "original_max_position_embeddings": TRAINED, "rope_parameters": LISTS},
        [
            keyed("short list always", long_factor=LISTS["short_factor"]), keyed("long list always", short_factor=LISTS["long_factor"]),
            plain("scaling dropped"), DROPPED, keyed("attention factor squared", attention_factor=1 + np.log(8.0) / np.log(TRAINED)),
            keyed("", long_factor=[1.0 + 0.3 * pair for pair in range(16)]),
        ],
    ),
    "gemma3_text": Made(
        {
            "model_type": "gemma3_text", "sliding_window": 64, "num_hidden_layers": 6, "query_pre_attn_scalar": 32,
            "layer_types": [SLIDING, SLIDING, FULL] * 2,
            "rope_parameters": {FULL: {**YARN, "rope_theta": 1e6}, SLIDING: {"rope_type": "default", "rope_theta": 20000.0}},
        },
        [
            plain("scaling dropped", FULL), kinds(f"{SLIDING} as {FULL}", sliding_attention=FULL),
            kinds(f"{FULL} as {SLIDING}", full_attention=SLIDING),
            kinds("kinds swapped", sliding_attention=FULL, full_attention=SLIDING),
            keyed("attention factor dropped", FULL, attention_factor=1.0), keyed("betas not read", FULL, beta_fast=None, beta_slow=None),
            keyed("base 1e+06", SLIDING, rope_theta=1e6), keyed("", SLIDING, rope_theta=300000.0),
        ],
    ),
    "deepseek_v3": Made(
        {
            "model_type": "deepseek_v3",
            "rope_parameters": {**BARE, "beta_fast": 24.0, "beta_slow": 2.0, "mscale": 0.7, "mscale_all_dim": 1.0},
            "q_lora_rank": None, "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 32, "v_head_dim": 32,
            "num_key_value_heads": 4, "first_k_dense_replace": 4,
        },
        [
            plain("scaling dropped"), keyed("mscale not read", mscale=None, mscale_all_dim=None),
            Plant("softmax scale not read", model=unscaled_scores), BETAS, BASE, LENGTH[1],
            Plant("layout swapped", lambda config: {**config, "rope_interleave": False}), keyed("", mscale_all_dim=0.4),
        ],
    ),
    "glm4": _yarn("glm4", keys={**YARN, "partial_rotary_factor": 0.5}, attention_bias=False),
    "gpt_oss": Made(
        {
            "model_type": "gpt_oss", "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 64,
            "layer_types": [SLIDING, FULL] * 2, "rope_parameters": {**BARE, "beta_fast": 24.0, "truncate": False},
        },
        [
            plain("scaling dropped"), DROPPED, keyed("truncate the other way", truncate=True),
            keyed("betas not read", beta_fast=None), BASE, keyed("", beta_fast=6.0),
        ],
    ),
}  # fmt: skip


# --- models, servers


def make(made: Made, seed: int, folder: Path) -> Path:
    """Write a checkpoint of random weights, with the demo's tokenizer."""
    config = transformers.AutoConfig.for_model(**{**made.sizes, **made.config})
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, values in model.named_parameters():
            if values.ndim > 1:
                values.normal_(0, DEVIATION)
            elif "norm" not in name:
                values.normal_(0, 0.02)
    model.save_pretrained(folder)
    # As it is published: transformers would fill in what a key's absence means.
    written = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(
        json.dumps({**written, "rope_parameters": made.config["rope_parameters"]}), encoding="utf-8"
    )
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(DEMO / file, folder)
    return folder


def served(path: Path, plant: Plant, dtype: str, interface: str) -> Served:
    """Return a server of the checkpoint with a mistake, by transformers."""
    config = plant.config(json.loads((path / "config.json").read_text(encoding="utf-8")))
    with tempfile.TemporaryDirectory() as name:
        changed = Path(name)
        for file in path.iterdir():
            (changed / file.name).symlink_to(file)
        (changed / "config.json").unlink()
        (changed / "config.json").write_text(json.dumps(config), encoding="utf-8")
        model = transformers.AutoModelForCausalLM.from_pretrained(changed, dtype=getattr(torch, dtype)).eval()
        tokenizer = transformers.AutoTokenizer.from_pretrained(changed)
    plant.model(model)
    lock = threading.Lock()

    def log_probs(ids: Sequence[int]) -> np.ndarray:
        with lock, torch.inference_mode():
            return torch.log_softmax(model(torch.tensor([list(ids)])).logits[0, -1].double(), -1).numpy()

    return Served(
        interface,
        log_probs,
        lambda text: tokenizer(text, add_special_tokens=False)["input_ids"],
        tokenizer.decode,
        CONTEXT,
    )


def remembered() -> None:
    """Choose the prompts of a checkpoint and length once: they are the same whoever answers."""
    real, known = prompts.choose, dict[tuple[str, int], list[prompts.Prompt]]()

    def choose(reference: Any, hypotheses: Any, texts: Any, *arguments: Any) -> list[prompts.Prompt]:
        key = str(reference.runner.path), len(texts[0])
        if key not in known:
            known.clear()
            known[key] = real(reference, hypotheses, texts, *arguments)
        return known[key]

    prompts.choose = choose


def asked(path: Path, plant: Plant, dtype: str, interface: str, length: int) -> Identified:
    """Return what `identify` says of the server of a mistake."""
    with serving(served(path, plant, dtype, interface)) as url:
        return identify(HfCheckpoint.open(path), open_server(Http(url)), IdentifyOptions(length, device="cpu"))


def says(found: Identified, name: str) -> str:
    """Return what an answer comes to: "named", "same table" as the one that is meant, "not told apart", "none", or another's name."""
    if not found.name:
        return "named" if not name else "none"
    best = found.hypotheses[found.decision.best]
    if name in best.alike and best.name == AS_MEANT:
        return "same table"
    if name in (best.name, *best.alike):
        return "named" if found.sure else "not told apart"
    # Two tables that no prompt of this length tells apart are both said; the one that is served has to be among them.
    rivals = [found.hypotheses[at] for at in found.decision.rivals]
    return "not told apart" if any(name in (one.name, *one.alike) for one in rivals) else found.name


# --- the runs


def runs(name: str, made: Made) -> Iterator[list[Any]]:
    """Yield of each run: the model, seed, tokens, type, interface, what is planted, and what was said."""
    count = 0
    for seed in range(SEEDS):
        with tempfile.TemporaryDirectory() as folder:
            path = make(made, seed, Path(folder))
            for length in LENGTHS:
                planted = made.plants if (seed, length) == (0, LENGTHS[-1]) else ()
                for plant in (*[Plant(AS_MEANT)] * len(TYPES), *planted):
                    dtype, interface = TYPES[count % len(TYPES)], INTERFACES[count // len(TYPES) % len(INTERFACES)]
                    count += 1
                    found = asked(path, plant, dtype, interface, length)
                    yield [
                        name,
                        seed,
                        length,
                        dtype,
                        interface,
                        plant.name,
                        says(found, plant.name),
                        round(found.decision.margin, 6),
                    ]


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=MODELS, default=[])
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    remembered()
    rows: list[list[Any]] = []
    if options.only:
        kept = json.loads(RESULT.read_text(encoding="utf-8"))["runs"]
        rows = [row for row in kept if row[0] not in options.only]
    for name in options.only or MODELS:
        for row in runs(name, MODELS[name]):
            print(*row, flush=True)
            rows.append(row)
    rows.sort(key=lambda row: [*MODELS].index(row[0]))
    print(Counter((row[5] == AS_MEANT, bool(row[5]), row[6]) for row in rows))
    lines = ",\n".join("  " + json.dumps(row) for row in rows)
    releases = json.dumps({"transformers": transformers.__version__, "torch": torch.__version__.split("+")[0]})
    RESULT.write_text(f'{{"releases": {releases}, "runs": [\n{lines}\n]}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()

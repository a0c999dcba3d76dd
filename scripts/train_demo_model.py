"""Train the embedded demo checkpoint, a 3.5M-parameter Llama that knows 256 positions, or a second model for tests.

Makes ropetool/demo/model (config, BPE tokenizer, bf16 weights) and ropetool/demo/text (held-out
documents) from material that is free to redistribute: the King James text of Debian's package
bible-kjv and the sources of the running Python's standard library (PSF licence).

    apt-get install bible-kjv
    python scripts/train_demo_model.py --out DIR --minutes 45

About 45 minutes on two cores. The result is committed once, it is not rebuilt by the tests: another
Python version or another number of threads gives a slightly different model.

    python scripts/train_demo_model.py --second

makes another one in the cache, and prints where: a Qwen3 (grouped queries, norms on queries and keys) of 1.1M
parameters that knows 128 positions, from the texts that the package bundles. It needs nothing else, takes
about 8 minutes of one core, and a fixed number of steps, so that the same machine makes the same model.
Nothing is done where it is there already. tests/verification/test_second_model.py uses it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import random
import re
import shutil
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ropetool import machine
from ropetool.verification.texts import long_documents

TRAINED_LENGTH = 256
VOCABULARY = 2048
BOS, EOS = "<|begin_of_text|>", "<|end_of_text|>"
HELD_OUT_CHARACTERS = 22_000
HELD_OUT_BOOKS = ["Lev", "Num", "Josh", "1Ki", "Jer", "Eze", "John", "Dan"]
HELD_OUT_MODULES = [
    "argparse.py",
    "configparser.py",
    "ftplib.py",
    "imaplib.py",
    "mailbox.py",
    "pickletools.py",
    "smtplib.py",
    "tarfile.py",
    "textwrap.py",
    "zipfile.py",
]
BOOK_WEIGHT = 2  # the books are a ninth of the text; drawn twice as often they are a fifth of what is seen
# The split that Llama 3 publishes, so that runtimes know the pre-tokenizer by its structure.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-05,
    "max_position_embeddings": TRAINED_LENGTH,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "mlp_bias": False,
    "initializer_range": 0.02,
    "tie_word_embeddings": True,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "torch_dtype": "bfloat16",
    "use_cache": True,
}


# Heads wider than hidden_size / heads, as in Qwen3, and two of them to each key.
SECOND_CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 352,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 48,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-06,
    "max_position_embeddings": 128,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "use_sliding_window": False,
    "initializer_range": 0.02,
    "tie_word_embeddings": True,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "torch_dtype": "bfloat16",
    "use_cache": True,
}


@dataclass(frozen=True)
class Recipe:
    """How a model is trained: for a time in minutes, or for a number of steps, which a machine repeats exactly.

    repeats: the share of rows whose second half is their first. From these a model that sees few tokens learns to copy
    from half a row back, by position; from the texts it would learn little that a wrong rotation could break.
    """

    config: Mapping[str, Any]
    minutes: float
    batch: int
    lr: float
    seed: int
    steps: int | None = None
    repeats: float = 0.0

    @property
    def trained_length(self) -> int:
        return int(self.config["max_position_embeddings"])


SECOND = Recipe(SECOND_CONFIG, minutes=0, batch=8, lr=3e-3, seed=1, steps=2400, repeats=0.25)


def king_james() -> dict[str, str]:
    """Return the books of Debian's bible-kjv, one verse a line, by their short names."""
    dump = subprocess.run(["bible", "-f", "gen1:1-rev22:21"], capture_output=True, text=True, check=True).stdout
    books: dict[str, list[str]] = {}
    for line in dump.splitlines():
        match = re.match(r"(\d?[A-Za-z]+)(\d+):(\d+) (.*)", line)
        if match:
            book, _, verse, text = match.groups()
            lines = books.setdefault(book, [])
            if verse == "1" and lines:
                lines.append("")
            lines.append(text)
    return {book: "\n".join(lines) + "\n" for book, lines in books.items()}


def standard_library() -> dict[str, str]:
    """Return the sources of the standard library and its tests, by path; files over 200 kB are tables, not text."""
    root = Path(sysconfig.get_paths()["stdlib"])
    skipped = {"site-packages", "encodings", "pydoc_data", "__pycache__"}
    texts = {}
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if not skipped & set(relative.parts) and path.stat().st_size < 200_000:
            try:
                texts[str(relative)] = path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue  # a handful of modules declare another encoding
    return texts


def train_tokenizer(texts: list[str]):
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[AddedToken(BOS, special=True), AddedToken(EOS, special=True)],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(
                single=f"{BOS} $A",
                pair=f"{BOS} $A {BOS} $B",
                special_tokens=[(BOS, tokenizer.token_to_id(BOS))],
            ),
        ]
    )
    return tokenizer


def shared_20_grams(train: list[list[int]], document: list[int]) -> float:
    """Return the share of the document's 20-grams of tokens that also stand in the training text."""
    wanted = {tuple(document[i : i + 20]) for i in range(len(document) - 19)}
    firsts = {gram[:4] for gram in wanted}
    found = set()
    for ids in train:
        for i in range(len(ids) - 19):
            if tuple(ids[i : i + 4]) in firsts:
                gram = tuple(ids[i : i + 20])
                if gram in wanted:
                    found.add(gram)
    return len(found) / len(wanted)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--second", action="store_true", help="make the second model for tests, in the cache")
    parser.add_argument("--out", type=Path, help="a new folder for the demo model")
    parser.add_argument("--minutes", type=float, default=45.0)
    parser.add_argument("--batch", type=int, default=24)
    parser.add_argument("--lr", type=float, default=2.5e-3)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.second:
        print(second())
    elif options.out is None:
        parser.error("--out DIR is needed, or --second")
    else:
        demo(Recipe(CONFIG, options.minutes, options.batch, options.lr, options.seed), options.out)


def second_place(cache: Path) -> Path:
    """Return where in a cache the second model lies: a folder named by all that it is made from."""
    recipe = json.dumps([vars(SECOND), HELD_OUT_CHARACTERS, SPLIT], sort_keys=True)
    digest = hashlib.sha256(recipe.encode())
    for document in long_documents():
        digest.update(hashlib.sha256(document.text.encode()).digest())
    return cache / "models" / f"second-{digest.hexdigest()[:16]}"


def second() -> Path:
    """Return the folder of the second model and its held-out texts, made where it is not there; whole or not at all."""
    import torch

    place = second_place(machine.cache())
    if place.exists():
        return place
    torch.set_num_threads(1)  # sums in one order, whatever the machine
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent) as folder:
        out = Path(folder) / "out"
        texts = {document.name.partition(".")[0]: document.text for document in long_documents()}
        held_out = {f"{name}.txt": text[:HELD_OUT_CHARACTERS] for name, text in texts.items()}
        build(SECOND, [text[HELD_OUT_CHARACTERS:] for text in texts.values()], [1] * len(texts), held_out, out)
        shutil.move(out, place)
    return place


def demo(recipe: Recipe, out: Path) -> None:
    books, modules = king_james(), standard_library()
    held_out = {f"kjv-{name.lower()}.txt": books.pop(name) for name in HELD_OUT_BOOKS}
    held_out |= {f"python-{name[:-3]}.txt": modules.pop(name) for name in HELD_OUT_MODULES}
    held_out = {name: text[:HELD_OUT_CHARACTERS].rsplit("\n", 1)[0] + "\n" for name, text in held_out.items()}
    train_texts = [*books.values(), *modules.values()]
    print(f"{len(books)} books, {len(modules)} modules, {sum(map(len, train_texts)) / 1e6:.1f} MB to train on")

    weights = [BOOK_WEIGHT] * len(books) + [1] * len(modules)
    build(recipe, train_texts, weights, held_out, out)


def build(
    recipe: Recipe, train_texts: Sequence[str], each: Sequence[int], held_out: Mapping[str, str], out: Path
) -> None:
    """Write the folders model and text: tokenizer and weights trained on the texts, each drawn by its weight and length."""
    tokenizer = train_tokenizer(train_texts)
    encode = lambda texts: [e.ids for e in tokenizer.encode_batch(texts, add_special_tokens=False)]  # noqa: E731
    encoded = encode(train_texts)
    train = [ids for ids in encoded if len(ids) >= recipe.trained_length]
    total = sum(map(len, train))
    print(f"{total} training tokens in {len(train)} documents")

    model_dir, text_dir = out / "model", out / "text"
    model_dir.mkdir(parents=True)
    text_dir.mkdir()
    for name, text in held_out.items():
        ids = encode([text])[0]
        share = shared_20_grams(train, ids)
        print(f"{name}: {len(ids)} tokens, {share:.2%} of its 20-grams in the training text", flush=True)
        if len(ids) < 5000 or share >= 0.01:
            print(f"{name} is left out: a held-out document has 5000 tokens and under 1 % shared 20-grams")
            continue
        (text_dir / name).write_text(text, encoding="utf-8")
    tokenizer.save(str(model_dir / "tokenizer.json"))
    (model_dir / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "bos_token": BOS,
                "eos_token": EOS,
                "clean_up_tokenization_spaces": False,
                "model_max_length": recipe.trained_length,
                "model_input_names": ["input_ids", "attention_mask"],
            },
            indent=2,
        )
        + "\n",
        encoding="utf-8",
    )
    (model_dir / "config.json").write_text(json.dumps(recipe.config, indent=2) + "\n", encoding="utf-8")
    weights = [
        len(ids) * weight for ids, weight in zip(encoded, each, strict=True) if len(ids) >= recipe.trained_length
    ]
    train_model(
        recipe, train, weights, tokenizer.token_to_id(BOS), model_dir, [encode([t])[0] for t in held_out.values()]
    )


def train_model(
    recipe: Recipe,
    train: list[list[int]],
    weights: list[int],
    bos: int,
    model_dir: Path,
    held_out: list[list[int]],
) -> None:
    import torch
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(recipe.seed)
    rng = random.Random(recipe.seed)
    documents = [torch.tensor(ids) for ids in train]
    kept = {k: v for k, v in recipe.config.items() if k not in ("model_type", "torch_dtype")}
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(recipe.config["model_type"], **kept), dtype=torch.float32
    )
    print(f"{sum(p.numel() for p in model.parameters())} parameters", flush=True)
    decayed = [p for p in model.parameters() if p.ndim == 2]
    plain = [p for p in model.parameters() if p.ndim != 2]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}],
        lr=recipe.lr,
        betas=(0.9, 0.95),
        fused=True,
    )

    def batch(count: int, source: list, source_weights: list[int], repeats: float = 0.0) -> torch.Tensor:
        rows = []
        for ids in rng.choices(source, source_weights, k=count):
            # Half of the windows have no BOS in front, so that the model does not read positions off its distance.
            front = torch.tensor([bos] if rng.random() < 0.5 else [], dtype=torch.long)
            count_of_text = recipe.trained_length - len(front)
            start = rng.randrange(len(ids) - count_of_text + 1)
            row = torch.cat([front, ids[start : start + count_of_text]])
            if repeats and rng.random() < repeats:
                row[len(row) // 2 :] = row[: (len(row) + 1) // 2]
            rows.append(row)
        return torch.stack(rows)

    started, step, running = time.monotonic(), 0, None
    # Twice as many tokens a second as float32 where the processor has it, and a tenth of them where it does not.
    has_bfloat16 = torch.ops.mkldnn._is_mkldnn_bf16_supported()

    def done() -> float:
        # The rate follows the clock where that ends the training, so that the decay ends with it.
        return step / recipe.steps if recipe.steps else (time.monotonic() - started) / (60 * recipe.minutes)

    while (part := done()) < 1:
        # Warm-up, flat, then linear to nothing.
        rate = recipe.lr * min(1.0, (step + 1) / 200) * min(1.0, (1 - part) / 0.6 + 0.01)
        for group in optimizer.param_groups:
            group["lr"] = rate
        ids = batch(recipe.batch, documents, weights, recipe.repeats)
        with torch.autocast("cpu", torch.bfloat16, enabled=has_bfloat16):
            logits = model(ids, use_cache=False).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(logits.float().reshape(-1, VOCABULARY), ids[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        running = loss.item() if running is None else 0.98 * running + 0.02 * loss.item()
        step += 1
        if step % 100 == 0:
            print(
                f"step {step}: {step * recipe.batch * recipe.trained_length / 1e6:.2f}M tokens, loss {running:.4f}, "
                f"{time.monotonic() - started:.0f} s",
                flush=True,
            )

    model = model.to(torch.bfloat16)
    save_file(
        {k: v for k, v in model.state_dict().items() if k != "lm_head.weight"},
        model_dir / "model.safetensors",
        metadata={"format": "pt"},
    )
    model = model.float().eval()
    with torch.no_grad():
        ids = batch(128, [torch.tensor(d) for d in held_out], [1] * len(held_out))
        logits = model(ids).logits[:, :-1]
        last = recipe.trained_length // 2
        tail = torch.nn.functional.cross_entropy(logits[:, -last:].reshape(-1, VOCABULARY), ids[:, -last:].reshape(-1))
    print(f"held-out perplexity of the last {last} of {recipe.trained_length} tokens: {math.exp(tail):.2f}")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Measure what ropetool promises about speed, each time beside the plain thing that it is compared with.

Both sides of a ratio run in turn within one run, five times each; the table has medians. Programs that take ten times as
long run once. Needs the extra `verify`, two cores to itself and 7 GB of disk for a moment. llama.cpp's converter takes
part where ROPETOOL_LLAMA_CPP names a folder with it and ROPETOOL_REAL_FILES one with tokenizers/llama-bpe, that of Llama 3,
since it converts published tokenizers alone.

    scripts/benchmarks/bench.py                      print a Markdown table
    scripts/benchmarks/bench.py --folder /mnt/disk   make the large files there instead of in the system's temporary folder
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

ROUNDS = 5
SHARDS, SHARD_BYTES = 4, 1 << 29
LENGTHS = (256, 512, 1024, 2048)
SEGMENTS = 32
DEMO = Path(__file__).resolve().parents[2] / "ropetool" / "demo" / "model"
ROPETOOL = [sys.executable, "-m", "ropetool"]
VERIFY_INTO = ("sh", "-c", 'output=$1; shift; "$@" > "$output" || test $? -le 3', "sh")  # whatever its verdict
SUITE_BUDGETS = {"quick": "-", "standard": "180 s"}
EXPORT = [*ROPETOOL, "export", "--no-check"]
HEAVY = ("numpy", "torch", "transformers", "gguf")
VOCABULARY = 150_000
LONG_TOKENS, LONG_VOCABULARY = 32768, 128_256
SCORE_LONG = """
import sys
from pathlib import Path
from ropetool.verification.runners.torch_runner import TorchRunner
length = int(sys.argv[2])
TorchRunner(Path(sys.argv[1]), device="cpu").score([[i % 2000 for i in range(length)]], length - 1)
"""
READ_TOKENIZER = """
import json, sys
from pathlib import Path
from ropetool.gguf_model.tokenizer import tokenizer_values
source = Path(sys.argv[1])
config = json.loads((source / "config.json").read_text())
tokenizer_values(source, config, config["vocab_size"])
"""
CONVERTER = Path(os.environ.get("ROPETOOL_LLAMA_CPP", "nowhere"), "convert_hf_to_gguf.py")
TOKENIZER = Path(os.environ.get("ROPETOOL_REAL_FILES", "nowhere"), "tokenizers", "llama-bpe")
TOOLS = Path(sys.executable).parent  # where the gguf package puts its commands
# A small process of its own, because a child's peak counts that of the process that it was forked from.
MEASURE = """
import resource, subprocess, sys, time
start = time.perf_counter()
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
print(time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def run(*command: str | Path) -> None:
    subprocess.run([str(part) for part in command], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def measured(*command: str | Path, env: Mapping[str, str] | None = None) -> tuple[float, float]:
    """Return the seconds that a command takes, and the MB that it or a child of it held at most."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, *(str(part) for part in command)],
        check=True, capture_output=True, text=True, env={**os.environ, **(env or {})},
    )  # fmt: skip
    spent, kilobytes = done.stdout.split()
    return float(spent), int(kilobytes) * 1024 / 1e6


def in_turn(*sides: Callable[[], float]) -> list[float]:
    """Return the median seconds of each side, the sides taking turns after a round that does not count."""
    rounds = [[side() for side in sides] for _ in range(ROUNDS + 1)][1:]
    return [statistics.median(times) for times in zip(*rounds, strict=True)]


# --- --help


def help_row() -> list[str]:
    """Return the row of `ropetool --help`, beside an interpreter that does nothing."""
    code = (
        "import sys, ropetool.cli\n"
        "try: ropetool.cli.main(['--help'])\n"
        f"except SystemExit: sys.exit(bool({set(HEAVY)} & set(sys.modules)))"
    )
    run(sys.executable, "-c", code)  # fails if the help loads a heavy package
    ours, bare = in_turn(
        lambda: seconds(lambda: run(*ROPETOOL, "--help")), lambda: seconds(lambda: run(sys.executable, "-c", "pass"))
    )
    return ["`ropetool --help`", f"{ours:.3f} s, no numpy", f"python -c pass: {bare:.3f} s", "-", "0.15 s, no numpy"]


# --- extend


def make_checkpoint(folder: Path) -> Path:
    """Return a Llama directory of 2 GiB in four shards, with real bytes."""
    source = folder / "model"
    source.mkdir()
    shutil.copy(DEMO / "config.json", source)
    block = np.random.default_rng(0).bytes(1 << 24)
    weight_map = {}
    for number in range(1, SHARDS + 1):
        name = f"model-{number:05}-of-{SHARDS:05}.safetensors"
        entry = {f"weight.{number}": {"dtype": "U8", "shape": [SHARD_BYTES], "data_offsets": [0, SHARD_BYTES]}}
        header = json.dumps(entry).encode()
        with (source / name).open("wb") as file:
            file.write(len(header).to_bytes(8, "little") + header)
            for _ in range(SHARD_BYTES // len(block)):
                file.write(block)
        weight_map[f"weight.{number}"] = name
    (source / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    os.sync()
    return source


def extend_rows(folder: Path) -> list[list[str]]:
    """Return the rows of extend: with links, and with --copy beside cp."""
    source = make_checkpoint(folder)
    target = folder / "output"

    def timed(work: Callable[[], None]) -> float:
        spent = seconds(work)
        shutil.rmtree(target)
        os.sync()  # what one side left unwritten is not the other's to write
        return spent

    def extend(*options: str) -> Callable[[], float]:
        command = (*ROPETOOL, "extend", source, "--method", "yarn", "--factor", "8", "-o", target, *options)
        return lambda: timed(lambda: run(*command))

    def copied() -> None:
        run("cp", "-r", "--reflink=never", source, target)
        run("sync", *target.iterdir())

    linked, whole, plain = in_turn(extend(), extend("--copy"), lambda: timed(copied))
    shutil.rmtree(source)
    size = f"{SHARDS * SHARD_BYTES / 2**30:g} GiB, {SHARDS} shards"
    return [
        [f"`extend`, {size}, links", f"{linked:.2f} s", "-", "-", "0.5 s"],
        [f"`extend --copy`, {size}", f"{whole:.2f} s", f"cp --reflink=never, sync: {plain:.2f} s", f"{whole / plain:.2f}", "-"],
    ]  # fmt: skip


# --- GGUF


def make_gguf(path: Path, nbytes: int = SHARDS * SHARD_BYTES, *, sparse: bool = False) -> Path:
    """Write a llama file with so many bytes of tensors and a large vocabulary, and return its path.

    sparse: the tensors are zeros that take no room on the disk.
    """
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(SHARDS)
    writer.add_context_length(4096)
    writer.add_embedding_length(4096)
    writer.add_head_count(32)
    writer.add_rope_dimension_count(128)
    writer.add_rope_freq_base(10000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"token{number}" for number in range(VOCABULARY)])
    writer.add_token_types([1] * VOCABULARY)
    writer.add_token_merges([f"token{number} token{number + 1}" for number in range(VOCABULARY - 1)])
    rows = nbytes // SHARDS // 4 // 4096
    for number in range(SHARDS):
        writer.add_tensor_info(f"blk.{number}.ffn_up.weight", (rows, 4096), np.dtype(np.float32), rows * 4 * 4096)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    (file,) = writer.fout
    file.write(bytes(-file.tell() % gguf.GGUF_DEFAULT_ALIGNMENT))
    if sparse:
        file.truncate(file.tell() + SHARDS * rows * 4 * 4096)
    else:
        for part in repeated(np.random.default_rng(0).bytes(1 << 24), SHARDS * rows * 4 * 4096):
            file.write(part)
    writer.close()
    os.sync()
    return path


def repeated(block: bytes, size: int) -> Iterator[bytes]:
    """Yield the block again and again, `size` bytes in all."""
    yield from (block for _ in range(size // len(block)))
    yield block[: size % len(block)]


class Peaks:
    """Times commands whose output goes into one folder, which is emptied after each, and keeps their highest peak."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.peak = folder, 0.0

    def timed(self, *command: str | Path, env: Mapping[str, str] | None = None) -> float:
        """Return the seconds that the command takes until its output is on the disk."""
        self.folder.mkdir()
        spent, peak = measured("sh", "-c", '"$@" && sync "$0"/*', self.folder, *command, env=env)
        self.peak = max(self.peak, peak)
        shutil.rmtree(self.folder)
        os.sync()  # what one side left unwritten is not the other's to write
        return spent


def gguf_rows(folder: Path) -> list[list[str]]:
    """Return the rows of a large GGUF file: looked at, and copied with other rope keys."""
    source, output = make_gguf(folder / "model.gguf"), folder / "output"
    looked = [measured(*ROPETOOL, "inspect", source) for _ in range(ROUNDS + 1)][1:]
    spent, peak = (statistics.median(figures) for figures in zip(*looked, strict=True))
    dump_spent, dump_peak = measured(TOOLS / "gguf-dump", source)

    ours, others, target = Peaks(output), Peaks(output), output / "model.gguf"
    extended, plain = in_turn(
        lambda: ours.timed(*ROPETOOL, "extend", source, "--method", "yarn", "--factor", "4", "-o", target),
        lambda: Peaks(output).timed("cp", "--reflink=never", source, target),
    )
    renamed = others.timed(TOOLS / "gguf-new-metadata", "--general-name", "renamed", source, target)
    source.unlink()
    size = f"{SHARDS * SHARD_BYTES / 2**30:g} GiB"
    return [
        [
            f"`inspect` of a GGUF, {VOCABULARY} tokens", f"{spent:.2f} s, {peak:.0f} MB",
            f"gguf-dump: {dump_spent:.1f} s, {dump_peak:.0f} MB", "-", "0.5 s, 80 MB",
        ],
        [
            f"`extend` of a GGUF, {size}", f"{extended:.2f} s, {ours.peak:.0f} MB",
            f"cp --reflink=never, sync: {plain:.2f} s", f"{extended / plain:.2f}", "1.1, 80 MB",
        ],
        ["the same", "-", f"gguf-new-metadata, sync: {renamed:.1f} s, {others.peak:.0f} MB", "-", "-"],
    ]  # fmt: skip


# --- export


def make_llama(source: Path) -> Path:
    """Write a Llama of 1.2 billion parameters in bfloat16 with a tokenizer, and return its directory."""
    tokenizer = TOKENIZER if TOKENIZER.is_dir() else DEMO
    source.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(tokenizer / name, source / name)
    config = json.loads((DEMO / "config.json").read_text())
    del config["torch_dtype"]
    tokens = json.loads((source / "tokenizer.json").read_text())
    rows = 1 + max(*tokens["model"]["vocab"].values(), *(token["id"] for token in tokens["added_tokens"]))
    config |= {
        "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 64, "vocab_size": rows,
        "tie_word_embeddings": True, "dtype": "bfloat16",
    }  # fmt: skip
    (source / "config.json").write_text(json.dumps(config))
    at, header = 0, {}
    for name, shape in llama_shapes(config):
        nbytes = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + nbytes]}
        at += nbytes
    numbers = np.random.default_rng(0).standard_normal(1 << 22, np.float32)
    block = (numbers.view(np.uint32) >> 16).astype("<u2").tobytes()  # bfloat16 is the upper half
    text = json.dumps(header).encode()
    with (source / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for part in repeated(block, at):
            file.write(part)
    os.sync()
    return source


def llama_shapes(config: Mapping[str, int]) -> Iterator[tuple[str, list[int]]]:
    """Yield the name and the shape of every tensor of a Llama with a tied embedding."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    yield "model.embed_tokens.weight", [config["vocab_size"], hidden]
    for layer in range(config["num_hidden_layers"]):
        inside = f"model.layers.{layer}"
        yield from ((f"{inside}.self_attn.{name}_proj.weight", [hidden, hidden]) for name in "qo")
        yield from ((f"{inside}.self_attn.{name}_proj.weight", [keys, hidden]) for name in "kv")
        yield from ((f"{inside}.mlp.{name}_proj.weight", [inner, hidden]) for name in ("gate", "up"))
        yield f"{inside}.mlp.down_proj.weight", [hidden, inner]
        yield from ((f"{inside}.{name}_layernorm.weight", [hidden]) for name in ("input", "post_attention"))
    yield "model.norm.weight", [hidden]


def export_rows(folder: Path) -> list[list[str]]:
    """Return the rows of export: beside cp of the weights, and beside the stock converter where it is."""
    source, output = make_llama(folder / "llama"), folder / "output"
    weights, target = source / "model.safetensors", output / "model.gguf"
    ours = Peaks(output)
    exported, plain = in_turn(
        lambda: ours.timed(*EXPORT, source, "--outtype", "bf16", "-o", target),
        lambda: Peaks(output).timed("cp", "--reflink=never", weights, target),
    )
    row = [
        f"`export --outtype bf16`, {weights.stat().st_size / 2**30:.1f} GiB", f"{exported:.2f} s, {ours.peak:.0f} MB",
        f"cp --reflink=never, sync: {plain:.2f} s", f"{exported / plain:.2f}", "1.3, 600 MB",
    ]  # fmt: skip
    (read,) = in_turn(lambda: seconds(lambda: run(sys.executable, "-c", READ_TOKENIZER, source)))
    tokens = json.loads((source / "config.json").read_text())["vocab_size"]
    row_of_tokens = [f"`export`, its tokenizer alone, {tokens} tokens", f"{read:.2f} s", "-", "-", "3 s"]
    return [row, row_of_tokens, *(converter_rows(source, output) if CONVERTER.is_file() and TOKENIZER.is_dir() else [])]


def converter_rows(source: Path, output: Path) -> list[list[str]]:
    """Return the rows beside llama.cpp's converter, which runs once for each type."""
    modules = output.with_name("modules")
    modules.mkdir()
    (modules / "sentencepiece.py").write_text("SentencePieceProcessor = None\n")  # imported, and not used here
    env = {"PYTHONPATH": str(modules), "HF_HUB_OFFLINE": "1"}
    budgets = {"bf16": 0.5, "f16": 0.6, "q8_0": 0.4}
    return [converter_row(source, output, env, outtype, budget) for outtype, budget in budgets.items()]


def converter_row(source: Path, output: Path, env: Mapping[str, str], outtype: str, budget: float) -> list[str]:
    """Return the row of one type."""
    file, ours, stock = output / "model.gguf", Peaks(output), Peaks(output)
    (exported,) = in_turn(lambda: ours.timed(*EXPORT, source, "--outtype", outtype, "-o", file))
    spent = stock.timed(sys.executable, CONVERTER, source, "--outtype", outtype, "--outfile", file, env=env)
    return [
        f"`export --outtype {outtype}`, the same", f"{exported:.2f} s, {ours.peak:.0f} MB",
        f"convert_hf_to_gguf.py, sync: {spent:.1f} s, {stock.peak:.0f} MB", f"{exported / spent:.2f}",
        f"{budget}, 600 MB",
    ]  # fmt: skip


def import_row(folder: Path) -> list[str]:
    """Return the row of an import of the Llama's q8_0 file, beside cp of what it writes."""
    file, once, output = folder / "llama.gguf", folder / "imported", folder / "output"
    run(*EXPORT, folder / "llama", "--outtype", "q8_0", "-o", file)
    run(*ROPETOOL, "import", "--no-check", file, "-o", once)
    weights, ours = once / "model.safetensors", Peaks(output)
    imported, plain = in_turn(
        lambda: ours.timed(*ROPETOOL, "import", "--no-check", file, "-o", output / "model"),
        lambda: Peaks(output).timed("cp", "--reflink=never", weights, output / "model.safetensors"),
    )
    return [
        f"`import` of q8_0, to {weights.stat().st_size / 2**30:.1f} GiB", f"{imported:.2f} s, {ours.peak:.0f} MB",
        f"cp --reflink=never, sync: {plain:.2f} s", f"{imported / plain:.2f}", "4, 600 MB",
    ]  # fmt: skip


# --- bake

REWRITE = """
import sys, torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16)
for layer in model.model.layers:
    layer.self_attn.k_proj.weight.data.mul_(1.138629 ** 2)
model.save_pretrained(sys.argv[2], max_shard_size="512MB")
"""


def bake_rows(folder: Path) -> list[list[str]]:
    """Return the rows of a bake into every layer's keys, beside transformers loading, scaling and saving the same."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=32000, hidden_size=2048, intermediate_size=5632, num_hidden_layers=22, num_attention_heads=32,
        num_key_value_heads=4, max_position_embeddings=2048,
    )  # fmt: skip
    source, extended, output = folder / "plain", folder / "asks", folder / "baked"
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    model = model.to(torch.bfloat16).to_empty(device="cpu")
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.02)
    model.save_pretrained(source, max_shard_size="512MB")
    del model
    run(*ROPETOOL, "extend", source, "--method", "yarn", "--factor", "4", "-o", extended)
    ours, stock = Peaks(output), Peaks(output)
    shards = list(source.glob("*.safetensors"))
    baked, rewritten = in_turn(
        lambda: ours.timed(*ROPETOOL, "bake", extended, "attention-factor", "-o", output / "model"),
        lambda: stock.timed(sys.executable, "-c", REWRITE, extended, output / "model"),
    )
    nbytes = sum(path.stat().st_size for path in shards)
    return [[
        f"`bake attention-factor`, {nbytes / 2**30:.1f} GiB, {len(shards)} shards, all touched",
        f"{baked:.2f} s, {ours.peak:.0f} MB", f"transformers, load and save: {rewritten:.2f} s, {stock.peak:.0f} MB",
        f"{baked / rewritten:.2f}", "500 MB and the largest tensor",
    ]]  # fmt: skip


# --- verify


def verify_row() -> list[str]:
    """Return the row of verify's losses, beside a forward pass over the same batches that keeps the same logits."""
    import torch
    from transformers import AutoModelForCausalLM

    from ropetool.verification.measures.segments import choose_segments, scored_tokens
    from ropetool.verification.runners.torch_runner import TorchRunner
    from ropetool.verification.texts import embedded_documents

    runner = TorchRunner(DEMO, device="cpu", dtype="float32")
    tokens = [runner.tokenize(document.text) for document in embedded_documents()]
    scored = scored_tokens(LENGTHS[0], LENGTHS)
    chosen = choose_segments([len(ids) for ids in tokens], LENGTHS, scored, SEGMENTS, 0, len(runner.prefix))
    rows = {
        length: [[*runner.prefix, *tokens[s.document][s.end - length + len(runner.prefix) : s.end]] for s in segments]
        for length, segments in chosen.items()
    }
    sizes: dict[int, list[int]] = {length: [] for length in rows}
    for length in rows:
        runner.score(rows[length], scored, sizes[length].append)  # loads the model, and tells the batches
    model: Any = AutoModelForCausalLM.from_pretrained(DEMO, dtype=torch.float32).eval()

    def ours() -> None:
        for length in rows:
            runner.score(rows[length], scored)

    def bare() -> None:
        with torch.inference_mode():
            for length, batches in sizes.items():
                ids = torch.tensor(rows[length])
                for batch in ids.split([size // length for size in batches]):
                    model(input_ids=batch, use_cache=False, logits_to_keep=scored + 1)

    spent, plain = in_turn(lambda: seconds(ours), lambda: seconds(bare))
    count = sum(len(of_length) * length for length, of_length in rows.items())
    return [
        f"`verify`, {count} tokens, demo model", f"{count / spent:.0f} tokens/s", f"forward pass: {count / plain:.0f} tokens/s",
        f"{plain / spent:.2f}", "at least 0.95",
    ]  # fmt: skip


def long_row(folder: Path) -> list[str]:
    """Return the row of one long text scored in full by a model with a large vocabulary; its logits are 17 GB."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=LONG_VOCABULARY, hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=LONG_TOKENS,
    )  # fmt: skip
    model = folder / "long"
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(model)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(DEMO / name, model)
    spent, peak = measured(sys.executable, "-c", SCORE_LONG, model, str(LONG_TOKENS))
    bare, plain = measured(sys.executable, "-c", SCORE_LONG, model, "256")
    whole = LONG_TOKENS * LONG_VOCABULARY * 4 / 1e6
    return [
        f"`verify`, {LONG_TOKENS} tokens scored, vocabulary {LONG_VOCABULARY}", f"{spent:.0f} s, {peak:.0f} MB",
        f"256 tokens: {bare:.0f} s, {plain:.0f} MB; all logits in float32: {whole:.0f} MB", f"{peak / plain:.2f}",
        "never context x vocabulary",
    ]  # fmt: skip


def suite_rows(folder: Path) -> list[list[str]]:
    """Return the rows of two suites on the demo checkpoint extended eight times, the whole command, whatever its verdict."""
    judged = (*VERIFY_INTO, folder / "result.json", *ROPETOOL, "verify", folder / "extended", "--grade", "research")
    rows = []
    for suite, budget in SUITE_BUDGETS.items():
        spent, peak = measured(*judged, "--suite", suite)
        rows.append([f"`verify`, {suite} suite, demo pair", f"{spent:.0f} s, {peak:.0f} MB", "-", "-", budget])
    return rows


def verdict_rows(folder: Path) -> list[list[str]]:
    """Return the rows of a default verification: seconds to the verdict, which stands beside them with its texts."""
    for factor, name in (("8", "extended"), ("2", "twice")):
        run(*ROPETOOL, "extend", DEMO, "--method", "yarn", "--factor", factor, "-o", folder / name)
    only_states(folder / "stated")
    rows = []
    for work, name in (("yarn 2x", "twice"), ("yarn 8x", "extended"), ("as it is, states 8x", "stated")):
        output = folder / "result.json"
        trained = () if name != "stated" else ("--trained-length", "256")
        spent, peak = measured(*VERIFY_INTO, output, *ROPETOOL, "verify", folder / name, *trained, "--json")
        answers = json.loads(output.read_text())["answers"]
        verdict = f"{answers['verdict']} after {len(answers['texts'])} texts"
        rows.append([f"`verify`, demo {work}", f"{spent:.0f} s, {peak:.0f} MB", verdict, "-", "600 s"])
    return rows


def only_states(output: Path) -> None:
    """Write the demo checkpoint with eight times its context stated, and nothing done for it."""
    shutil.copytree(DEMO, output)
    config = json.loads((output / "config.json").read_text())
    config["max_position_embeddings"] *= 8
    (output / "config.json").write_text(json.dumps(config))


# --- the table


def machine() -> str:
    """Return the machine and the versions in one line."""
    found = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if "model name" in line
    ]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    packages = ", ".join(f"{name} {version(name)}" for name in ("numpy", "torch", "transformers"))
    cpu = found[0] if found else platform.machine()
    return f"{len(os.sched_getaffinity(0))} cores ({cpu}), {memory:.0f} GiB, Linux; Python {platform.python_version()}, {packages}"


def table(rows: Sequence[Sequence[str]]) -> str:
    head = ["work", "ropetool", "compared with", "ratio", "budget"]
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--folder", type=Path, help="where the large files go for a moment")
    folder = parser.parse_args().folder
    rows = [help_row()]
    with tempfile.TemporaryDirectory(prefix="ropetool-bench-", dir=folder) as made:
        rows += extend_rows(Path(made))
        rows += gguf_rows(Path(made))
        rows += export_rows(Path(made))
        rows.append(import_row(Path(made)))
        rows += bake_rows(Path(made))
        rows += [*verdict_rows(Path(made)), *suite_rows(Path(made)), long_row(Path(made))]
    rows.append(verify_row())
    print(f"{machine()}\n\n{table(rows)}")


if __name__ == "__main__":
    main()

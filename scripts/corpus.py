#!/usr/bin/env python3
"""Hash what ropetool plans, writes and prints, over families, methods and formats, into tests/corpus.json.

A cell holds 16 digits of the sha256 of its projection: edits, tables to 12 digits, keys and the bytes of tensors, without
prose, paths, versions and fingerprints; or the class of the error that it is refused with. Of what a command prints with
--json only the keys count that tests/corpus_keys.json lists. A key that is new is listed and makes no cell differ.

    scripts/corpus.py                          compute everything, some minutes; write both files
    scripts/corpus.py --check                  compare with the files; list the cells that differ, exit 1 if there are any
    scripts/corpus.py --only bake/gguf         one group, alone or with --check; the rest stays
    scripts/corpus.py --show KEY               print the projection of a cell as JSON, to compare two checkouts with diff
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / name) for name in ("scripts", "tests", "tests/oracle", "tests/baking", "")]

import bake_gguf_models
import configs
import corpus_commands as commands
import corpus_sources as sources
import corpus_verdicts as verdicts
import gguf_headers
from corpus_cells import Act, bake, canonical, digest, export, extended, output, plan, scratch
from variants import LISTS, VARIANTS

from ropetool import families
from ropetool.errors import RopetoolError
from ropetool.families.wrappers import ALIASES, WRAPPERS
from ropetool.runtimes.llama_cpp import architectures as archs

RESULT, KEYS = ROOT / "tests" / "corpus.json", ROOT / "tests" / "corpus_keys.json"
Write = Callable[[Path], Path]  # of a source into a scratch folder, unless it is there
Cell = tuple[Write, Act]
Cells = Iterator[tuple[str, Write, Act]]

# The v5 style says the same by other keys; what mlx-lm, exllamav3 and transformers 4.57 make of it is mostly a refusal.
IN_V5 = ("linear", "yarn", "llama3", "dynamic", "longrope")
FOR_V5 = ("vllm, sglang", "llama.cpp")
RUNTIMES = {
    "transformers, transformers-v4": ("transformers", "transformers-v4"), "vllm, sglang": ("vllm", "sglang"),
    "mlx-lm": ("mlx-lm",), "llama.cpp": ("llama.cpp",), "exllamav3": ("exllamav3",),
}  # fmt: skip
MUTE, STILL = {"pairs": LISTS, "mode": "mute"}, {"pairs": LISTS, "mode": "still"}
# By cell: the bake, its options, and the form of the weights.
HF_BAKES: dict[str, tuple[str, dict[str, Any], str]] = {
    "attention-factor k": ("attention-factor", {"side": "k"}, "F32"),
    "attention-factor both": ("attention-factor", {"side": "both"}, "F32"),
    "attention-factor q, bf16": ("attention-factor", {"side": "q"}, "BF16"),
    "attention-factor k, bf16 to f32": ("attention-factor", {"side": "k", "bake_dtype": "f32"}, "BF16"),
    "attention-factor, config": ("attention-factor", {"config_only": True}, "F32"),
    "attention-factor k, fp8": ("attention-factor", {"side": "k"}, "FP8"),
    "softmax-scale": ("softmax-scale", {}, "F32"),
    "softmax-scale k": ("softmax-scale", {"side": "k"}, "F32"),
    "softmax-scale q, fp8": ("softmax-scale", {"side": "q"}, "FP8"),
    "pair-gain": ("pair-gain", {"gains": LISTS}, "F32"),
    "score": ("score", {"multiplier": 1.3}, "BF16"),
    "layout": ("layout", {"to": LISTS}, "BF16"),
    "drop-pairs mute": ("drop-pairs", MUTE, "F32"),
    "drop-pairs still": ("drop-pairs", STILL, "F32"),
}
MLA = ("deepseek_v2", "deepseek_v3", "deepseek_v32", "minicpm3", "mistral4")
TAKEN_BY = {  # the families that take a bake which the others refuse, and one of those
    "attention-factor, config": ("granite", "llama"), "attention-factor k, fp8": ("deepseek_v3",),
    "softmax-scale": (*MLA, "llama"), "softmax-scale k": (*MLA, "llama"), "softmax-scale q, fp8": ("deepseek_v3",),
    "layout": ("deepseek_v3", "mistral4", "llama"), "drop-pairs still": ("llama", "stablelm"),
}  # fmt: skip
GGUF_BAKES: dict[str, tuple[str, dict[str, Any], str]] = {
    "attention-factor k": ("attention-factor", {"side": "k"}, "F32"),
    "attention-factor q, q8_0": ("attention-factor", {"side": "q"}, "Q8_0"),
    "attention-factor k, q4_0": ("attention-factor", {"side": "k"}, "Q4_0"),
    "attention-factor k, bf16 to f32": ("attention-factor", {"side": "k", "bake_dtype": "f32"}, "BF16"),
    "shift-safe": ("shift-safe", {}, "F32"),
    "softmax-scale": ("softmax-scale", {}, "F32"),
    "pair-gain": ("pair-gain", {"gains": LISTS}, "F32"),
    "score": ("score", {"multiplier": 1.3}, "F32"),
    "layout": ("layout", {"to": LISTS}, "F32"),
    "rearch": ("rearch", {"to": "llama"}, "F32"),
    "drop-pairs mute": ("drop-pairs", MUTE, "F32"),
    "drop-pairs still": ("drop-pairs", STILL, "F32"),
}
OUTTYPES = ("f32", "bf16", "q8_0")
# By model and cell: the form of the weights and the options; what ends in yarn is extended first.
MORE_EXPORTS: dict[str, dict[str, tuple[str, dict[str, Any]]]] = {
    "llama": {
        "auto of bf16": ("BF16", {}), "q4_0": ("F32", {"outtype": "q4_0"}),
        "f16 in parts, yarn": ("F32", {"outtype": "f16", "split_max_tensors": 9}),
        "shift-safe, yarn": ("F32", {"outtype": "f32", "shift_safe": True}),
    },
    "qwen2": {"as llama, yarn": ("F32", {"outtype": "f32", "rearch": "llama"})},
    "deepseek_v3": {"auto of fp8": ("FP8", {})},
    "gpt_oss": {"auto of mxfp4": ("MXFP4", {}), "f32 of mxfp4": ("MXFP4", {"outtype": "f32"})},
}  # fmt: skip
WRITTEN_BY_ALL = ("llama", "qwen2", "gemma3", "deepseek2", "grok", "phi3")
MODELS = sources.models("bake")


# --- the groups


def hf_plans() -> Cells:
    """Return plans for configs without weights: both styles, every method, sets of runtimes, scaled sources, wrappers."""
    for family, style in itertools.product((*configs.FAMILIES, *configs.MORE_FAMILIES), ("v4", "v5")):
        config, name = configs.config(family, style), f"{family}/{style}"
        source = checkpoint(config)
        for method in VARIANTS if style == "v4" else IN_V5:
            yield f"{name}/{method}/default", source, plan(method)
        for label in RUNTIMES if style == "v4" else FOR_V5:
            yield f"{name}/yarn/{label}", source, plan("yarn", for_runtimes=RUNTIMES[label])
        yield f"{name}/yarn, both styles/default", source, plan("yarn", config_style="both")
        yield from scaled(name, sources.scaled(config))
    for name in ("gemma3", "mistral4"):
        yield from scaled(f"{name}/v5", MODELS[name][0])
    for name, wrapper in WRAPPERS.items():
        text = wrapper.default if wrapper.default in families.baked() else "llama"
        inner = {"head_dim": 32, **configs.config(text, "v4" if wrapper.in_v4 else "v5")}
        yield f"{name}/wrapper/yarn/default", checkpoint({"model_type": name, wrapper.text: inner}), plan("yarn")
    for name, family in ALIASES.items():
        yield (
            f"{name}/alias/yarn/default",
            checkpoint({**configs.config(family, "v4"), "model_type": name}),
            plan("yarn"),
        )


def scaled(name: str, config: dict[str, Any]) -> Cells:
    source, trained = checkpoint(config), sources.TRAINED
    yield (
        f"{name}, scaled/yarn from original/default",
        source,
        plan("yarn", reading="original", original_length=trained),
    )
    yield f"{name}, scaled/linear from current/default", source, plan("linear", reading="current")


def hf_outputs() -> Cells:
    """Return whole outputs of every family."""
    for name, (config, shapes) in MODELS.items():
        plain = sources.unscaled(config)
        yield f"{name}/v5/yarn", checkpoint(plain, shapes, "BF16"), output("yarn")
        yield f"{name}/v4/linear", checkpoint(sources.v4(plain), shapes, "BF16", indent=4), output("linear")
    for name in ("llama", "gemma3", "deepseek_v3", "mistral4"):
        scaled = checkpoint(*MODELS[name], "BF16")
        again = output("yarn", reading="original", attention_factor=1.2, for_runtimes=("transformers", "vllm"))
        yield f"{name}/v5, scaled/yarn, factor in the weights", scaled, again


def hf_bakes() -> Cells:
    """Return the bakes of every family."""
    for (name, (config, shapes)), (cell, (what, options, form)) in itertools.product(MODELS.items(), HF_BAKES.items()):
        if name.partition("-")[0] in TAKEN_BY.get(cell, (name.partition("-")[0],)):
            asked = sources.without_multiplier(config) if what == "attention-factor" else config
            asked = sources.unscaled(config) if options == STILL else asked
            yield f"{name}/{cell}", checkpoint(asked, shapes, form), bake(what, options)


def exports() -> Cells:
    """Return GGUF files of every exported family in three types, as it is and extended, and more of some."""
    for name, (config, shapes) in sources.models("export").items():
        source = checkpoint(config, shapes)
        for outtype in OUTTYPES:
            yield f"{name}/{outtype}", source, export({"outtype": outtype})
            yield f"{name}/{outtype}, yarn", longer(source), export({"outtype": outtype})
        for cell, (form, options) in MORE_EXPORTS.get(name, {}).items():
            of_form = checkpoint(config, shapes, form)
            yield f"{name}/{cell}", longer(of_form) if cell.endswith("yarn") else of_form, export(options)


def gguf_plans() -> Cells:
    """Return plans for headers of every architecture that llama.cpp rotates."""
    for arch, method in itertools.product(archs.names(), VARIANTS):
        yield f"{arch}/{method}", header(arch), plan(method)


def gguf_outputs() -> Cells:
    """Return the keys and vectors that are written: every architecture, and every method for those that tell most."""
    for arch, method in itertools.product(archs.names(), VARIANTS):
        if method in ("linear", "yarn") or arch in WRITTEN_BY_ALL:
            yield f"{arch}/{method}", header(arch), output(method)
    yield "llama in parts/llama3", gguf_model("llama", {}, "Q8_0", shards=3), output("llama3")


def gguf_bakes() -> Cells:
    """Return the bakes of every architecture that is baked."""
    for arch in bake_gguf_models.ARCHITECTURES:
        for cell, (what, options, dtype) in GGUF_BAKES.items():
            yield f"{arch}/{cell}", gguf_model(arch, None, dtype), bake(what, options)


def headers() -> dict[str, Write]:
    """Return a file of keys for each architecture that llama.cpp rotates."""
    return {arch: header(arch) for arch in archs.names()}


def models() -> dict[str, Write]:
    """Return a checkpoint with weights of each family that is exported."""
    return {name: checkpoint(*model) for name, model in sources.models("export").items()}


GROUPS: dict[str, Callable[[], Cells]] = {
    "plan/hf": hf_plans, "output/hf": hf_outputs, "bake/hf": hf_bakes, "export": exports, "plan/gguf": gguf_plans,
    "output/gguf": gguf_outputs, "bake/gguf": gguf_bakes,
    "inspect": lambda: commands.inspected(headers(), models()), "advise": lambda: commands.advised(headers(), models()),
    "doctor": lambda: commands.examined(headers(), models()), "diff": lambda: commands.compared(headers(), models()),
    "import": lambda: commands.imported(models()), "gguf": commands.edited, "in place": commands.in_place,
    "verify": verdicts.verified, "compare": verdicts.chosen, "export checks": verdicts.judged,
}  # fmt: skip


def checkpoint(
    config: dict[str, Any], shapes: dict[str, list[int]] | None = None, form: str = "F32", **more: Any
) -> Write:
    return lambda folder: sources.write(folder, config, shapes or {}, form, **more)


def longer(source: Write) -> Write:
    return lambda folder: extended(source(folder))


def header(arch: str) -> Write:
    def write(folder: Path) -> Path:
        path = folder / f"{arch}.gguf"
        return path if path.exists() else gguf_headers.write(path, arch)

    return write


weights = cache(bake_gguf_models.weights)  # which draws numbers, and only the shapes count here


def gguf_model(arch: str, keys: dict[str, Any] | None, dtype: str, shards: int = 1) -> Write:
    def write(folder: Path) -> Path:
        place = folder / f"{arch}-{dtype}-{shards}"
        if not place.exists():
            place.mkdir()
            tensors = {n: sources.numbers(n, old.shape) for n, old in weights(arch).items()}
            with mock.patch.object(bake_gguf_models, "weights", weights):
                bake_gguf_models.write(place / "m.gguf", arch, keys, dtype=dtype, tensors=tensors, shards=shards)
        return min(place.iterdir())

    return write


# --- the file


def cells(groups: Sequence[str]) -> dict[str, Cell]:
    """Return the cells of these groups by key."""
    return {f"{group}/{name}": (write, act) for group in groups for name, write, act in GROUPS[group]()}


def projection(cell: Cell, folder: Path, words: bool = False) -> Any:
    """Return what a cell comes to as plain data, or as text the class of its refusal; words: with the message."""
    write, act = cell
    try:
        return canonical(act(write(folder), folder))
    except RopetoolError as error:
        return f"refused: {type(error).__name__}" + (f": {error.message}" if words else "")


def values(
    wanted: Mapping[str, Cell], keys: commands.Keys | None = None, sources: Path | None = None
) -> dict[str, str]:
    """Return the value of each of these cells.

    keys: which printed keys count; those of the file by default.
    sources: a folder that keeps the sources for the cells of other groups; a new one by default.
    """
    keys = commands.Keys(known_keys()) if keys is None else keys
    found = {}
    with scratch(sources) as folder:
        for name, cell in wanted.items():
            made = projection(cell, folder)
            made = made if isinstance(made, str) else keys.counted(group_of(name), made)
            found[name] = made if isinstance(made, str) else digest(json.dumps(made).encode())
    return found


def group_of(key: str) -> str:
    """Return the group of a cell."""
    return next(group for group in GROUPS if key.startswith(f"{group}/"))


def differences(known: dict[str, str], found: dict[str, str]) -> list[str]:
    """Return the keys whose values differ, or that one side lacks."""
    return sorted(key for key in known.keys() | found.keys() if known.get(key) != found.get(key))


def known(groups: Sequence[str]) -> dict[str, str]:
    """Return the committed values of these groups."""
    held: dict[str, str] = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.exists() else {}
    return {key: value for key, value in held.items() if key.startswith(tuple(f"{group}/" for group in groups))}


def known_keys() -> dict[str, list[str]]:
    """Return the committed paths of printed keys by group."""
    held: dict[str, list[str]] = json.loads(KEYS.read_text(encoding="utf-8")) if KEYS.exists() else {}
    return held


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", choices=GROUPS, help="compute this group")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a cell differs")
    parser.add_argument("--show", metavar="KEY", help="print the projection of a cell")
    options = parser.parse_args()
    groups = [options.only] if options.only else list(GROUPS)
    if options.show:
        found = cells(list(GROUPS))
        if options.show not in found:
            parser.error(f"no cell is called {options.show!r}; {RESULT.relative_to(ROOT)} lists them")
        with scratch() as folder:
            print(json.dumps(projection(found[options.show], folder, words=True), indent=1))
        return 0
    keys = commands.Keys(known_keys() if options.check else {})
    found = values(cells(groups), keys)
    if options.check:
        changed = differences(known(groups), found)
        for line in (*changed, *(f"new key, not counted: {key}" for key in keys.new())):
            print(line)
        return 1 if changed else 0
    others = known([group for group in GROUPS if group not in groups])
    _write(RESULT, {**others, **found})
    _write(KEYS, {**known_keys(), **{group: sorted(paths) for group, paths in keys.met.items()}})
    return 0


def _write(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=0, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())

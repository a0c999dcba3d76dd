#!/usr/bin/env python3
"""Read from the sources of vLLM and SGLang which file runs each architecture, and what that file hands to its rotary code.

Writes ropetool/runtimes/vllm_models.json and sglang_models.json, of the architectures that ropetool's families name.

    ROPETOOL_PEERS=FOLDER scripts/engine_files/engine_sources.py           FOLDER as use_peers of scripts/lib.sh fills it
    ROPETOOL_PEERS=FOLDER scripts/engine_files/engine_sources.py --check   exit 1 where the files would change
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from ropetool import families
from ropetool.families import records
from ropetool.runtimes import all_of
from ropetool.runtimes.base import numbers

FOLDER = ROOT / "ropetool" / "runtimes"
MODELS = {"vllm": "vllm/model_executor/models", "sglang": "sglang/srt/models"}
CONFIG = r"(self\.)?(text_|hf_|llm_)?config"
# What a model file hands to get_rope where it is what the config says, and nothing else.
AS_STATED = re.compile(
    rf"{CONFIG}\.rope_(parameters|scaling)(\[[\w.'\"]+\])?|getattr\({CONFIG}, '(rope_parameters|rope_scaling)', None\)"
    rf"|{CONFIG}\.rope_parameters\[self\.layer_type\]|dict\(config\.rope_parameters(\.copy\(\)|\[layer_type\])\)"
    # a base for each layer, of the config's own list: that of rope_parameters where there is none
    r"|\{\*\*config\.rope_parameters, 'rope_theta': rope_theta\}"
)
MLA = re.compile(r"deepseek_yarn|from \.deepseek_v2 import|models\.deepseek_v2 import")
# Those without a file that vLLM's transformers backend was seen to run (scripts/engines/run), in this release; no more is claimed.
BY_BACKEND = (
    "BitNetForCausalLM", "Dots1ForCausalLM", "HeliumForCausalLM", "MinistralForCausalLM", "NanoChatForCausalLM",
    "SolarOpenForCausalLM",
)  # fmt: skip
RUN_IN = "0.32.0"
Facts = dict[str, Any]
# How SGLang's model files treat families, as its own classes were found to (tests/oracle/test_sglang_families.py); what
# the keys mean stands in ropetool/families/engines.py. Of others the scan is no proof, for files treat windows and bases alike
# in many ways.
BY_SGLANG: Mapping[str, Facts] = {
    **{name: {} for name in (
        "OlmoeForCausalLM", "ArceeForCausalLM", "ApertusForCausalLM", "Glm4MoeForCausalLM", "Ernie4_5_MoeForCausalLM",
        "Lfm2ForCausalLM", "HunYuanDenseV1ForCausalLM",
    )},
    "AfmoeForCausalLM": {"window": True},
    **{name: {} for name in (
        "HunYuanMoEV1ForCausalLM", "Lfm2MoeForCausalLM", "LlamaForCausalLM", "MiniMaxM2ForCausalLM",
    )},
    "Gemma3nForCausalLM": {"window": True, "wider_window": True},
    "Glm4MoeLiteForCausalLM": {"formula": "deepseek"},
    "GlmMoeDsaForCausalLM": {"formula": "deepseek"},
    "HYV3ForCausalLM": {"scaling": False},
    "Llama4ForCausalLM": {"whole_base": True, "layout": "half"},  # which turns no rows, unlike its wrapper
    "MellumForCausalLM": {"window": True},
    "GemmaForCausalLM": {"scaling": False},
    "OlmoForCausalLM": {"scaling": False},
    "GraniteMoeForCausalLM": {"scaling": False, "whole_base": True},
}  # fmt: skip
# Wrappers of vLLM whose files say it in a way of their own: as SGLANG_WRAPPERS.
VLLM_WRAPPERS = {
    "Idefics3ForConditionalGeneration": ("LlamaModel", "LlamaForCausalLM"),
    "InternVLForConditionalGeneration": ("init_vllm_registered_model", "*"),
    "SmolVLMForConditionalGeneration": ("LlamaModel", "LlamaForCausalLM"),
}
# A whole model came out otherwise, for a reason that is not found.
UNEXPLAINED = ("GraniteSpeechForConditionalGeneration", "GraniteSpeechPlusForConditionalGeneration")
# SGLang's wrappers: what its file makes of the text model, and the architecture whose layers that are; `*` for the one that
# the text model's own config names.
SGLANG_WRAPPERS = {
    "Qwen2VLForConditionalGeneration": ("Qwen2Model", "Qwen2ForCausalLM"),
    "Qwen2_5_VLForConditionalGeneration": ("Qwen2Model", "Qwen2ForCausalLM"),
    "Qwen3VLForConditionalGeneration": ("Qwen3LLMModel", "Qwen3ForCausalLM"),
    "Qwen3VLMoeForConditionalGeneration": ("Qwen3MoeLLMModel", "Qwen3MoeForCausalLM"),
    "Qwen2AudioForConditionalGeneration": ("Qwen2ForCausalLM", "Qwen2ForCausalLM"),
    "LlavaForConditionalGeneration": ("_get_sgl_model_cls", "*"),
    "Mistral3ForConditionalGeneration": ("LlavaForConditionalGeneration", "*"),
    "VoxtralForConditionalGeneration": ("LlamaForCausalLM", "LlamaForCausalLM"),
    "GlmAsrForConditionalGeneration": ("LlamaForCausalLM", "LlamaForCausalLM"),
    "Llama4ForConditionalGeneration": ("Llama4ForCausalLM", "Llama4ForCausalLM"),
    "Lfm2VlForConditionalGeneration": ("Lfm2ForCausalLM", "Lfm2ForCausalLM"),
    "Gemma3ForConditionalGeneration": ("Gemma3ForCausalLM", "Gemma3ForCausalLM"),
    "Gemma3nForConditionalGeneration": ("Gemma3nTextModel", "Gemma3nForCausalLM"),
    "Glm4vMoeForConditionalGeneration": ("Glm4MoeModel", "Glm4MoeForCausalLM"),
    "KimiVLForConditionalGeneration": ("DeepseekV2ForCausalLM", "DeepseekV2ForCausalLM"),
    "KimiK25ForConditionalGeneration": ("DeepseekV3ForCausalLM", "DeepseekV3ForCausalLM"),
}
# Whose text model is treated otherwise than by itself: the wrapper's file turns the rows of queries and keys.
WITHIN: Mapping[str, Facts] = {"Llama4ForConditionalGeneration": {"whole_base": True, "turns_rows": True}}
TURNS_ROWS = "permute_qk_weight_for_rotary"


class Release:
    """The files of one release of an engine."""

    def __init__(self, engine: str, version: str, folder: Path) -> None:
        self.engine, self.version, self.folder = engine, version, folder
        self.models = folder / MODELS[engine]
        self.files = dict(self._registered())

    def _registered(self) -> Iterator[tuple[str, str]]:
        """Yield the architectures that the release knows, with the module of each."""
        if self.engine == "vllm":
            text = (self.models / "registry.py").read_text(encoding="utf-8")
            yield from re.findall(r'"(\w+)":\s*\(\s*"([\w.]+)",\s*"\w+"', text)
            return
        for path in sorted(self.models.glob("*.py")):
            for node in ast.parse(path.read_text(encoding="utf-8-sig")).body:
                if isinstance(node, ast.Assign) and any(
                    isinstance(t, ast.Name) and t.id == "EntryClass" for t in node.targets
                ):
                    entries = node.value.elts if isinstance(node.value, ast.List) else [node.value]
                    yield from ((entry.id, path.stem) for entry in entries if isinstance(entry, ast.Name))

    def path(self, module: str) -> Path:
        if "." in module:
            found = self.folder / module.replace(".", "/")
            return found if found.is_dir() else found.with_suffix(".py")
        return self.models / f"{module}.py"

    def has_wider_window(self, module: str) -> bool:
        """Return whether the sliding layers of a model file see one token more than the config says."""
        path = self.path(module)
        return path.is_file() and "self.sliding_window = config.sliding_window + 1" in path.read_text(encoding="utf-8")

    def names(self, architecture: str, other: str) -> bool:
        """Return whether the file of an architecture, or that of a class it is made from, has the name of another class."""
        path = self.path(self.files[architecture])
        tree = ast.parse(path.read_text(encoding="utf-8-sig"))
        files = (path, *(self.path(module) for module in _bases(tree, architecture)))
        return any(re.search(rf"\b{other}\b", file.read_text(encoding="utf-8-sig")) for file in files)

    def facts(self, module: str) -> Facts:
        """Return what a model file hands to its rotary code: `reads` and `layout`."""
        calls, deepseek = self._calls(self.path(module), set())
        if deepseek:
            return {"reads": "deepseek"}
        if not calls:
            return {"reads": "nothing that a scan finds"}
        handed = sorted({reads for reads, _ in calls})
        layouts = sorted({layout for _, layout in calls})
        reads = "as stated" if all(AS_STATED.fullmatch(one) for one in handed) else "; ".join(handed)
        layout = layouts[0] if len(layouts) == 1 else "either"
        path = self.path(module)
        text = path.read_text(encoding="utf-8-sig") if path.is_file() else ""
        if "rotary_emb.is_neox_style = False" in text:
            layout += ", then interleaved"
        if TURNS_ROWS in text:
            layout += ", rows turned"
        return {"reads": reads, "layout": layout}

    def _calls(self, path: Path, seen: set[Path]) -> tuple[list[tuple[str, str]], bool]:
        """Return what a file, or those whose layers it takes, hands to get_rope, and whether it follows DeepSeek's."""
        if path in seen:
            return [], False
        seen.add(path)
        found: list[tuple[str, str]] = []
        files = [path] if path.is_file() else sorted(path.rglob("*.py"))
        for file in files:
            text = file.read_text(encoding="utf-8-sig")
            if MLA.search(text) and "get_rope(" not in text.replace("deepseek_yarn", ""):
                return [], True
            tree = ast.parse(text)
            if "deepseek_yarn" in text:
                return [], True
            found += [_call(node, tree) for node in ast.walk(tree) if _is_call(node)]
        found = [one for one in found if "partial_rotary_factor': 0.5" not in one[0]]  # of images
        if found:
            return found, False
        for file in files:
            for module in _imported(ast.parse(file.read_text(encoding="utf-8-sig"))):
                calls, deepseek = self._calls(self.path(module), seen)
                if calls or deepseek:
                    return calls, deepseek
        return [], False

    def text_model(self, module: str, architecture: str) -> str:
        """Return the architecture that a wrapper's class runs its text model as: `*` as that one names; empty for none."""
        path = self.path(module)
        tree = ast.parse(path.read_text(encoding="utf-8-sig")) if path.is_file() else ast.Module([], [])
        classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
        node = classes.get(architecture)
        if node is None:
            return ""
        for each in ast.walk(node):
            if isinstance(each, ast.Call) and ast.unparse(each.func) == "init_vllm_registered_model":
                given = {keyword.arg: ast.unparse(keyword.value) for keyword in each.keywords}
                chosen = re.fullmatch(r"\['(\w+)'\]", given.get("architectures", ""))
                inner = re.search(r"(text|llm|language)_config$", given.get("hf_config", ""))
                return chosen[1] if chosen else "*" if inner and "architectures" not in given else ""
        for each in ast.walk(node):
            if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == "self.language_model":
                name = ast.unparse(each.value.func) if isinstance(each.value, ast.Call) else ""
                bases = [ast.unparse(base) for base in classes[name].bases] if name in classes else []
                unregistered = name if name.endswith("ForCausalLM") else ""
                return next((one for one in (name, *bases) if one in self.files), unregistered)
        for base in map(ast.unparse, node.bases):
            if base in classes:
                return self.text_model(module, base)
            for taken in (one for one in tree.body if isinstance(one, ast.ImportFrom) and one.module):
                real = next((one.name for one in taken.names if base in (one.name, one.asname)), None)
                if real is not None:
                    return self.text_model(str(taken.module).rpartition(".")[2], real)
        return ""


def _is_call(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("get_rope", "get_rope_wrapper")
    )


def _call(node: Any, tree: ast.Module) -> tuple[str, str]:
    """Return what a call of get_rope is handed as rope keys, names followed to what they stand for, and the layout."""
    given = {keyword.arg: keyword.value for keyword in node.keywords}
    keys = given.get("rope_parameters", given.get("rope_scaling"))
    reads = ast.unparse(keys) if keys is not None else "nothing"
    if isinstance(keys, (ast.Name, ast.Attribute)) and not AS_STATED.fullmatch(reads):
        name = keys.id if isinstance(keys, ast.Name) else keys.attr
        values = sorted({ast.unparse(value) for value in _values(tree, name)} - {name, f"self.{name}", "None"})
        stated = values and all(AS_STATED.fullmatch(one) for one in values)
        reads = values[0] if stated else " or ".join(values) or reads
    neox = ast.unparse(given["is_neox_style"]) if "is_neox_style" in given else "True"
    return reads, {"True": "half", "False": "interleaved"}.get(neox, "half" if neox == "is_neox_style" else "either")


def _values(tree: ast.Module, name: str) -> Iterator[ast.expr]:
    """Yield what a file assigns to a name, or passes under it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if (isinstance(target, ast.Name) and target.id == name) or (
                    isinstance(target, ast.Attribute) and target.attr == name
                ):
                    yield node.value
        elif isinstance(node, ast.Call) and not _is_call(node):
            yield from (keyword.value for keyword in node.keywords if keyword.arg == name)


def _bases(tree: ast.Module, name: str) -> Iterator[str]:
    """Yield the modules that the bases of a class of a file are taken from."""
    bases = {
        ast.unparse(base)
        for node in tree.body
        if isinstance(node, ast.ClassDef) and node.name == name
        for base in node.bases
    }
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module and bases & {one.asname or one.name for one in node.names}:
            yield node.module.rpartition(".")[2]


def _imported(tree: ast.Module) -> Iterator[str]:
    """Yield the modules beside this one whose layers a file takes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            taken = any(re.search(r"Attention$|DecoderLayer$|Model$|ForCausalLM$", one.name) for one in node.names)
            if taken and (node.level == 1 or re.search(r"\.(srt|model_executor)\.models\.", node.module)):
                yield node.module.rpartition(".")[2]


def architectures() -> list[str]:
    """Return the architectures of ropetool's families, and of the wrappers around them."""
    found = {families.get(name).architecture for name in families.names()}
    for name in records.names():
        record = json.loads((ROOT / f"ropetool/families/generated/{name}.json").read_text(encoding="utf-8-sig"))
        found.add(record.get("architecture", ""))
    return sorted(found - {""})


def taken_by_backend(architecture: str) -> bool:
    """Return whether vLLM's transformers backend takes a class of transformers."""
    import transformers

    kind = getattr(transformers, architecture, None)
    return kind is not None and bool(kind.is_backend_compatible())


def facts(engine: str, releases: list[Release]) -> dict[str, Facts]:
    """Return what is known of each architecture over the releases, in their order; nothing of one that they lack."""
    found: dict[str, Facts] = {}
    for architecture in architectures():
        there = [(release, release.files[architecture]) for release in releases if architecture in release.files]
        own = [(release, module) for release, module in there if module != "transformers"]
        entry: Facts = {}
        if own:
            release, module = own[-1]
            entry = {"file": module, **release.facts(module)}
            if engine == "sglang" and architecture in BY_SGLANG:
                entry["facts"] = dict(BY_SGLANG[architecture])
            wider = [one.version for one, name in own if one.has_wider_window(name)]
            if wider:
                entry["wider_window"] = wider[0]
            if own[0][0] is not releases[0]:
                entry["since"] = own[0][0].version
            gone = releases.index(release) + 1
            if gone < len(releases) and architecture not in releases[gone].files:
                entry["until"] = release.version
        by_name = [release.version for release, module in there if module == "transformers"]
        if by_name:
            entry["on_transformers"] = by_name[0]
        elif not own and engine == "vllm" and taken_by_backend(architecture):
            entry["reads"] = "by the transformers backend"
            if architecture in BY_BACKEND:
                entry["on_transformers"] = RUN_IN
        found[architecture] = entry
    return found


def wrappers(releases: list[Release]) -> dict[str, Facts]:
    """Return the classes that hold a text model of another class, over the releases; one that changes it is left out."""
    found: dict[str, Facts] = {}
    for architecture in sorted({name for release in releases for name in release.files}):
        there = [release for release in releases if architecture in release.files]
        texts = {release.text_model(release.files[architecture], architecture) for release in there}
        if architecture in VLLM_WRAPPERS:
            made, text = VLLM_WRAPPERS[architecture]
            texts = {text if release.names(architecture, made) else "" for release in there}
        if len(texts) > 1 or texts == {""} or architecture in UNEXPLAINED:
            continue
        found[architecture] = {"file": there[-1].files[architecture], "text": texts.pop()}
        if there[0] is not releases[0]:
            found[architecture]["since"] = there[0].version
        if there[-1] is not releases[-1]:
            found[architecture]["until"] = there[-1].version
    return found


def sglang_wrappers(releases: list[Release]) -> dict[str, Facts]:
    """Return SGLang's wrappers by what each release's file makes of the text model."""
    found: dict[str, Facts] = {}
    for architecture, (made, text) in sorted(SGLANG_WRAPPERS.items()):
        there = [release for release in releases if architecture in release.files]
        for release in there:
            assert release.names(architecture, made), f"{architecture} of {release.version} has no {made}"
        found[architecture] = {"file": there[-1].files[architecture], "text": text}
        if architecture in WITHIN:
            assert all(release.names(architecture, TURNS_ROWS) for release in there), architecture
            found[architecture]["facts"] = dict(WITHIN[architecture])
        if there[0] is not releases[0]:
            found[architecture]["since"] = there[0].version
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where a file would change")
    options = parser.parse_args()
    root = Path(os.environ["ROPETOOL_PEERS"])
    stale = []
    for engine in MODELS:
        versions = sorted((path.name.partition("-")[2] for path in root.glob(f"{engine}-*")), key=numbers)
        releases = [Release(engine, version, root / f"{engine}-{version}") for version in versions]
        known = {str(one.releases) for one in all_of(engine)}
        assert all(any(one.releases and one.releases.has(version) for one in all_of(engine)) for version in versions), (
            known
        )
        lines = ",\n".join(f'  "{name}": {json.dumps(entry)}' for name, entry in facts(engine, releases).items())
        text = f'{{\n"releases": {json.dumps(versions)},\n"architectures": {{\n{lines}\n}}'
        held = wrappers(releases) if engine == "vllm" else sglang_wrappers(releases)
        around = ",\n".join(f'  "{name}": {json.dumps(entry)}' for name, entry in held.items())
        text += f',\n"wrappers": {{\n{around}\n}}'
        text += "\n}\n"
        path = FOLDER / f"{engine}_models.json"
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            stale.append(path.name)
            if not options.check:
                path.write_text(text, encoding="utf-8")
    print(f"changed: {', '.join(stale)}" if stale else "nothing changed", file=sys.stderr)
    return 1 if stale and options.check else 0


if __name__ == "__main__":
    sys.exit(main())

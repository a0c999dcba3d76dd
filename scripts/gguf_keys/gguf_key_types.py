#!/usr/bin/env python3
"""Read from llama.cpp's sources which type its loader wants of each metadata key, and write them as data.

Writes ropetool/runtimes/llama_cpp/key_types.json: the keys that the loader reads, with every type that it takes; the type
that the gguf package's writer gives to keys, which nothing checks; how long arrays
must be; the names of architectures, tokenizers and pre-tokenizers. It is due with a new llama.cpp.

    scripts/gguf_keys/gguf_key_types.py FOLDER           FOLDER is vendor/llama.cpp of llama-cpp-python's source archive
    scripts/gguf_keys/gguf_key_types.py FOLDER --check   exit 1 where the file would change
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TARGET = ROOT / "ropetool" / "runtimes" / "llama_cpp" / "key_types.json"

# C++ types of what a key is read into, in the words of GGUF. Enums are read through a u32 (get_key of pooling types).
SCALARS = {
    "bool": "bool", "float": "f32", "uint32_t": "u32", "int32_t": "u32", "int": "u32", "llama_token": "u32",
    "uint16_t": "u16", "uint64_t": "u64", "std::string": "str", "enum llama_pooling_type": "u32",
}  # fmt: skip
# Elements that an array may have to be read as this type (get_arr of llama-model-loader.cpp).
WHOLE = ("i32", "u32")
ELEMENTS = {
    "uint32_t": WHOLE, "int32_t": WHOLE, "int": WHOLE, "llama_token": WHOLE, "uint64_t": ("u64",), "float": ("f32",),
    "std::string": ("str",),
}  # fmt: skip
# Fixed arrays also take bools (the same get_arr, of std::array).
WITH_BOOLS = {"uint32_t", "int32_t", "int"}
# What llama-vocab.cpp, llama-model.cpp and llama-model-loader.cpp ask of the container themselves, without get_key.
BY_HAND = {
    "tokenizer.ggml.tokens": ("arr of str",),
    "tokenizer.ggml.merges": ("arr of str",),
    "tokenizer.ggml.scores": ("arr of f32", "arr of i32"),
    "tokenizer.ggml.token_type": ("arr of i32",),
    "tokenizer.ggml.suppress_tokens": ("arr of i32",),
    "tokenizer.ggml.precompiled_charsmap": ("arr of u8", "arr of i8"),
    "split.count": ("u16",),
    "split.no": ("u16",),
    "split.tensors.count": ("i32",),
    "general.alignment": ("u32",),
    "general.architecture": ("str",),
}  # fmt: skip
CALL = re.compile(r"get_(key|key_or_arr|arr|arr_n)\(\s*(?:llm_kv\()?LLM_KV_(\w+)\)?\s*,\s*([\w.]+)")
# An array here must be as long as the file has layers (with drafting ones: n_layer_all), or of a fixed length.
LENGTH = re.compile(r"get_key_or_arr\(\s*LLM_KV_(\w+)\s*,\s*[\w.]+\s*,\s*(?:hparams\.)?(\w+)")
SPECIAL_TOKEN = re.compile(r"\{ LLM_KV_(TOKENIZER_\w+_ID),\s+special_\w+ +\}")
NAME = re.compile(r'\{ LLM_KV_(\w+),\s*"([^"]+)"\s*\}')
ARCH = re.compile(r'\{ LLM_ARCH_\w+,\s*"([^"]+)"\s*\}')
FIELD = re.compile(r"^\s+(enum \w+|std::array<\w+, *\w+>|[\w:]+)\s+(\w+)\s*(?:=[^;]*)?;", re.MULTILINE)


def table(text: str, name: str) -> str:
    """Return the lines of a map of llama-arch.cpp."""
    start = text.index(f"{name} = {{")
    return text[start : text.index("\n};", start)]


def declared(text: str, variable: str) -> str | None:
    """Return the type of a variable, by the last line that declares it."""
    found = re.findall(
        rf"\b(bool|float|u?int\d+_t|int|std::(?:string|(?:vector|array)<[\w:]+(?:, *\w+)?>))\s+{variable}\b", text
    )
    return found[-1] if found else None


def labels(call: str, c_type: str) -> tuple[str, ...]:
    """Return the types of a value that this call takes for this C++ variable."""
    inner = re.fullmatch(r"std::(array|vector)<([\w:]+)(?:, *\w+)?>", c_type)
    if call == "arr_n":
        return ()  # any array: only its length is asked
    if inner is None:
        return (SCALARS[c_type],)
    bools = ("bool",) if inner[1] == "array" and inner[2] in WITH_BOOLS else ()
    arrays = tuple(f"arr of {element}" for element in (*ELEMENTS[inner[2]], *bools))
    return ((SCALARS[inner[2]],) if call == "key_or_arr" else ()) + arrays


def read(folder: Path) -> dict[str, list[str]]:
    """Return the types that each key may have, by the key with %s for the architecture."""
    names = dict(NAME.findall(table((folder / "src" / "llama-arch.cpp").read_text(), "LLM_KV_NAMES")))
    header = (folder / "src" / "llama-hparams.h").read_text()
    fields = {name: c_type for c_type, name in FIELD.findall(header)}
    files = ("llama-vocab.cpp", "llama-model.h", "llama-vocab.h", "models/models.h")
    shared = "".join((folder / "src" / name).read_text() for name in files)
    found: defaultdict[str, set[str]] = defaultdict(set)
    for path in [*sorted((folder / "src").glob("llama-*.cpp")), *sorted((folder / "src" / "models").glob("*.cpp"))]:
        text = path.read_text()
        for match in CALL.finditer(text):
            call, key, target = match.groups()
            if names[key] in BY_HAND:
                continue
            variable = target.rpartition(".")[2]
            c_type = fields.get(variable) if "hparams" in target else declared(shared + text[: match.start()], variable)
            if c_type is None:
                sys.exit(f"{path.name}: what type is {target}, into which {key} is read?")
            found[names[key]].update(labels(call, c_type))
        found.update({names[key]: {"u32"} for key in SPECIAL_TOKEN.findall(text)})
    found.update({key: set(types) for key, types in BY_HAND.items()})
    return {
        key: sorted(types, key=lambda label: (label.startswith("arr"), label))
        for key, types in sorted(found.items())
        if types
    }


def lengths(folder: Path) -> dict[str, str]:
    """Return how long an array must be, by its key: n_layer_all, n_layer or a number."""
    names = dict(NAME.findall(table((folder / "src" / "llama-arch.cpp").read_text(), "LLM_KV_NAMES")))
    texts = (
        path.read_text() for path in [folder / "src" / "llama-model.cpp", *(folder / "src" / "models").glob("*.cpp")]
    )
    return dict(sorted({names[key]: length for text in texts for key, length in LENGTH.findall(text)}.items()))


def named(folder: Path, variable: str) -> list[str]:
    """Return the names that the vocabulary's loader compares a variable with."""
    text = (folder / "src" / "llama-vocab.cpp").read_text()
    return sorted({*re.findall(rf'{variable} == "([^"]+)"', text)})


def written(package: Path) -> dict[str, str]:
    """Return the type that the writer of the gguf package, in this folder, gives to each key."""
    scalars = {
        "add_string": "str", "add_uint32": "u32", "add_int32": "i32", "add_float32": "f32", "add_bool": "bool",
        "add_uint64": "u64", "add_uint8": "u8", "add_uint16": "u16",
    }  # fmt: skip
    arrays = {"Sequence[str]": "arr of str", "Sequence[int]": "arr of i32", "Sequence[float]": "arr of f32"}
    keys = constants(package / "constants.py")
    found = {}
    tree = ast.parse((package / "gguf_writer.py").read_text())
    for method in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        taken = {arg.arg: ast.unparse(arg.annotation) for arg in method.args.args if arg.annotation is not None}
        for call in (node for node in ast.walk(method) if isinstance(node, ast.Call) and len(node.args) == 2):
            key = keys.get(ast.unparse(call.args[0]).removesuffix(".format(arch=self.arch)").removeprefix("Keys."))
            name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
            label = arrays.get(taken.get(ast.unparse(call.args[1]), "")) if name == "add_array" else scalars.get(name)
            if key is not None and label is not None:
                found[key.replace("{arch}", "%s")] = label
    return dict(sorted(found.items()))


def constants(path: Path) -> dict[str, str]:
    """Return the keys of the class Keys, by their dotted names."""
    keys = next(n for n in ast.parse(path.read_text()).body if isinstance(n, ast.ClassDef) and n.name == "Keys")
    groups = [group for group in keys.body if isinstance(group, ast.ClassDef)]
    return {
        f"{group.name}.{line.targets[0].id}": line.value.value
        for group in groups
        for line in group.body
        if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name)
        if isinstance(line.value, ast.Constant) and isinstance(line.value.value, str)
    }  # fmt: skip


def main() -> None:
    """Write the file, or say that it would change."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--check", action="store_true")
    chosen = parser.parse_args()
    text = (chosen.folder / "src" / "llama-arch.cpp").read_text()
    loaded = read(chosen.folder)
    data = {
        "source": "llama.cpp of llama-cpp-python 0.3.36, by scripts/gguf_keys/gguf_key_types.py",
        "architectures": sorted(ARCH.findall(table(text, "LLM_ARCH_NAMES"))),
        "tokenizers": named(chosen.folder, "tokenizer_model"),
        "pretokenizers": named(chosen.folder, "tokenizer_pre"),
        "lengths": lengths(chosen.folder),
        "loaded": loaded,
        "written": {
            key: label for key, label in written(chosen.folder / "gguf-py" / "gguf").items() if key not in loaded
        },
    }
    made = json.dumps(data, indent=1) + "\n"
    if chosen.check:
        sys.exit(0 if TARGET.read_text() == made else f"{TARGET} would change")
    TARGET.write_text(made)


if __name__ == "__main__":
    main()

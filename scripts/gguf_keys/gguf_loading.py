#!/usr/bin/env python3
"""Read from llama.cpp's sources which keys each architecture needs, which it reads, and what shape its tensors have.

Writes ropetool/runtimes/llama_cpp/loading.json. Run it after `scripts/gguf_keys/gguf_key_types.py` with a new llama.cpp.

    scripts/gguf_keys/gguf_loading.py FOLDER           FOLDER is vendor/llama.cpp of llama-cpp-python's source archive
    scripts/gguf_keys/gguf_loading.py FOLDER --check   exit 1 if the file would change

A key is its name behind the architecture's, then how the loader reads it:

    rope.freq_base                       a scalar
    rope.dimension_sections[4]           a scalar, or an array of exactly 4 entries
    feed_forward_length[n_layer_all]     a scalar, or an array with one entry per layer
    attention.compress_ratios[]          an array of any length
    attention.q_lora_rank if not lite    needed only under this condition
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from gguf_key_types import NAME, table

ROOT = Path(__file__).resolve().parents[2]
TARGET = ROOT / "ropetool" / "runtimes" / "llama_cpp" / "loading.json"
ALL = "*"  # what the loader reads for every architecture
# Conditions around a key that is needed, and what the data calls them: `not lite`, or a key whose value must be above 0.
CONDITIONS = {
    "!is_lite": "not lite",
    "hparams.dsv4_hc_mult > 0": "hyper_connection.count",
    "n_ple > 0": "ple.layers",
    "ml.get_key(LLM_KV_ATTENTION_SLIDING_WINDOW, hparams.n_swa, false) && hparams.n_swa > 0": "attention.sliding_window",
}
CALL = re.compile(r"get_(key_or_arr|key|arr_n|arr)\(\s*LLM_KV_(\w+)\s*,([^;]*)")
OPTIONAL = re.compile(r"(?:false|\b0|0\.0f)$")
ARCH_IS = re.compile(r"arch == LLM_ARCH_(\w+)")
STRING = re.compile(r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])'", re.DOTALL)
# Shapes are kept as expressions of these functions of a layer, and of fields that the loader reads from one key.
LAYERED = (
    "n_head", "n_head_kv", "n_embd_head_k", "n_embd_head_v", "n_embd_k_gqa", "n_embd_v_gqa", "n_ff", "n_ff_exp", "n_rot",
    "n_embd_head_k_mla", "n_embd_head_v_mla", "n_expert_used",
)  # fmt: skip
PLAIN = ("n_embd", "n_vocab", "n_expert", "n_token_types")
# What these are computed from: an architecture that sets one of the fields itself has another size.
BEHIND = {
    "n_head": ("n_head_arr",), "n_head_kv": ("n_head_kv_arr",), "n_ff": ("n_ff_arr",), "n_ff_exp": ("n_ff_exp_arr",),
    "n_embd_head_k": ("n_embd_head_k_full", "n_embd_head_k_swa"),
    "n_embd_head_v": ("n_embd_head_v_full", "n_embd_head_v_swa"),
    "n_embd_head_k_mla": ("n_embd_head_k_mla_impl", "n_embd_head_k_full", "n_embd_head_k_swa"),
    "n_embd_head_v_mla": ("n_embd_head_v_mla_impl", "n_embd_head_v_full", "n_embd_head_v_swa"),
    "n_rot": ("n_rot_full", "n_rot_swa"), "n_expert_used": ("n_expert_used_arr",),
    "n_embd_k_gqa": ("n_embd_head_k_full", "n_embd_head_k_swa", "n_head_kv_arr"),
    "n_embd_v_gqa": ("n_embd_head_v_full", "n_embd_head_v_swa", "n_head_kv_arr"),
}  # fmt: skip
LOCALS = {name: f"hparams.{name}()" for name in LAYERED} | {"n_embd_gqa": "hparams.n_embd_v_gqa()"}
MAX_ALTERNATIVES = 8


# --- C++ as statements


def plain(text: str) -> str:
    """Return C++ without comments, and with strings of letters only."""
    return STRING.sub(lambda m: " " if m[0].startswith("/") else '"' + re.sub(r"[^\w.%]", "_", m[0][1:-1]) + '"', text)


def closing(text: str, at: int, pair: str) -> int:
    """Return where the bracket that opens at a place is closed."""
    depth = 0
    for place in range(at, len(text)):
        depth += (text[place] == pair[0]) - (text[place] == pair[1])
        if depth == 0:
            return place
    raise ValueError(text[at : at + 80])


def one(text: str, at: int) -> tuple[str, int]:
    """Return the statement or block that begins at a place, and where it ends."""
    at += len(text[at:]) - len(text[at:].lstrip())
    if text[at] == "{":
        end = closing(text, at, "{}")
        return text[at + 1 : end], end + 1
    head = re.compile(r"(?:if|for|while|switch)\s*\(").match(text, at)
    if head:
        end = one(text, closing(text, head.end() - 1, "()") + 1)[1]
        return text[at:end], end
    depth, place = 0, at
    while place < len(text) and (text[place] != ";" or depth):
        depth += (text[place] in "({[") - (text[place] in ")}]")
        place += 1
    return text[at : place + 1], place + 1


def statements(text: str, under: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield each statement of a body, the conditions of ifs too, with the conditions that it is under."""
    at, before = 0, []  # type: ignore[var-annotated]
    while text[at:].strip():
        head = re.compile(r"\s*(else\s+)?(if|for|while|switch)\s*\(").match(text, at)
        other = re.compile(r"\s*else\b").match(text, at)
        if head:
            end = closing(text, head.end() - 1, "()")
            condition = " ".join(text[head.end() : end].split())
            inner, at = one(text, end + 1)
            before = before if head[1] else []
            outer = (*under, *(f"!({each})" for each in before))
            yield outer, f"if {condition} {'throw' if inner.strip().startswith('throw') else ''}"
            yield from statements(inner, (*outer, condition if head[2] == "if" else f"{head[2]} {condition}"))
            before = [*before, condition]
        elif other:
            inner, at = one(text, other.end())
            yield from statements(inner, (*under, *(f"!({each})" for each in before)))
        else:
            inner, after = one(text, at)
            if text[at:].lstrip().startswith("{"):
                yield from statements(inner, under)
            else:
                yield under, " ".join(inner.split())
            at = after


@dataclass
class Sources:
    """llama.cpp's sources: its names of keys, tensors and architectures, and the functions that load each."""

    folder: Path
    keys: dict[str, str] = field(init=False)
    _models: list[str] = field(default_factory=list)
    _bodies: dict[str, dict[str, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.keys = {
            name: key.removeprefix("%s.")
            for name, key in NAME.findall(table(self.text("llama-arch.cpp"), "LLM_KV_NAMES"))
        }

    def text(self, name: str) -> str:
        return (self.folder / "src" / name).read_text()

    def functions(self, name: str) -> dict[str, str]:
        """Return the body of a member function by its class."""
        if name not in self._bodies:
            found = self._bodies.setdefault(name, {})
            for text in [plain(self.text("llama-model.cpp")), *self.models()]:
                for match in re.finditer(rf"void (llama_model_\w+)::{name}\([^)]*\) \{{", text):
                    found[match[1]] = text[match.end() : closing(text, match.end() - 1, "{}")]
        return self._bodies[name]

    def architectures(self) -> dict[str, tuple[str, str]]:
        """Return the enum and the class of each architecture."""
        names = dict(re.findall(r'\{ LLM_ARCH_(\w+),\s*"([^"]+)"\s*\}', self.text("llama-arch.cpp")))
        made = re.findall(r"case LLM_ARCH_(\w+):\s*return new (llama_model_\w+)\(", self.text("llama-model.cpp"))
        return {names[enum]: (enum, model) for enum, model in made}

    def file_of(self, model: str) -> str:
        """Return the file that loads the tensors of a class."""
        body = self.body(model, "load_arch_tensors")
        return next(text for text in self.models() if body in text)

    def models(self) -> list[str]:
        """Return the file of each architecture, without comments."""
        if not self._models:
            self._models = [plain(path.read_text()) for path in sorted((self.folder / "src" / "models").glob("*.cpp"))]
        return self._models

    def body(self, model: str, name: str) -> str:
        """Return the body of a function of a class, of the class that it is made from where it has none."""
        bases = dict(re.findall(r"struct (llama_model_\w+) : public (llama_model_\w+)", self.text("models/models.h")))
        found = self.functions(name)
        while model not in found:
            model = bases[model]
        return found[model]


# --- keys


def reads(sources: Sources, body: str, enum: str) -> tuple[list[str], list[str]]:
    """Return the keys that a body needs, and those that it reads where they are there."""
    needs, takes = [], []
    for under, statement in statements(body):
        conditions = [CONDITIONS.get(each, each) for each in under if not _always(each, enum)]
        if "never" in [_never(each, enum) for each in under]:
            continue
        if "load_swa_pattern(" in statement:
            takes += ["attention.sliding_window_pattern[]", "attention.sliding_window_pattern"]
        for match in CALL.finditer(statement):
            call, name, rest = match.groups()
            arguments = [each.strip() for each in rest[: _end(rest)].split(",")]
            key = sources.keys[name] + _read_as(call, arguments)
            needed = not OPTIONAL.search(arguments[-1]) or (
                statement.startswith("if !ml.get_arr(") and "throw" in statement
            )
            if not needed:
                takes.append(key)
            elif not conditions:
                needs.append(key)
            elif len(conditions) == 1 and conditions[0] in CONDITIONS.values():
                needs.append(f"{key} if {conditions[0]}")
            else:
                sys.exit(f"{enum}: under which condition is {key} needed? {conditions}")
    return sorted({*needs}), sorted({*takes} - {*needs})


def _always(condition: str, enum: str) -> bool:
    """Return whether a condition compares the architecture, and holds."""
    named = ARCH_IS.findall(condition)
    return bool(named) and enum in named


def _never(condition: str, enum: str) -> str:
    named = ARCH_IS.findall(condition)
    return "never" if named and enum not in named and not condition.startswith("!") else ""


def _end(rest: str) -> int:
    """Return where the arguments of a call end."""
    return closing("(" + rest + ")", 0, "()") - 1


def _read_as(call: str, arguments: list[str]) -> str:
    if call == "key_or_arr" and len(arguments) > 1 and arguments[1] not in ("false", "true"):
        return f"[{arguments[1].removeprefix('hparams.').removesuffix('()')}]"
    return "[]" if call in ("arr", "arr_n") else ""


# --- shapes


def shapes(sources: Sources, model: str, names: dict[str, str], fields: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Yield tensors of an architecture with each shape that they may have; `?` for one that is not known."""
    body = sources.body(model, "load_arch_tensors")
    changed = {*re.findall(r"hparams\.(\w+)(?:\[\w+\])? *=[^=]", sources.body(model, "load_arch_hparams"))}
    local: defaultdict[str, list[str]] = defaultdict(list, {name: [value] for name, value in LOCALS.items()})
    for name, value in re.findall(r"(?:int64_t|uint32_t|int|auto)\s+(\w+)\s*=\s*([^;]+);", body):
        shared = LOCALS.get(name)
        local[name] = [*(each for each in local[name] if each != shared), value]
    for name in re.findall(r"(?<=[;{}])\s*(\w+)\s*[-+*/]?=[^=]", body):
        local[name].append("?")  # set again later
    for name, dims in _created(body):
        if name in names:
            parts = [_resolved(each, local, changed, fields) for each in dims]
            yield names[name], ", ".join(parts) if all(parts) else "?"


def _created(body: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each weight that a body creates: the enum of its name, its lengths."""
    for match in re.finditer(r'create_tensor\(tn\(LLM_TENSOR_(\w+), *"weight"[^{;]*?\{([^}]*)\}', body):
        yield match[1], match[2].split(",")
    for match in re.finditer(r"create_tensor_qkv\(layer, *\w+,([^;]*)\)", body):
        embd, q, k, v = match[1].split(",")[:4]
        yield from (("ATTN_Q", [embd, q]), ("ATTN_K", [embd, k]), ("ATTN_V", [embd, v]))
        yield "ATTN_QKV", [embd, f"({q})+({k})+({v})"]
    for match in re.finditer(r"create_tensor_gate_up_exps\(layer, *\w+,([^;]*)\)", body):
        embd, ff, expert = match[1].split(",")[:3]
        yield from ((name, [embd, ff, expert]) for name in ("FFN_GATE_EXPS", "FFN_UP_EXPS"))
        yield "FFN_GATE_UP_EXPS", [embd, f"({ff})*2", expert]


def _resolved(text: str, local: dict[str, list[str]], changed: set[str], fields: dict[str, str], depth: int = 6) -> str:
    """Return a length as an expression of known numbers, empty where it has another one in it."""
    text = re.sub(r"hparams\.(n_\w+)\(\)", r"\1__0", " ".join(text.split()))
    text = re.sub(r"hparams\.(n_\w+)\((?:i|il|bid|layer)\)", r"\1__i", text)
    text = re.sub(r"\(([^()?]+?)(?: != 0| > 0)? \? ([^():]+) : ([^()]+)\)", r"(\2 if \1 else \3)", text)
    choice = re.fullmatch(r"([^?]+?)(?: != 0| > 0)? \? (.+) : (.+)", text)
    text = "({1} if {0} else {2})".format(*choice.groups()) if choice else text
    text = re.sub(r"\(int64_t\)|\bstatic_cast<\w+>", "", re.sub(r"hparams\.(\w+)", r"field__\1", text))
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        return ""
    return _expression(tree, local, changed, fields, depth)


def _expression(
    tree: ast.AST, local: dict[str, list[str]], changed: set[str], fields: dict[str, str], depth: int
) -> str:
    if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Add | ast.Sub | ast.Mult | ast.Div):
        sides = [_expression(each, local, changed, fields, depth) for each in (tree.left, tree.right)]
        sign = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "//"}[type(tree.op)]
        return f"({sides[0]}{sign}{sides[1]})" if all(sides) else ""
    if isinstance(tree, ast.IfExp):
        parts = [_expression(each, local, changed, fields, depth) for each in (tree.body, tree.test, tree.orelse)]
        return "({} if {} else {})".format(*parts) if all(parts) else ""
    if isinstance(tree, ast.Constant) and isinstance(tree.value, int):
        return str(tree.value)
    if not isinstance(tree, ast.Name):
        return ""
    name, _, layer = tree.id.partition("__")
    if name == "field":
        return layer if layer in fields and layer not in changed else _plain(layer, changed)
    if layer:
        return f"{name}({layer})" if name in LAYERED and not changed.intersection(BEHIND[name]) else ""
    if tree.id in local:
        found = local[tree.id]
        return _resolved(found[0], local, changed, fields, depth - 1) if len({*found}) == 1 and depth else ""
    return _plain(tree.id, changed)


def _plain(name: str, changed: set[str]) -> str:
    return name if name in PLAIN and name not in changed else ""


def read_fields(sources: Sources) -> dict[str, str]:
    """Return the fields of the loader that are read from one key and from nothing else, with that key."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for body in [*sources.functions("load_hparams").values(), *sources.functions("load_arch_hparams").values()]:
        for name, variable in re.findall(r"get_key\(\s*LLM_KV_(\w+)\s*,\s*hparams\.(\w+)\s*[,)]", body):
            found[variable].add(sources.keys[name])
    return {name: min(keys) for name, keys in found.items() if len(keys) == 1 and name not in PLAIN}


def tensor_names(sources: Sources) -> dict[str, str]:
    """Return the name of each weight without its layer, by its enum."""
    text = table(sources.text("llama-arch.cpp"), "LLM_TENSOR_NAMES")
    found = re.findall(r'\{ LLM_TENSOR_(\w+),\s*"([^"]+)"\s*\}', text)
    return {enum: f"{name.replace('blk.%d.', 'blk.*.')}.weight" for enum, name in found if name.count("%d") < 2}


def kept(shape: str, name: str) -> bool:
    """Return whether a shape says more than that a model is as wide as its embeddings; those of rotation are decoded."""
    if name.startswith("rope_"):
        return False
    return name == "token_embd.weight" or not set(shape.split(", ")) <= {"n_embd", "n_vocab"}


def equal_heads(sources: Sources, model: str) -> bool:
    """Return whether the graph stops where a head of keys and one of values have not as many channels."""
    text = sources.file_of(model)
    return re.search(r"GGML_ASSERT\(n_embd_head(?:_v)? *== (?:hparams\.)?n_embd_head_k(?:\(\))?\)", text) is not None


def leads_dense(sources: Sources, model: str) -> bool:
    """Return whether all layers behind leading_dense_block_count, and no others, have experts."""
    if model == "llama_model_clip":
        return False
    body, keys = (sources.body(model, f"load_arch_{part}") for part in ("tensors", "hparams"))
    return "n_layer_dense_lead" in body and "LEADING_DENSE" in keys and "INTERLEAVE_MOE_LAYER_STEP" not in keys


# --- the file


def gathered(folder: Path) -> dict[str, object]:
    """Return the data."""
    sources = Sources(folder)
    base = re.split(r"return;\s*\}", sources.body("llama_model_base", "load_hparams"), maxsplit=1)[1]
    names, fields = tensor_names(sources), read_fields(sources)
    made: defaultdict[str, set[str]] = defaultdict(set)
    keys, used = {}, set()
    for arch, (enum, model) in sorted(sources.architectures().items()):
        if model not in ("llama_model_clip",):
            own, shared = (reads(sources, body, enum) for body in (sources.body(model, "load_arch_hparams"), base))
            keys[arch] = own
            keys[ALL] = reads(sources, base, "LLAMA")
            keys[arch] = tuple(sorted({*a, *b} - {*every}) for a, b, every in zip(own, shared, keys[ALL], strict=True))
            for name, shape in shapes(sources, model, names, fields):
                made[f"{name}: {shape}"].add(arch)
                used |= {*re.findall(r"\b[a-z]\w+", shape)}
    dense = [arch for arch, (_, model) in sources.architectures().items() if leads_dense(sources, model)]
    equal = [
        arch
        for arch, (_, model) in sources.architectures().items()
        if model != "llama_model_clip" and equal_heads(sources, model)
    ]
    unknown = defaultdict(set)
    for line, archs in made.items():
        if line.endswith("?"):
            unknown[line.partition(":")[0]] |= archs
    known = {
        line: sorted(archs - unknown[line.partition(":")[0]])
        for line, archs in made.items()
        if kept(line.partition(": ")[2], line.partition(":")[0]) and not line.endswith("?")
    }
    return {
        "source": "llama.cpp of llama-cpp-python 0.3.36, by scripts/gguf_keys/gguf_loading.py",
        "needs": {arch: list(each[0]) for arch, each in sorted(keys.items()) if each[0]},
        "takes": {arch: list(each[1]) for arch, each in sorted(keys.items()) if each[1]},
        "equal_heads": " ".join(sorted(equal)),
        "dense_lead": " ".join(sorted(dense)),
        "fields": {name: key for name, key in sorted(fields.items()) if name in used},
        "shapes": {line: " ".join(archs) for line, archs in sorted(known.items()) if archs},
    }


def written(data: dict[str, object]) -> str:
    """Return the data as JSON with an architecture, or a shape, a line."""
    parts = []
    for name, value in data.items():
        if isinstance(value, dict):
            lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(each)}" for key, each in value.items())
            parts.append(f" {json.dumps(name)}: {{\n{lines}\n }}")
        else:
            parts.append(f" {json.dumps(name)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def main() -> None:
    """Write the file, or say that it would change."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--check", action="store_true")
    chosen = parser.parse_args()
    made = written(gathered(chosen.folder))
    if chosen.check:
        sys.exit(0 if TARGET.read_text() == made else f"{TARGET} would change")
    TARGET.write_text(made)


if __name__ == "__main__":
    main()

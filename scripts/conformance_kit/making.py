"""The kit as a folder: checkpoints, golden values, the scorer, the drivers, and a manifest with the sha256 of each file.

A case that could not tell one of its wrong tables from the right one stops the making.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from conformance_kit import checkpoints, goldens
from conformance_kit.cases import CASES, SEED, TRAINED, VERSION, VOCABULARY, Calls, Case
from conformance_kit.goldens import RIGHT, ROUNDED, Array

SHIPPED = Path(__file__).parent / "shipped"
LICENCE = SHIPPED.parents[2] / "LICENSE"
DIGITS = 6  # of the golden values, behind the point
LONGEST = max(max(case.calls.lengths) for case in CASES.values())  # tokens of the longest prompt
STEP, FIRST = 37, 8  # the scored tokens of a prompt: every so many, from there
LIKELIEST, OF_WRONG = 32, 8  # next tokens that are compared: of the right table, and of each wrong one

EXACT = 3e-4  # nats: no log probability of a float32 engine may be further from its golden value
TELLS = 100  # times EXACT: how far on average each wrong table must be from the right one
READS = (
    1e-2  # nats: how far float32 answers may be on average from a table that is said to fit; rough kernels reach 1e-3
)
# In bfloat16 the rounding depends on the order of the sums, and with weights in q8_0 inputs are rounded too: these bounds are
# multiples of what transformers is off by.
EXACT_BFLOAT16, READS_BFLOAT16 = 3.0, 2.0


Taken = dict[str, list[Array]]  # "scores" and "next" of each prompt


class Defect(Exception):
    """A case that cannot do what it is for, with the numbers."""


def make(
    out: Path, names: Sequence[str] = tuple(CASES), say: Callable[[str], None] = lambda line: None
) -> dict[str, Any]:
    """Write the kit, or these cases of it, into a new folder; return its manifest.

    Raises: Defect; FileExistsError where the folder is there already.
    """
    out.mkdir(parents=True)
    ids = checkpoints.prompt(LONGEST)
    listed = {}
    for name in names:
        case = CASES[name]
        folder = checkpoints.write(out / "hf" / name, case)
        if not case.gguf:
            checkpoints.write_gguf(folder, out / "gguf" / f"{name}.gguf", case.quantised or "f32")
        values, measured = golden(folder, case, ids)
        target = out / "golden" / f"{name}.json"
        target.parent.mkdir(exist_ok=True)
        target.write_text(dumped(values), encoding="utf-8")
        listed[name] = {"asks": case.asks, "no_gguf": case.gguf, "measured": measured}
        say(f"{name}: {measured}")
    for path in sorted(SHIPPED.rglob("*")):
        if path.is_file() and (path.suffix in (".py", ".md", ".yml") or path.name == ".gitattributes"):
            target = out / path.relative_to(SHIPPED)
            target.parent.mkdir(exist_ok=True)
            shutil.copyfile(path, target)
    shutil.copyfile(LICENCE, out / "LICENSE")
    manifest = {
        "name": "ropetool conformance kit", "version": VERSION, "licence": "Apache-2.0", "seed": SEED,
        "made_with": made_with(), "dtypes": [name for name in BOUNDS if name != ROUNDED], "cases": listed, "files": files(out),
    }  # fmt: skip
    (out / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    return manifest


def made_with() -> dict[str, str]:
    import torch
    import transformers

    return {"transformers": transformers.__version__, "torch": torch.__version__}


def files(out: Path) -> dict[str, dict[str, Any]]:
    """Return size and sha256 of every file of a folder, by its path in it."""
    found = {}
    for path in sorted(out.rglob("*")):
        if path.is_file():
            data = path.read_bytes()
            found[path.relative_to(out).as_posix()] = {
                "bytes": len(data),
                "sha256": hashlib.sha256(data).hexdigest(),
            }
    return found


def golden(folder: Path, case: Case, ids: Sequence[int]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the golden values of a checkpoint, and how well they tell its tables apart.

    Raises: Defect.
    """
    calls = case.calls
    tables = goldens.tables(folder, case)
    computed = {table.name: goldens.log_probs(folder, case, table, ids) for table in tables}
    prompts = [
        {"length": length, "places": places(calls, at), "tokens": _compared(computed, at)}
        for at, length in enumerate(calls.lengths)
    ]
    taken = {name: taken_of(scores, prompts, ids) for name, scores in computed.items()}
    types = [name for name in BOUNDS if name != ROUNDED or case.quantised]
    own = {name: taken_of(goldens.own_log_probs(folder, calls, ids, name), prompts, ids) for name in types}
    apart = {name: mean_apart(taken[RIGHT], one) for name, one in taken.items() if name != RIGHT}
    off = {name: largest_apart(taken[RIGHT], one) for name, one in own.items()}
    if defect := next(_defects(taken, apart, off["float32"]), None):
        raise Defect(f"{folder.name}: {defect}")
    bounds = {name: BOUNDS[name](off[name], mean_apart(taken[RIGHT], own[name])) for name in types}
    nearest = min(apart, key=lambda name: apart[name])
    measured = {
        **{name: short(off[name]) for name in types}, "nearest": nearest, "apart": short(apart[nearest]), "wrong": len(apart),
    }  # fmt: skip
    return {
        "case": folder.name, "asks": case.asks, "trained": TRAINED, "context": calls.context, "vocabulary": VOCABULARY,
        "share": calls.share, "together": calls.together, "quantised": case.quantised,
        "bounds": bounds, "ids": list(ids[: max(calls.lengths)]), "prompts": prompts,
        "tables": [{"name": one.name, "says": one.says, **_rounded(taken[one.name])} for one in tables],
    }, measured  # fmt: skip


def places(calls: Calls, prompt: int) -> list[int]:
    """Return the tokens of a prompt whose scores are compared: none that was computed before."""
    return list(range(calls.kept(prompt) + FIRST, calls.lengths[prompt], STEP))


def _defects(taken: Mapping[str, Taken], apart: Mapping[str, float], off: float) -> Iterator[str]:
    """Yield why a case cannot tell its tables apart, or which engine it would wrong. off: transformers itself in float32."""
    needed = TELLS * EXACT
    for name, distance in apart.items():
        if distance < needed:
            yield f"{name} is {distance:.2g} nats from the right table; {needed:.2g} are needed"
    wrong = list(apart)
    for at, one in enumerate(wrong):
        for other in wrong[at + 1 :]:
            distance = mean_apart(taken[one], taken[other])
            if distance < needed:
                yield f"{one} and {other} are {distance:.2g} nats apart, so neither can be named; {needed:.2g} are needed"
    if off > EXACT:
        yield f"transformers itself is {off:.2g} nats off in float32; {EXACT:.2g} may be"


# Bounds of a case by the type in which an engine computes, from the largest and the mean difference of transformers itself.
BOUNDS: dict[str, Callable[[float, float], dict[str, float]]] = {
    "float32": lambda largest, mean: {"exact": EXACT, "table": READS},
    "bfloat16": lambda largest, mean: {
        "exact": short(EXACT_BFLOAT16 * largest), "table": short(READS_BFLOAT16 * mean)
    },
    ROUNDED: lambda largest, mean: {"exact": short(EXACT_BFLOAT16 * largest), "table": short(READS_BFLOAT16 * mean)},
}  # fmt: skip


def taken_of(scores: Sequence[Array], prompts: Sequence[dict[str, Any]], ids: Sequence[int]) -> Taken:
    """Return what is compared: the scores of some tokens of each prompt, and of some tokens behind it."""
    return {
        "scores": [
            one[[place - 1 for place in prompt["places"]], [ids[place] for place in prompt["places"]]]
            for one, prompt in zip(scores, prompts, strict=True)
        ],
        "next": [one[-1][prompt["tokens"]] for one, prompt in zip(scores, prompts, strict=True)],
    }


def _compared(computed: dict[str, list[Array]], at: int) -> list[int]:
    """Return the tokens that are compared behind a prompt: those that any table makes likely."""
    kept: set[int] = set()
    for name, found in computed.items():
        order = np.argsort(-found[at][-1], kind="stable")
        kept |= {int(token) for token in order[: LIKELIEST if name == RIGHT else OF_WRONG]}
    return sorted(kept)


def differences(one: Taken, other: Taken) -> Array:
    return np.abs(np.concatenate(one["scores"] + one["next"]) - np.concatenate(other["scores"] + other["next"]))


def mean_apart(one: Taken, other: Taken) -> float:
    return float(differences(one, other).mean())


def largest_apart(one: Taken, other: Taken) -> float:
    return float(differences(one, other).max())


def _rounded(taken: Taken) -> dict[str, list[list[float]]]:
    return {key: [[round(float(value), DIGITS) for value in one] for one in lists] for key, lists in taken.items()}


def short(number: float) -> float:
    return float(f"{number:.2g}")


def dumped(found: dict[str, Any]) -> str:
    """Return JSON with a line for each prompt and each list of a table, which a diff shows singly."""
    text = {key: json.dumps(value) for key, value in found.items() if key not in ("prompts", "tables")}
    text["prompts"] = _lines(json.dumps(one) for one in found["prompts"])
    text["tables"] = _lines(json.dumps(one) for one in found["tables"])
    return "{\n" + ",\n".join(f"{json.dumps(key)}: {value}" for key, value in text.items()) + "\n}\n"


def _lines(texts: Any) -> str:
    return "[\n" + ",\n".join(texts) + "\n]"

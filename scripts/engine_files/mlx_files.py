#!/usr/bin/env python3
"""Find what each model file of mlx-lm and mlx-vlm reads of the rope keys, by asking real models of it.

Writes ropetool/families/engine_files/mlx_lm.json and mlx_vlm.json. A base or a factor of its own stands at every place
where one could be looked for; which of them a model rotates by says where it looks first, and without that place where
next. ROPETOOL_ENGINE_MLX names a Python with mlx, mlx-lm and mlx-vlm; transformers makes the small configs.

    scripts/engine_files/mlx_files.py                      every type that transformers knows, in both programs
    scripts/engine_files/mlx_files.py --only llama gemma3  only these; the others stay as they are written
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests/oracle"), str(ROOT / "scripts")]
import mlx_cases

from engine_files.recording import text_of, write_record
from engine_files.small_models import (
    CONTEXT,
    FULL,
    INSIDE,
    LENGTH,
    REMOTE,
    REMOVED,
    RENAMED,
    SLIDING,
    TRAINED,
    Subject,
    bystanders,
    key_of,
    share_places,
    usual_share,
)
from ropetool import families, names
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.families import records
from ropetool.rope.tables import RopeTable
from ropetool.runtimes import engine_formulas as engine
from ropetool.runtimes import mlx_lm, mlx_vlm
from ropetool.runtimes.base import Refuses
from ropetool.runtimes.hf_formulas import mscale_of
from ropetool.runtimes.mlx_files import Table

PROBE = ROOT / "tests/oracle/mlx_engine_probe.py"
FOLDER = ROOT / "ropetool/families/engine_files"
PYTHON = os.environ.get("ROPETOOL_ENGINE_MLX", str(Path.home() / ".cache/ropetool/engines/mlx-0.32.2/bin/python"))
STATED = (0.75, 0.875, 0.625)  # shares of a head that no model has by itself
SHARES = (*STATED, 0.5, 0.25, 1.0, 0.2, 0.4, 0.8)
TABLES: dict[str, Table] = {
    "mlx-lm": partial(mlx_lm.table, first=mlx_lm.NEWER),
    "mlx-vlm": mlx_vlm.table,
}
BASES = (names.ROPE_THETA, names.ROPE_TYPE, names.PARTIAL_ROTARY_FACTOR)
# Files that count their kinds of layer by a number, read in their source; layer_types does not occur there.
COUNTING = (
    "aya_vision", "cohere2", "gemma2", "gemma3", "gemma3_text", "llama4_text", "minicpmv4_6", "qwen3_5", "qwen3_5_moe",
    "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next",
)  # fmt: skip


class Asker:
    """The probe as a process that stays; it is started anew where a model file ends it."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[str] | None = None

    def __call__(self, program: str, config: Mapping[str, Any], lengths: tuple[int, ...] = (LENGTH,)) -> dict[str, Any]:
        if self.process is None or self.process.poll() is not None:
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": ""}
            self.process = subprocess.Popen(
                [PYTHON, str(PROBE)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                env=environment,
            )  # fmt: skip
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"program": program, "config": config, "lengths": lengths}) + "\n")
        self.process.stdin.flush()
        while True:
            line = self.process.stdout.readline()
            if not line:
                return {"error": "the program ends the process"}
            if line.startswith("{"):
                found: dict[str, Any] = json.loads(line)
                return found


class Odd(Exception):
    """What no fact says: why the type is not decoded."""


def same(layer: Mapping[str, Any], table: Any) -> bool:
    """Return whether a layer turns by this table, within what float32 tells at this length."""
    theirs, ours = np.array(layer["inv_freq"]), np.asarray(table)
    width = max(theirs.size, ours.size)
    theirs, ours = (np.pad(one, (0, width - one.size)) for one in (theirs, ours))
    return bool(np.all(np.abs(np.abs(theirs) - ours) <= 1e-5 * ours + 3e-6))


def plain(theta: float, channels: int) -> Any:
    """Return the frequencies of a base; of a number of channels that make no pairs, none that turn."""
    return engine.base_table({names.ROPE_THETA: theta}, channels) if channels % 2 == 0 and channels else np.zeros(1)


def base_places(subject: Subject, kind: str) -> list[str]:
    """Return where a base for a kind of layer could be looked for."""
    group = subject.groups.get(kind, kind)
    found = [names.ROPE_THETA, f"{names.ROPE_PARAMETERS}.{names.ROPE_THETA}"]
    if subject.family.nested:
        found = [names.ROPE_THETA, f"{names.ROPE_PARAMETERS}.{group}.{names.ROPE_THETA}", found[1]]
        if kind == SLIDING:
            found = [names.ROPE_LOCAL_BASE_FREQ, "swa_rope_theta", *found]
    return [*found, "rotary_emb_base"] if subject.family.model_type == "gpt_neox" else found


def scaling_places(subject: Subject, kind: str) -> list[str]:
    if subject.family.nested:
        group = subject.groups.get(kind, kind)
        return [names.ROPE_SCALING, f"{names.ROPE_PARAMETERS}.{group}", names.ROPE_PARAMETERS]
    return [names.ROPE_SCALING, names.ROPE_PARAMETERS]


def all_bases(subject: Subject) -> dict[str, float]:
    """Return a base of its own at each place where one could be looked for."""
    kinds = subject.family.layer_types or (FULL,)
    places = dict.fromkeys(place for kind in kinds for place in base_places(subject, kind))
    return {place: 20000.0 + 7000.0 * number for number, place in enumerate(places)}


def facts(program: str, model_type: str, ask: Asker) -> dict[str, Any] | None:
    """Return what a program's model file does with configs of a type, None where it has none."""
    try:
        subject = Subject(program, model_type, ask)
    except Exception as error:  # noqa: BLE001 - a type that has no family or no small config
        print(f"{program} {model_type}: {error}", file=sys.stderr)
        return None
    beside = bystanders(subject)
    layers = subject.layers({**beside, **all_bases(subject)})
    if isinstance(layers, str) and "not supported" in layers:
        return None
    try:
        return _facts(subject, layers, beside)
    except Odd as odd:
        return {"file": getattr(subject, "file", model_type.partition(" of ")[0]), "odd": str(odd)[:200]}


def _facts(subject: Subject, layers: list[dict[str, Any]] | str, beside: dict[str, Any]) -> dict[str, Any]:
    if isinstance(layers, str):
        raise Odd(reason(layers))
    shape = _shape(subject)
    where = _kinds(subject, layers, shape)
    found: dict[str, Any] = {"file": subject.file, "readings": {}}
    if not where:
        return {"file": subject.file}
    layouts = {layer["layout"] for layer in layers if "layout" in layer}
    if len(layouts) != 1:
        raise Odd(f"its layers pair channels in {len(layouts)} ways")
    if layouts != {"half"}:
        found["layout"] = layouts.pop()
    if any(layer.get("growth", 1.0) > 1.01 for layer in layers):
        raise Odd("its scores grow with the position")
    found |= (
        _window(subject, layers, shape, where) | _shares(subject, beside, shape, where, layers) | _head(subject, beside)
    )
    for kind, at in where.items():
        found["readings"][kind] = _reading(subject, kind, at, beside, shape, found)
    found |= _score(subject, found, beside) | ({"listed": False} if subject.file in COUNTING else {})
    if _same_readings(found["readings"]):
        found["readings"] = {FULL: found["readings"][FULL]}
    return found


def reason(error: str) -> str:
    """Return why a small model of a type was not run, in a sentence for who has a real one."""
    beside = ", which transformers' config class does not write"
    if "metal_kernel" in error:
        return "its layers run only on Apple GPUs"
    if missing := re.search(r"missing \d+ required positional arguments?: (.*)", error):
        return f"its file requires {missing[1].replace(chr(39), '')}{beside}"
    if re.match("KeyError: '(factor|original_max_position_embeddings)'", error):
        return "it uses yarn with a score temperature, which is not decoded"
    if missing := re.match(r"KeyError: '(\w+)'", error):
        return f"its file requires {missing[1]}{beside}"
    return "its file does not run a small test model of this type"


def _score(subject: Subject, found: Mapping[str, Any], beside: Mapping[str, Any]) -> dict[str, Any]:
    """Return whether mscale_all_dim multiplies the score."""
    places = found["readings"][FULL]["places"]
    place = next((place for place, outcomes in places.items() if outcomes["yarn"].endswith("scales")), None)
    if not subject.family.mla or place is None:
        return {}
    scales = []
    for mscale in ({}, {names.MSCALE: 1.0, names.MSCALE_ALL_DIM: 1.0}):
        keys = {**cells(4)["yarn"], **mscale, names.ROPE_TYPE: "yarn", names.LEGACY_TYPE: "yarn"}
        layers = subject.layers({**beside, **all_bases(subject), **{f"{place}.{key}": v for key, v in keys.items()}})
        if isinstance(layers, str):
            raise Odd("it is not clear whether mscale_all_dim multiplies the score")
        scales.append(layers[-1]["scale"])
    ratio, wanted = scales[1] / scales[0], mscale_of(4.0, 1.0) ** 2
    if abs(ratio - wanted) > 1e-4 and abs(ratio - 1) > 1e-4:
        raise Odd("it is not clear how mscale_all_dim multiplies the score")
    return {"scaled_score": True} if abs(ratio - wanted) < 1e-4 else {}


def _same_readings(readings: Mapping[str, Any]) -> bool:
    return len({json.dumps(one) for one in readings.values()}) == 1


def _shape(subject: Subject) -> Any:
    return engine.shape(HfCheckpoint(subject.config, subject.family))


def _kinds(subject: Subject, layers: list[dict[str, Any]], shape: Any) -> dict[str, list[int]]:
    """Return the places of each kind among the layers that attend, where they rotate as in transformers."""
    turning = [number for number, layer in enumerate(layers) if "inv_freq" in layer]
    ours = sorted(i for entry in shape.entries.values() if entry.table is not None for i in entry.layers)
    odd = [layer["odd"] for layer in layers if "odd" in layer]
    if odd:
        raise Odd(f"its rotation is not clear: {odd[0]}")
    if len(turning) != len(ours):
        raise Odd(f"{len(turning)} of its layers rotate, but in transformers {len(ours)}")
    if len(layers) >= max(ours, default=0) + 1 and turning != ours:
        raise Odd(f"layers {turning} rotate, in transformers {ours}")
    if not turning and subject.family.rotates != "none":
        raise Odd("its rotation is not visible at the attention kernel")
    order = dict(zip(ours, turning, strict=True))
    return {kind: [order[i] for i in entry.layers] for kind, entry in shape.entries.items() if entry.table is not None}


def _window(
    subject: Subject, layers: list[dict[str, Any]], shape: Any, where: Mapping[str, list[int]]
) -> dict[str, Any]:
    found = set()
    alternate = subject.family.sliding_window == "alternate"  # some layers under one table
    for kind, places in where.items():
        ours = shape.entries[kind].sliding_window
        for place in places:
            theirs = layers[place]["window"]
            if shape.entries[kind].table is not None and alternate:
                found.add(theirs is not None)
            elif ours is not None and ours < LENGTH:
                found.add(theirs == ours if theirs is not None else False)
                if theirs not in (None, ours):
                    raise Odd(f"a window of {theirs}, in transformers {ours}")
            elif theirs is not None:
                raise Odd(f"layers slide that do not in transformers, by {theirs}")
    if found == {True, False}:
        return {"window": True}  # some layers under one table
    return {"window": True} if found == {True} else {}


def _shares(
    subject: Subject, beside: Mapping[str, Any], shape: Any, where: Mapping[str, list[int]], layers: list[dict[str, Any]]
) -> dict[str, Any]:  # fmt: skip
    """Return where the share of a head that rotates is looked for, and what it is where none is stated, 0 for an error."""
    head = shape.entries[FULL].head_dim
    bases = all_bases(subject)

    def share(layers: list[dict[str, Any]] | str) -> float | None:
        if isinstance(layers, str):
            return None
        turns = np.array(layers[where[FULL][-1]]["inv_freq"])
        for base in bases.values():
            for one in SHARES:
                if same({"inv_freq": turns}, plain(base, int(head * one))):
                    return one
        return next((one for one in SHARES if _fits(turns, int(head * one))), None)

    if not usual_share(subject):
        now = share(layers)
        if now is None:
            raise Odd("it is not clear which channels of a head rotate")
        return {"share": now} if now != 1 else {}
    stated = dict(zip(share_places(subject), STATED, strict=False))
    read: list[str] = []
    while True:
        left = {place: REMOVED if place in read else value for place, value in stated.items()}
        now = share(subject.layers({**beside, **bases, **left}))
        if now is None and not read:
            raise Odd("it is not clear which share of a head rotates")
        first = next((place for place, value in left.items() if value == now), None)
        if first is None:
            return ({"shares": read} if read else {}) | ({"share": now or 0.0} if now != 1 else {})
        read.append(first)


def _fits(turns: Any, channels: int) -> bool:
    """Return whether these are the plain frequencies of some base over so many channels."""
    if channels < 4:
        return False
    theta = float(turns[1]) ** (-channels / 2) if turns[1] > 0 else 0.0
    return theta > 1 and same({"inv_freq": turns}, plain(theta, channels))


def _head(subject: Subject, beside: Mapping[str, Any]) -> dict[str, Any]:
    key = subject.family.head_dim_key
    if subject.family.mla or subject.part(subject.config).get(key) is None:
        return {}
    config = subject.made({**beside, **all_bases(subject)})
    subject.part(config).pop(key)
    absent = subject.ask(subject.program, config, (LENGTH,))
    if "error" in absent and "required" in absent["error"] and key in absent["error"]:
        return {"head_dim": "needed"}
    ours = subject.family.default_head_dim
    part = subject.part(subject.config)
    split = part["hidden_size"] // part["num_attention_heads"]
    if ours not in (None, split):
        return {"head_dim": "odd"}
    return {}


def _reading(
    subject: Subject, kind: str, at: list[int], beside: Mapping[str, Any], shape: Any, known: Mapping[str, Any]
) -> dict[str, Any]:
    """Return where the base and the scaling of a kind of layer are looked for, and what comes of each rope type."""
    share = usual_share(subject) if "shares" in known else known.get("share", 1.0)
    channels = int(shape.entries[kind].head_dim * (share or 1.0))
    bases = all_bases(subject)
    read: list[str] = []
    default: float | None = None
    while True:
        left = {place: value for place, value in bases.items() if place not in read}
        layers = subject.layers({**beside, **left})
        if isinstance(layers, str):
            break
        turns = layers[at[0]]
        place = next((p for p, value in left.items() if same(turns, plain(value, channels))), None)
        if place is None:
            default = _known_base(turns, channels)
            break
        read.append(place)
    reading: dict[str, Any] = {"bases": read}
    if default is not None:
        reading["base"] = default
    theta = dict.fromkeys(bases, 20000.0) if read else {}
    reading["places"] = _places(subject, kind, at, {**beside, **theta}, 20000.0 if read else default, channels)
    return reading


def _known_base(layer: Mapping[str, Any], channels: int) -> float:
    for theta in (10000.0, 1e6, 5e5, 1e5, 2e5, 3e5, 5e6, 1e7, 4e5, 1.5e5, 8e6, 2e6, 3e6, 5e4, 11008.0, 5e3, 1e11):
        if same(layer, plain(theta, channels)):
            return theta
    raise Odd("its default base is not clear")


def cells(channels: int) -> dict[str, dict[str, Any]]:
    """Return one object of scaling keys for each rope type."""
    lists = {"short_factor": [1.0 + 0.01 * i for i in range(channels // 2)]}
    lists["long_factor"] = [1.0 + 0.1 * i for i in range(channels // 2)]
    return {
        "linear": {"factor": 4.0},
        "dynamic": {"factor": 4.0, "original_max_position_embeddings": TRAINED},
        "llama3": {
            "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 8.0, "original_max_position_embeddings": TRAINED,
        },
        "yarn": {"factor": 4.0, "original_max_position_embeddings": TRAINED},
        "longrope": {"factor": 4.0, "original_max_position_embeddings": TRAINED, **lists},
        "proportional": {names.PARTIAL_ROTARY_FACTOR: 0.25},
    }  # fmt: skip


def _places(
    subject: Subject, kind: str, at: list[int], plain_keys: Mapping[str, Any], theta: float | None, channels: int
) -> dict[str, Any]:  # fmt: skip
    """Return the objects of scaling keys that are looked at, with what comes of each rope type."""
    if theta is None:
        raise Odd("its default base is not clear")
    found: dict[str, Any] = {}
    normal = subject.layers(plain_keys)
    for place in scaling_places(subject, kind):

        def come_of(rope_type: str, *stated: str, place: str = place) -> str:
            full = {**cells(channels)[rope_type], **dict.fromkeys(stated, rope_type)}
            values = {**plain_keys, **{f"{place}.{key}": value for key, value in full.items()}}
            if place == names.ROPE_SCALING:  # what stands beside the base in rope_parameters stands in it too
                near = {k.rpartition(".")[2]: v for k, v in plain_keys.items() if k.count(".") == 1}
                values |= {f"{place}.{k}": v for k, v in {**near, **full}.items() if k not in BASES}
            return _outcome(subject, subject.layers(values), normal, at, full, theta, channels)

        both = (names.ROPE_TYPE, names.LEGACY_TYPE)
        linear = [come_of("linear", names.ROPE_TYPE), come_of("linear", *both)]
        outcomes = {"linear": linear[0] if linear[0] == linear[1] else " ".join(linear)}
        proportional = any(
            one.get(names.ROPE_TYPE) == "proportional" for one in subject.family.default_rope_keys.values()
        )
        for rope_type in ("yarn", "longrope", "llama3", "dynamic", *(("proportional",) if proportional else ())):
            if set(outcomes.values()) == {"ignored"} and rope_type in ("llama3", "dynamic"):
                outcomes[rope_type] = "ignored"
                continue
            words = [come_of(rope_type, names.ROPE_TYPE)]
            words += [come_of(rope_type, *both)] if linear[0] != linear[1] or words[0] == "stops" else words
            outcomes[rope_type] = words[0] if words[0] == words[1] else " ".join(words)
        near_bases = any(base.startswith(f"{place}.") for base in all_bases(subject))
        if not near_bases and isinstance(subject.layers({**plain_keys, place: REMOVED}), str):
            outcomes["absent"] = "stops" if isinstance(subject.layers({**plain_keys, place: None}), str) else "named"
        if proportional and near_bases and set(outcomes.values()) != {"ignored"}:
            outcomes["absent"] = "odd"  # its class fills in keys of its own
        if set(outcomes.values()) != {"ignored"}:
            found[place] = outcomes
    return found


def _outcome(
    subject: Subject, layers: Any, normal: Any, at: list[int], keys: Mapping[str, Any], theta: float, channels: int
) -> str:
    if isinstance(layers, str):
        return "stops"
    layer, before = layers[at[0]], normal[at[0]]
    if "inv_freq" not in layer:
        return "odd"
    amplitude = layer["amplitude"] / before["amplitude"]
    table = _table(subject, {**keys, names.ROPE_THETA: theta}, channels)
    if isinstance(table, RopeTable):
        regime = table.at(LENGTH)
        if same(layer, regime.inv_freq) and abs(amplitude / regime.attention_factor - 1) < 1e-3:
            return "scales"
        if subject.family.norm_after and same(layer, regime.inv_freq) and abs(amplitude - 1) < 1e-3:
            return "scales"
    if same(layer, plain(theta, channels)) and abs(amplitude - 1) < 1e-3:
        return "ignored"
    return "odd"


def _table(subject: Subject, keys: Mapping[str, Any], channels: int) -> RopeTable | None:
    """Return the table that the program's own formulas give for these keys, None where they stop."""
    base = engine.base_table(keys, channels)
    part = {names.MAX_POSITION_EMBEDDINGS: CONTEXT}
    keys = {k: v for k, v in keys.items() if k != names.LEGACY_TYPE}
    try:
        found: RopeTable = TABLES[subject.program](keys, base, part, CONTEXT)
    except Refuses:
        return None
    return found


def asked_as(name: str) -> str:
    """Return what `small` knows an entry of the files by."""
    return name if name in INSIDE else name.partition(" of ")[0]


def record(program: str, only: list[str], ask: Asker) -> None:
    """Write what real models answer in the cases of tests/oracle/mlx_cases.py, for types that are decoded."""
    known = json.loads((FOLDER / f"{program.replace('-', '_')}.json").read_text(encoding="utf-8"))
    decoded = [name for name, one in known.items() if "odd" not in one and "readings" in one]
    chosen = [name for name in decoded if not only or name.partition(" of ")[0] in only]
    subjects = {name: Subject(program, asked_as(name), ask) for name in chosen}
    write_record(program, subjects, before=mlx_cases.recorded(program) if only else {})


def models() -> dict[str, Any]:
    """Return the model files of each program, and which types it runs by the file of another."""
    site = next(Path(PYTHON).parents[1].glob("lib/python*/site-packages"))
    found = {}
    for program in TABLES:
        folder = site / program.replace("-", "_")
        body = ast.parse((folder / "utils.py").read_text(encoding="utf-8")).body
        tables = [
            one.value for one in body if isinstance(one, ast.Assign) and "MODEL_REMAPPING" in ast.dump(one.targets[0])
        ]
        files = sorted(one.stem for one in (folder / "models").iterdir() if not one.name.startswith("__"))
        found[program] = {"renamed": dict(sorted(ast.literal_eval(tables[0]).items())), "files": files}
    return found


def by_hand(program: str, model_type: str) -> bool:
    """Return whether a family's own file says how the program runs it."""
    known = None if " of " in model_type else families.find(model_type)
    return program == mlx_lm.NAME and known is not None and known.own_name and known.mlx_lm is not None


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", metavar="TYPE", default=[])
    parser.add_argument("--program", choices=sorted(TABLES))
    parser.add_argument("--record", action="store_true", help="write what tests compare with instead")
    options = parser.parse_args()
    import transformers

    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    (FOLDER / "mlx_models.json").write_text(json.dumps(models(), indent=1) + "\n", encoding="utf-8")
    ask = Asker()
    if options.record:
        for program in [options.program] if options.program else sorted(TABLES):
            record(program, options.only, ask)
        return 0
    for program in [options.program] if options.program else sorted(TABLES):
        file = FOLDER / f"{program.replace('-', '_')}.json"
        written = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        found = dict(written) if options.only else {}
        for model_type in options.only or [*sorted(records.names()), *REMOTE, *RENAMED, *INSIDE]:
            name = key_of(model_type)
            if name is None or by_hand(program, model_type):
                continue
            known = facts(program, model_type, ask)
            found.pop(name, None)
            if known is not None:
                found[name] = known
                print(f"{program} {name}: {json.dumps(known)[:300]}", file=sys.stderr, flush=True)
            file.write_text(text_of(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What small models of mlx-lm, mlx-vlm and exllamav3 are asked beyond what their facts were found by, and the comparison.

scripts/engine_files/mlx_files.py and exllamav3_files.py ask real ones with --record and write mlx_lm_files.json, mlx_vlm_files.json and
exllamav3_files.json; tests compare the decoders with these.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ropetool import families, runtimes
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.rope.tables import LayerRope, RopeSet
from ropetool.runtimes import NotKnown, Refuses

HERE = Path(__file__).parent
TRAINED, CONTEXT, LENGTH = 64, 256, 300
THETA = 30000.0
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": TRAINED}
CELLS: dict[str, dict[str, Any]] = {
    "plain": {"rope_type": "default"},
    "baseless": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "yarn": YARN,
    "yarn-attention-1": {**YARN, "attention_factor": 1.0},
    "yarn-mscale": {**YARN, "mscale": 0.7},
    "yarn-mscales": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
    "yarn-other-ratio": {**YARN, "factor": 2.0},  # than that of the two lengths
    "yarn-exact": {**YARN, "truncate": False, "beta_fast": 16.0},
    "llama3": {
        "rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 8.0,
        "original_max_position_embeddings": TRAINED,
    },
}  # fmt: skip
# Cells by style: v4 has rope_type alone, v4-type `type` beside it, v5 all in rope_parameters.
CASES = (
    "plain v4", "plain v5", "linear v4", "linear v4-type", "yarn v4", "yarn v5", "yarn-attention-1 v4-type",
    "yarn-mscale v4-type", "yarn-mscales v4-type", "yarn-exact v5", "llama3 v4-type", "longrope v4-type",
)  # fmt: skip
MORE = {"exllamav3": ("yarn-other-ratio v4", "baseless v4")}


def asked(program: str) -> tuple[str, ...]:
    """Return the cases that a program is asked."""
    return CASES + MORE.get(program, ())


def keys(cell: str, channels: int) -> dict[str, Any]:
    """Return the scaling keys of a cell."""
    if cell != "longrope":
        return dict(CELLS[cell])
    short, long = ([1.0 + step * i for i in range(channels // 2)] for step in (0.01, 0.1))
    return {**YARN, "rope_type": "longrope", "short_factor": short, "long_factor": long}


def decoded(program: str, config: Mapping[str, Any]) -> RopeSet | str:
    """Return what the decoder says of a config: a RopeSet, or `not known` or `refuses` with the reason."""
    try:
        return runtimes.get(program).decode(HfCheckpoint(config, families.of_config(config)))
    except NotKnown as reason:
        return f"not known: {reason}"
    except Refuses as reason:
        return f"refuses: {reason}"


def differences(program: str, config: Mapping[str, Any], answer: Mapping[str, Any]) -> list[str]:
    """Return where a decoder and a real model differ."""
    found = decoded(program, config)
    if isinstance(found, str):
        if "error" in answer and found.startswith("refuses"):
            return []
        return [f"{found}; the program: {answer.get('error', 'runs it')}"]
    if "error" in answer:
        return [f"the program stops: {answer['error']}"]
    order = sorted(i for entry in found.entries.values() if entry.table is not None for i in entry.layers)
    turning = [layer for layer in answer["layers"] if "inv_freq" in layer]
    if len(order) != len(turning):
        return [f"{len(turning)} layers rotate, decoded {len(order)}"]
    reasons = []
    for kind, entry in found.entries.items():
        for index in entry.layers if entry.table is not None else ():
            reasons += [f"{kind} {index}: {reason}" for reason in _layer(entry, turning[order.index(index)])]
    return reasons


def _layer(entry: LayerRope, layer: Mapping[str, Any]) -> list[str]:
    assert entry.table is not None
    reasons = []
    regime = entry.table.at(LENGTH)
    theirs, ours = np.array(layer["inv_freq"]), regime.inv_freq
    width = max(theirs.size, ours.size)
    theirs, ours = (np.pad(one, (0, width - one.size)) for one in (theirs, ours))
    off = np.abs(np.abs(theirs) - ours) - 3e-6 * ours
    if np.any(off > 1e-6):
        reasons.append(f"inv_freq off by {float(off.max()):.2g}")
    if layer["layout"] != entry.layout:
        reasons.append(f"layout {layer['layout']} against {entry.layout}")
    if not math.isclose(layer["factor"], regime.attention_factor, rel_tol=2e-4):
        reasons.append(f"factor {layer['factor']} against {regime.attention_factor}")
    if not math.isclose(layer["score"], entry.softmax_multiplier, rel_tol=1e-4):
        reasons.append(f"score times {layer['score']} against {entry.softmax_multiplier}")
    grows = None if entry.temperature is None else [entry.temperature.beta, entry.temperature.length]
    if layer.get("temperature") != grows:
        reasons.append(f"temperature {layer.get('temperature')} against {grows}")
    hides = entry.sliding_window if entry.sliding_window and entry.sliding_window < LENGTH else None
    if layer["window"] != hides:
        reasons.append(f"window {layer['window']} against {hides}")
    return reasons


def file(program: str) -> Path:
    """Return where the answers of a program are recorded."""
    return HERE / f"{program.replace('-', '_')}_files.json"


@cache
def recorded(program: str) -> dict[str, Any]:
    """Return the recorded answers of a program."""
    data: dict[str, Any] = json.loads(file(program).read_text(encoding="utf-8"))
    return data


def cases(program: str) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Return the recorded configs and answers of a program, by type, cell and style."""
    data = recorded(program)
    found = {}
    for name, one in data["types"].items():
        for case, (changes, place) in one["cases"].items():
            answer = data["answers"][place]
            if "layers" in answer:
                layers = [
                    {**layer, **data["tables"][layer["table"]]} if "table" in layer else layer
                    for layer in answer["layers"]
                ]
                answer = {"layers": layers}
            found[f"{name} {case}"] = (changed(one["config"], one["path"], changes), answer)
    return found


def type_of(case: str) -> str:
    """Return the type of a recorded case, whose name ends in the cell and the style."""
    return case.rpartition(" ")[0].rpartition(" ")[0]


def changed(config: Mapping[str, Any], path: list[str], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config with keys set in its text model's part, at the top too where those of the part stand there."""
    if not path:
        return {**config, **changes}
    (key,) = path
    flat = "num_hidden_layers" in config
    return {**config, key: {**config[key], **changes}, **(changes if flat else {})}

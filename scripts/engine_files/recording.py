"""The record of what real small models answer in the cases of tests/oracle/mlx_cases.py, and facts as text, an entry a line."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Mapping
from typing import Any

import mlx_cases

from engine_files.small_models import FLAT, FULL, Subject, bystanders, usual_share
from ropetool import names
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.runtimes import engine_formulas as engine

NOTHING: Mapping[str, Any] = {}
# What decides nothing of rotation, to keep the record short.
DROPPED = (
    "transformers_version",
    "id2label",
    "label2id",
    "dtype",
    "_name_or_path",
    "problem_type",
    "return_dict",
    "architectures",
)


def text_of(found: Mapping[str, Any]) -> str:
    lines = [f"  {json.dumps(name)}: {json.dumps(found[name], sort_keys=True)}" for name in sorted(found)]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def write_record(
    program: str,
    subjects: Mapping[str, Subject],
    *,
    whole: bool = False,
    made_with: str = "",
    before: Mapping[str, Any] = NOTHING,
) -> None:
    """Write what models of these types answer; whole: with the whole config, of which a decoder reads a part.

    before: what is recorded already of other types, which stays.
    """
    answers: list[Any] = list(before.get("answers", []))
    tables: list[Any] = list(before.get("tables", []))
    found: dict[str, Any] = dict(before.get("types", {}))
    for name, subject in subjects.items():
        config, cases = _recorded_cases(subject)
        around = _with_context(subject)
        if whole:
            config = around = pruned(around, subject.path)
        asked = {case: _told(subject, mlx_cases.changed(around, subject.path, set_)) for case, set_ in cases.items()}
        first = asked["plain v4"] if "layers" in asked["plain v4"] else asked["plain v5"]
        places = {case: _index(answers, _packed(one, first, tables)) for case, one in asked.items()}
        stated = {case: [changes, places[case]] for case, changes in cases.items()}
        found[name] = {"config": config, "path": subject.path, "cases": stated}
        for case, changes in cases.items():
            shown = _unpacked(answers[places[case]], tables)
            for reason in mlx_cases.differences(program, mlx_cases.changed(config, subject.path, changes), shown):
                print(f"{program} {name} {case}: {reason}", file=sys.stderr, flush=True)
        text = {"made_with": made_with, "types": found, "answers": answers, "tables": tables}
        mlx_cases.file(program).write_text(_lines(text), encoding="utf-8")
        print(f"{program} {name}", file=sys.stderr, flush=True)


def pruned(config: Mapping[str, Any], path: list[str]) -> dict[str, Any]:
    """Return a config without what decides nothing of rotation, and without null in the text model's part."""
    found = {k: v for k, v in config.items() if k == "architectures" or k not in DROPPED}
    if path:
        return {k: pruned(v, path[1:]) if k == path[0] else _bare(v) for k, v in found.items()}
    return {k: v for k, v in found.items() if v is not None}


def _bare(value: Any) -> Any:
    return {k: v for k, v in value.items() if k not in DROPPED} if isinstance(value, dict) else value


def _lines(data: Mapping[str, Any]) -> str:
    """Return JSON with an entry a line, so that a difference can be read."""
    types = ",\n".join(f"{json.dumps(name)}: {json.dumps(one)}" for name, one in sorted(data["types"].items()))
    rest = [f'"{key}": [\n' + ",\n".join(json.dumps(one) for one in data[key]) + "\n]" for key in ("answers", "tables")]
    made = f'"made_with": {json.dumps(data["made_with"])},\n' if data["made_with"] else ""
    return f'{{{made}"types": {{\n{types}\n}},\n' + ",\n".join(rest) + "}\n"


def _recorded_cases(subject: Subject) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return the config without rope keys, with only what a decoder reads, and what each case sets in it."""
    whole = _with_context(subject)
    part = {key: value for key, value in subject.part(whole).items() if value is not None and key not in DROPPED}
    model_type = {"model_type": whole["model_type"]}
    config = (
        part
        if not subject.path
        else {**(part if whole["model_type"] in FLAT else {}), **model_type, subject.path[0]: part}
    )
    head = engine.shape(HfCheckpoint(config, subject.family)).entries[FULL].head_dim
    share = usual_share(subject)
    near = {key.rpartition(".")[2]: v for key, v in bystanders(subject).items() if key.count(".") == 1}
    near.pop(names.ROPE_TYPE, None)
    cases = {}
    for case in mlx_cases.asked(subject.program):
        cell, style = case.split()
        keys = mlx_cases.keys(cell, int(head * (share or 1.0)))
        cases[case] = _style(subject, style, keys, near, share)
        if cell == "baseless":
            del cases[case][names.ROPE_THETA]
    return config, cases


def _with_context(subject: Subject) -> dict[str, Any]:
    config = copy.deepcopy(subject.config)
    for part in (config, subject.part(config)):
        part[subject.family.context_key] = mlx_cases.CONTEXT
    return config


def _style(
    subject: Subject, style: str, keys: dict[str, Any], near: Mapping[str, Any], share: float | None
) -> dict[str, Any]:
    top = {names.PARTIAL_ROTARY_FACTOR: share} if share else {}
    local = {names.ROPE_THETA: 10000.0}
    if style == "v5":
        if subject.family.nested:
            nested = {group: {names.ROPE_TYPE: "default", **local} for group in subject.groups.values()}
            return {
                names.ROPE_PARAMETERS: {**nested, subject.groups[FULL]: {**keys, names.ROPE_THETA: mlx_cases.THETA}}
            }
        return {names.ROPE_PARAMETERS: {**near, **top, **keys, names.ROPE_THETA: mlx_cases.THETA}}
    if style == "v4-type":
        keys = {**keys, names.LEGACY_TYPE: keys[names.ROPE_TYPE]}
    near = {key: value for key, value in near.items() if key != names.PARTIAL_ROTARY_FACTOR}
    scaling = {**near, **keys} if near or keys[names.ROPE_TYPE] != "default" else None
    return {**top, names.ROPE_THETA: mlx_cases.THETA, names.ROPE_SCALING: scaling} | (
        {names.ROPE_LOCAL_BASE_FREQ: 10000.0} if subject.family.has_local_base else {}
    )


def _told(subject: Subject, config: dict[str, Any]) -> dict[str, Any]:
    found = subject.ask(subject.program, config, (mlx_cases.LENGTH,))
    if "lengths" not in found:
        return {"error": str(found.get("error") or found.get("stopped"))[:100]}
    return {"layers": found["lengths"][str(mlx_cases.LENGTH)]}


def _packed(answer: dict[str, Any], plain_answer: dict[str, Any], tables: list[Any]) -> dict[str, Any]:
    """Return an answer with its tables as places in a list, and sizes as ratios to those of the plain model."""
    if "layers" not in answer:
        return answer
    layers = []
    for layer, before in zip(answer["layers"], plain_answer["layers"], strict=True):
        if "inv_freq" not in layer:
            layers.append({"window": layer["window"]})
            continue
        table = {
            "inv_freq": [
                abs(float(f"{x:.7f}")) if abs(x) < 1e-3 else float(f"{abs(x):.6g}") for x in layer["inv_freq"]
            ],
            "layout": layer["layout"],
        }
        factor = layer["amplitude"] / before["amplitude"] if before.get("amplitude") else 1.0
        layers.append({
            "table": _index(tables, table), "window": layer["window"], "factor": float(f"{factor:.5f}"),
            "score": float(f"{layer['scale'] / before['scale']:.6g}"),
            **({"temperature": layer["temperature"]} if layer.get("temperature") else {}),
        })  # fmt: skip
    return {"layers": layers}


def _unpacked(answer: dict[str, Any], tables: list[Any]) -> dict[str, Any]:
    if "layers" not in answer:
        return answer
    return {"layers": [{**one, **tables[one["table"]]} if "table" in one else one for one in answer["layers"]]}


def _index(known: list[Any], value: Any) -> int:
    if value not in known:
        known.append(value)
    return known.index(value)

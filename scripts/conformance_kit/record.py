"""What was measured: the kit that it was measured with, and the scores of each engine. tests/conformance/scores.json."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

from conformance_kit import kept
from conformance_kit.cases import CASES, SEED, TRAINED, VERSION, config

ROOT = Path(__file__).resolve().parents[2]
RESULT = ROOT / "tests" / "conformance" / "scores.json"
SCORER = Path(__file__).parent / "shipped" / "score.py"
WEIGHTS = "model.safetensors"


def known() -> dict[str, Any]:
    """Return the record; empty where nothing was measured."""
    found: dict[str, Any] = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.exists() else {}
    return found


def fingerprint() -> str:
    """Return the sha256 of the data that the checkpoints, prompts and mistakes of the kit are built from."""
    cases = {
        name: [
            case.asks,
            config(case),
            {wrong: config(case, changes) for wrong, changes in case.wrong.items()},
            case.gguf,
            case.engines,
            asdict(case.calls),
            case.quantised,
        ]
        for name, case in CASES.items()
    }
    text = json.dumps([VERSION, SEED, TRAINED, cases], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def scorer() -> ModuleType:
    """Return the scorer that the kit ships."""
    spec = importlib.util.spec_from_file_location("conformance_score", SCORER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def add(kit: Path, answers: Path, engine: str) -> None:
    """Score answers and keep the result; scores of another version of the kit are dropped.

    engine: the name by which scripts/conformance runs it.
    Raises: ValueError for a kit in part, of another version, or with other golden values.
    """
    manifest = json.loads((kit / "manifest.json").read_text(encoding="utf-8"))
    if manifest["version"] != VERSION or list(manifest["cases"]) != list(CASES):
        raise ValueError(f"{kit} is not the whole kit of version {VERSION}; make it anew")
    of_kit = {
        "version": VERSION, "cases": fingerprint(), "made_with": manifest["made_with"],
        "files": len(manifest["files"]), "bytes": sum(one["bytes"] for one in manifest["files"].values()),
        "measured": {name: case["measured"] for name, case in manifest["cases"].items()},
        "weights": {
            name: one["sha256"] for name, one in manifest["files"].items() if name.endswith((WEIGHTS, ".gguf"))
        },
    }  # fmt: skip
    before = known()
    same = all(before.get("kit", {}).get(key) == of_kit[key] for key in ("version", "cases", "weights"))
    if not same:
        kept.write(kit)
    elif case := kept.difference(kit):
        raise ValueError(f"the golden values of {case} in {kit} are not the kept ones; raise VERSION")
    engines = before["engines"] if same else {}
    score = scorer()
    scored = score.score(kit, manifest, json.loads(answers.read_text(encoding="utf-8")), str(answers))
    engines[f"{engine} {scored['dtype']}"] = scored
    RESULT.write_text(_dumped({"kit": of_kit, "engines": dict(sorted(engines.items()))}), encoding="utf-8")


def _dumped(found: dict[str, Any]) -> str:
    """Return JSON with a line a case."""
    kit = {**found["kit"]}
    measured, weights = kit.pop("measured"), kit.pop("weights")
    head = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in kit.items()]
    head += [f'"measured": {_lines(measured)}', f'"weights": {_lines(weights)}']
    engines = []
    for name, one in found["engines"].items():
        about = {key: value for key, value in one.items() if key != "cases"}
        engines.append(f'{json.dumps(name)}: {{{json.dumps(about)[1:-1]}, "cases": {_lines(one["cases"])}}}')
    return "{\n" + '"kit": {\n' + ",\n".join(head) + '\n},\n"engines": {\n' + ",\n".join(engines) + "\n}\n}\n"


def _lines(entries: dict[str, Any]) -> str:
    return "{\n" + ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in entries.items()) + "\n}"

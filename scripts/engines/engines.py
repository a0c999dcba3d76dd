#!/usr/bin/env python3
"""Run tiny checkpoints in a real engine, whole, and hold its log probabilities against what our decoder says it computes.

scripts/engines/run has the engine installed and starts this. Each family is one checkpoint with random weights, as it is and in
every way that ropetool extends it; the reference is transformers with the claimed tables in its rotary modules.

    scripts/engines/run --engine vllm                        every family of the list; writes tests/oracle/engines_vllm.json
    scripts/engines/run --engine vllm --families llama,phi3  these alone; the others stay as recorded
    scripts/engines/run --engine vllm --check --families llama --cells plain,yarn
                                                         run, compare, write nothing; exit 1 where a cell is unexplained
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from engine_grid import judging, models
from engine_grid.child import Engine, Stopped
from engine_grid.judging import EXPLAINED, NOT_KNOWN, NOT_MADE, REFUSED, UNEXPLAINED
from engine_grid.recorded import Recorded

from ropetool import names, runtimes

PROGRAMS = {"vllm": "engine_vllm.py", "mlx-lm": "engine_mlx_lm.py"}
PYTHONS = {"vllm": "ROPETOOL_ENGINE_VLLM", "mlx-lm": "ROPETOOL_ENGINE_MLX"}
VERSIONED = {"vllm": "vllm", "mlx-lm": "mlx-lm"}  # the package whose version says which decoder
OLD_KEYS = ("mlx-lm",)  # whose model files look for the keys that older releases of transformers wrote
TOKENS = range(3, 127)  # of the text: neither padding nor an end
Cell = dict[str, Any]


class Grid:
    """A run of the grid in one engine."""

    def __init__(self, engine: str, process: Engine, runtime: str, work: Path) -> None:
        self.name, self.process, self.runtime, self.work = engine, process, runtime, work

    def family(self, model_type: str, wanted: Mapping[str, Any]) -> Iterator[tuple[str, Cell]]:
        """Yield the cells of a family, made in a folder of its own that is then removed."""
        folder = self.work / "models" / model_type
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        try:
            source = models.make(model_type, folder / "source")
            if self.name in OLD_KEYS:
                models.state_old_keys(source)
            plain = runtimes.get("transformers").decode(judging.view(models.read(source)))
            for name, made in models.cells(source, self.runtime, wanted):
                started = time.monotonic()
                cell = self.cell(source, plain, made) if isinstance(made, Path) else _not_made(made)
                yield name, cell
                _tell(model_type, name, cell, time.monotonic() - started)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def cell(self, source: Path, plain: Any, folder: Path) -> Cell:
        """Return what a checkpoint came to."""
        from engine_grid.reference import NotPut, Reference

        config = models.read(folder)
        length = _length(config) - 1  # the engine generates one token more
        cell: Cell = {"config": config, "length": length}
        claim = judging.claim(self.runtime, config, length + 1)
        cell["claim"] = claim
        ids = np.random.default_rng(0).integers(TOKENS.start, TOKENS.stop, length).tolist()
        try:
            engine = self._asked(folder, ids)
        except Stopped as stopped:
            verdict = REFUSED if "refuses" in claim else UNEXPLAINED
            return cell | {"verdict": verdict, "stopped": str(stopped)[:300]}
        if "refuses" in claim:
            return cell | {"verdict": UNEXPLAINED, "stopped": ""}
        view = judging.view(config)
        decoder = self.runtime if "layers" in claim else "transformers"
        rope = runtimes.get(decoder).decode(view)
        unscaled = folder
        if folder != source:  # its weights, which may be baked, under the config that asks for no scaling
            unscaled = folder.with_name(f"{folder.name}-unscaled")
            shutil.copytree(folder, unscaled)
            models.write(unscaled, models.read(source))
        try:
            reference = Reference(unscaled)
            reference.put(rope, view.family, length + 1, plain)
            ours = reference.log_probs(ids)
            reference.put(judging.off(rope), view.family, length + 1, plain)
            seen = float(np.max(np.abs(reference.log_probs(ids) - ours)))
        except NotPut as reason:
            return cell | {"verdict": UNEXPLAINED, "stopped": f"no reference: {reason}"}
        difference = float(np.max(np.abs(engine - ours)))
        agrees = judging.agrees(difference, seen)
        verdict = EXPLAINED if agrees else UNEXPLAINED
        cell |= {"difference": float(f"{difference:.2g}"), "seen": float(f"{seen:.2g}")}
        cell["spread"] = float(f"{float(np.std(ours)):.2g}")
        if "not known" in claim:
            return cell | {"verdict": NOT_KNOWN, "as transformers": agrees}
        return cell | {"verdict": verdict}

    def _asked(self, folder: Path, ids: list[int]) -> Any:
        """Return the engine's answer; one that was given before for the same files is kept in the work folder."""
        digest = hashlib.sha256(json.dumps([models.read(folder), ids, self.name], sort_keys=True).encode())
        for file in sorted(folder.glob("*.safetensors")):
            digest.update(file.read_bytes())
        kept = self.work / "answers" / digest.hexdigest()[:24]
        kept.parent.mkdir(exist_ok=True)
        if kept.with_suffix(".npy").is_file():
            return np.load(kept.with_suffix(".npy"))
        if kept.with_suffix(".txt").is_file():
            raise Stopped(kept.with_suffix(".txt").read_text())
        try:
            return self.process.log_probs(folder, ids, kept.with_suffix(".npy"))
        except Stopped as stopped:
            kept.with_suffix(".txt").write_text(str(stopped))
            raise


def _length(config: Mapping[str, Any]) -> int:
    """Return the context that a checkpoint states: the trained length, or the longer one."""
    longer = models.TRAINED * models.FACTOR
    return longer if f'"{names.MAX_POSITION_EMBEDDINGS}": {longer}' in json.dumps(config) else models.TRAINED


def _not_made(reason: str) -> Cell:
    return {"verdict": NOT_MADE, "reason": reason}


def _tell(model_type: str, name: str, cell: Cell, seconds: float) -> None:
    more = {
        key: cell[key]
        for key in ("difference", "seen", "spread", "as transformers", "stopped", "reason")
        if key in cell
    }
    if cell["verdict"] == UNEXPLAINED:
        more |= {key: True for key in ("refuses", "not known") if key in cell["claim"]}
    print(f"{model_type}, {name}: {cell['verdict']} {more} ({seconds:.1f} s)", file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--engine", choices=sorted(PROGRAMS), required=True)
    parser.add_argument("--families", help="model types, divided by commas; those recorded where left out")
    parser.add_argument("--cells", help="columns, divided by commas; all where left out")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where a cell is unexplained")
    parser.add_argument("--keep", type=Path, help="a folder in which the engine's answers are kept for the next run")
    options = parser.parse_args()
    python = os.environ.get(PYTHONS[options.engine])
    if not python:
        parser.error(
            f"{PYTHONS[options.engine]} names no interpreter of {options.engine}; scripts/engines/run has it installed"
        )
    wanted = dict.fromkeys(options.cells.split(",") if options.cells else models.CELLS)
    if unknown := wanted.keys() - models.CELLS.keys():
        parser.error(f"there is no cell {', '.join(sorted(unknown))}; there are {', '.join(models.CELLS)}")
    recorded = Recorded(options.engine)
    asked = options.families.split(",") if options.families else sorted(recorded.families)
    with tempfile.TemporaryDirectory() as scratch:
        work = options.keep or Path(scratch)
        work.mkdir(parents=True, exist_ok=True)
        with Engine(python, Path(__file__).with_name(PROGRAMS[options.engine]), work / "engine.log") as process:
            return _run(options.engine, process, work, asked, wanted, recorded, write=not options.check)


def _run(
    engine: str,
    process: Engine,
    work: Path,
    asked: list[str],
    wanted: Mapping[str, Any],
    recorded: Recorded,
    *,
    write: bool,
) -> int:
    engine_version = process.start()[VERSIONED[engine]]
    runtime = runtimes.all_of(f"{engine}@{engine_version}")[0].name
    grid, unexplained = Grid(engine, process, runtime, work), []
    for model_type in asked:
        found: dict[str, Cell] = {}
        try:
            for name, cell in grid.family(model_type, wanted):
                found[name] = cell
        except Exception:  # noqa: BLE001 - a family that cannot be made must not end the run
            print(f"{model_type}: {traceback.format_exc(limit=-3)}", file=sys.stderr, flush=True)
            unexplained.append(model_type)
        unexplained += [f"{model_type}, {name}" for name, cell in found.items() if cell["verdict"] == UNEXPLAINED]
        if write:
            recorded.put(model_type, found)
            recorded.made_with = {**process.versions, "reference": f"transformers {version('transformers')}"}
            recorded.write()
    for one in unexplained:
        print(f"unexplained: {one}", file=sys.stderr)
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main())

"""What a cell of scripts/corpus.py does, and what of it counts: plans and outputs as plain data, without prose or places."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from gguf_files import contents
from variants import LISTS, VARIANTS

import ropetool

FACTOR = 4
MEMORY, ROOM = Path("/dev/shm"), 4 << 30  # bytes; all cells together need less than one gigabyte
Act = Callable[[Path, Path], Any]  # from a source and a scratch folder to a projection

# --- what is done


def plan(method: str, **options: Any) -> Act:
    return lambda source, _: of_plan(planned(source, method, **options))


def output(method: str, **options: Any) -> Act:
    return lambda source, folder: applied(planned(source, method, **options), source, folder)


def bake(what: str, options: dict[str, Any]) -> Act:
    return lambda source, folder: applied(baked(source, what, options), source, folder)


def export(options: dict[str, Any]) -> Act:
    def act(source: Path, folder: Path) -> Any:
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            place = exported(source, Path(scratch, "model.gguf"), **options)
            return of_gguf(sorted(place.parent.glob("*.gguf")))

    return act


def exported(source: Path, place: Path, **options: Any) -> Path:
    """Return the GGUF file of a checkpoint at a place, unchecked; written unless it is there."""
    if not place.exists():
        ropetool.export(source, place, check=False, sidecars=False, allow_unverified=True, **options)
    return place


def extended(source: Path, name: str = "extended") -> Path:
    """Return the checkpoint extended by YaRN, next to it by this name; written unless it is there."""
    output = source.with_name(name)
    if not output.exists():
        ropetool.apply(planned(source, "yarn"), source, output, sidecars=False)
    return output


def planned(source: Path, method: str, **options: Any) -> Any:
    """Return the plan of a row of VARIANTS; longrope has a divisor for each pair."""
    name, more = VARIANTS[method]
    if more.get("params") == LISTS:
        entry = rotation(source)
        pairs = range(entry.rotary_dim // 2 if entry is not None else 0)
        more = {"params": {"long_factor": [1 + p / 9 for p in pairs], "short_factor": [1 + p / 40 for p in pairs]}}
    return ropetool.plan(source, name, factor=FACTOR, **{**more, **options})


def baked(source: Path, what: str, options: dict[str, Any]) -> Any:
    """Return the plan of a bake; what stands as LISTS follows from the model."""
    entry = rotation(source)
    pairs = entry.rotary_dim // 2
    slower = tuple(range(pairs // 2, pairs))
    lists = {
        "gains": tuple(0.5 + pair / pairs for pair in range(pairs)),
        "pairs": slower if options.get("mode") == "still" else slower[::3],
        "to": "half" if entry.layout == "interleaved" else "interleaved",
    }
    return ropetool.bake(
        source, what, **{key: lists[key] if value == LISTS else value for key, value in options.items()}
    )


def applied(plan: Any, source: Path, folder: Path) -> Any:
    """Return what a plan says and what it writes."""
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        made = ropetool.apply(plan, source, Path(scratch, f"output{source.suffix}"), sidecars=False).output
        files = sorted(made.parent.glob("*.gguf"))
        return {"plan": of_plan(plan), "written": of_gguf(files) if files else of_folder(made, source)}


@cache
def rotation(source: Path) -> Any:
    """Return how full-attention layers rotate, None where nothing says so; a source never changes."""
    rope = ropetool.inspect(source).rope
    return rope.entries.get("full_attention") if rope is not None else None


@contextlib.contextmanager
def scratch(sources: Path | None = None) -> Iterator[Path]:
    """Give a folder for sources and outputs; ropetool keeps nothing of them in its cache, and nothing waits for the disk.

    sources: the folder, which keeps what was written; None: a new one.
    """
    with temporary_folder() as folder:
        kept = {"ROPETOOL_CACHE": str(Path(folder, "cache"))}
        with mock.patch.dict(os.environ, kept), mock.patch.object(os, "fsync"):
            yield sources or Path(folder)


def temporary_folder() -> tempfile.TemporaryDirectory[str]:
    """Return a new folder, in memory where there is enough: on a disk, removing a folder can take milliseconds."""
    has_room = MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ROOM
    return tempfile.TemporaryDirectory(dir=MEMORY if has_room else None)


# --- projections

PLAN_KEYS = (
    "format", "family", "method", "factor", "params", "reading", "trained_length", "max_position_embeddings", "runtimes",
    "config_style", "tables", "target", "softmax_multiplier", "suffix", "edits", "bake_dtype",
)  # fmt: skip
RECORDS = ("ropetool.json", "README.md", "Modelfile")
# What says where a file came from; the rest of general.* says what it is.
ORIGIN = re.compile(r"ropetool\.|general\.(?!architecture|type|file_type|quantization_version|alignment|size_label)")
FLOAT = re.compile(r"-?\d+\.\d+(?:[eE][-+]?\d+)?")


def of_plan(plan: Any) -> Any:
    """Return what a plan would do: no notes, no reasons, nothing of the machine."""
    data = plan.to_json()
    edits = [{key: value for key, value in edit.items() if key != "reason"} for edit in data.get("tensors", ())]
    return {
        **{key: data[key] for key in PLAN_KEYS if key in data}, "tensors": edits,
        "candidates": [candidate["name"] for candidate in data["candidates"]],
        "weight_files": sorted(data.get("weight_files", ())),
    }  # fmt: skip


def of_folder(folder: Path, source: Path) -> Any:
    """Return what a written checkpoint holds, of weights what is not as it was."""
    before, found = _tensors(source), {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in RECORDS):
        raw, name = path.read_bytes(), path.relative_to(folder).as_posix()
        if (source / name).is_file() and (source / name).read_bytes() == raw:
            found[name] = "as it was"
        elif path.suffix == ".json":
            found[name] = FLOAT.sub(lambda number: f"{float(number[0]):.12g}", raw.decode()).splitlines()
        else:
            found[name] = digest(raw)
    return {"files": found, "changed": {n: t for n, t in _tensors(folder).items() if before.get(n) != t}}


def _tensors(folder: Path) -> dict[str, Any]:
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        raw = path.read_bytes()
        start = 8 + int.from_bytes(raw[:8], "little")
        for name, entry in json.loads(raw[8:start]).items():
            if name != "__metadata__":
                begin, end = (start + offset for offset in entry["data_offsets"])
                found[name] = [entry["dtype"], entry["shape"], digest(raw[begin:end])]
    return found


def of_gguf(files: Sequence[Path]) -> Any:
    """Return what a written model holds, file by file: keys with types and values, tensors with hashes of their bytes."""
    found = []
    for held in map(contents, files):
        tensors = {name: [kind, shape, digest(raw)] for name, (kind, shape, raw) in held["tensors"].items()}
        keys = {key: value for key, value in held["values"].items() if not ORIGIN.match(key)}
        found.append({"alignment": held["alignment"], "keys": keys, "tensors": tensors})
    return found


def canonical(value: Any) -> Any:
    """Return plain data with floats cut to 12 significant digits: the last ones depend on the machine's own functions."""
    if isinstance(value, dict):
        return {str(key): canonical(part) for key, part in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [canonical(part) for part in value]
    if isinstance(value, float | np.floating):
        return f"{float(value):.12g}"
    return value.item() if isinstance(value, np.generic) else value


def digest(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()[:16]

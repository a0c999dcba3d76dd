"""The readers of configs and plans."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import models
from configs import FAMILIES, MORE_FAMILIES, config

from torture.mutating import json_of
from torture.readers.base import Read, Reader, Slot, ignore
from torture.readers.printed import printed
from torture.scenes import EXTEND


def configs(folder: Path, sources: Path) -> Iterator[Reader]:
    from ropetool.files.hf import read_object
    from ropetool.plans.plan import Plan
    from ropetool.plans.search import make_plan
    from ropetool.runtimes.inspection import inspect

    seeds = [json.dumps(data, indent=2).encode() for data in _config_seeds()]
    words = [name.encode() for name in (*FAMILIES, *MORE_FAMILIES)]
    words += [b"yarn", b"llama3", b"longrope", b"dynamic", b"linear", b"default", b"mrope", b"sliding_attention"]
    slot = Slot(folder / "config" / "config.json")
    where = slot.path.parent
    methods = ("yarn", "linear", "ntk", "llama3", "longrope", "dynamic", "abf", "ntk-by-parts")

    def plan(data: bytes, rng: random.Random) -> None:
        slot(data)
        make_plan(
            where,
            rng.choice(methods),
            factor=rng.choice((1.5, 4.0, 32.0)),
            reading=rng.choice((None, "original", "current")),
        )

    def look(data: bytes, rng: random.Random) -> None:
        slot(data)
        inspect(where)

    yield Reader("config.json, parsed", seeds, json_of, lambda data, rng: ignore(read_object(slot(data))), words, 2)
    yield Reader("config.json, inspected", seeds, json_of, look, words, 4)
    yield Reader("config.json, examined", seeds, json_of, lambda data, rng: _examined(slot(data).parent), words, 2)
    shown = Slot(folder / "shown" / "config.json")
    yield printed("config.json, printed", seeds, json_of, shown, shown.path.parent, words)
    yield Reader("config.json, planned for", seeds, json_of, plan, words, 3)

    from torture.commands import run

    run((*EXTEND[:1], "source/m.gguf", *EXTEND[2:], "--dry-run", "--plan-out", "plan-gguf.json"), folder).expect(0)
    plans = [(sources / "plan.json").read_bytes(), (folder / "plan-gguf.json").read_bytes()]
    stored = Slot(folder / "plan" / "plan.json")
    yield Reader(
        "plan", plans, json_of, lambda data, rng: ignore(Plan.read(stored(data))),
        [b"config.json", b"../config.json", b"/etc/passwd", b"ABSENT", b"gguf", b"hf", b"tensor", b"u32"], 2,
    )  # fmt: skip
    yield Reader("plan, applied", plans, json_of, _apply(folder, sources), [b"config.json", b"../m.gguf", b"README.md"])


def _examined(where: Path) -> None:
    from ropetool.doctor import examine
    from ropetool.report.diagnosed import diagnosis_parts
    from ropetool.report.terminal import terminal_text

    terminal_text(diagnosis_parts(examine([str(where)])))


def _apply(folder: Path, sources: Path) -> Read:
    """Return a reader that carries a plan out on the source, and takes the output away again."""
    from ropetool.plans.applying import apply
    from ropetool.plans.plan import Plan
    from torture.scenes import contents

    slot, target = Slot(folder / "applied" / "plan.json"), folder / "applied" / "output"
    before = contents(sources, times=True)

    def read(data: bytes, rng: random.Random) -> None:
        import shutil

        plan = Plan.read(slot(data))
        output = target / ("new.gguf" if plan.format == "gguf" else "new")
        target.mkdir(exist_ok=True)
        try:
            apply(plan, sources / ("m.gguf" if plan.format == "gguf" else "model"), output)
        finally:
            strange = {path.name for path in target.iterdir()} - {"new"} if plan.format == "hf" else set()
            shutil.rmtree(target)
        if strange or {path.name for path in slot.path.parent.iterdir()} != {"plan.json"}:
            raise AssertionError(f"it wrote {strange or 'elsewhere'}")
        if contents(sources, times=True) != before:
            raise AssertionError("the source has changed")

    return read


def _config_seeds() -> Iterator[dict[str, Any]]:
    for family in (*FAMILIES, *MORE_FAMILIES):
        for style in ("v4", "v5"):
            yield config(family, style)
    base = models.BY_HAND["llama"]
    half = [1.0] * (base["head_dim"] // 2)
    for scaling in (
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512},
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 512},
        {"rope_type": "longrope", "short_factor": half, "long_factor": half, "original_max_position_embeddings": 512},
        {"type": "dynamic", "factor": 2.0},
        {"type": "linear", "factor": 2.0},
    ):  # fmt: skip
        yield {**base, "rope_scaling": scaling}

#!/usr/bin/env python3
"""Write tests/golden/: tables of every method from two implementations that are not ours.

mpmath evaluates the published formulas with 50 digits; transformers' own rope functions (float32) give the same
case wherever they can express it. Never imports ropetool, so that the tests compare two independent pieces of code.

    scripts/golden/golden.py            write the files
    scripts/golden/golden.py --check    write nothing; exit 1 if a file differs from what would be written
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

from golden_formulas import DEFAULTS, DIGITS, FORMULAS, Case, table

GOLDEN = Path(__file__).resolve().parents[2] / "tests" / "golden"
TOLERANCE = {"mpmath": 1e-11, "transformers": 3e-6}  # relative: 12 digits; float32


# --- settings -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Base:
    """A model: the width of a head and the part of it that rotates, the base, the trained length."""

    head_dim: int
    rope_theta: float
    length: int
    partial: float = 1.0

    def source(self) -> Case:
        return {
            "head_dim": self.head_dim,
            "partial_rotary_factor": self.partial,
            "rope_theta": self.rope_theta,
            "length": self.length,
        }


SMALL = Base(64, 1e4, 256)
LLAMA2 = Base(128, 1e4, 4096)
LLAMA3 = Base(128, 5e5, 8192)
QWEN = Base(128, 1e6, 32768)
PARTIAL = Base(64, 1e4, 256, 0.5)
QUARTER = Base(128, 1e4, 4096, 0.25)
BASES = [
    SMALL,
    LLAMA2,
    LLAMA3,
    QWEN,
    Base(80, 1e4, 4096),
    Base(96, 1e4, 4096),
    Base(64, 5e5, 131072),
    QUARTER,
    PARTIAL,
    Base(128, 1e6, 131072, 0.75),
]
FACTORS = [8, 2, 4, 1.5, 16, 32]
BETAS = [(8, 2), (16, 1), (64, 2)]
PRESETS = ["none", "yarn", "logn", 1.25]


def case(source: Case, factor: float, attention_factor: str | float = "auto", at: int = 0, **params: Any) -> Case:
    """Return one case; `at` is the length whose table is meant, where the table depends on it."""
    wanted = {"source": source, "factor": factor, "attention_factor": attention_factor, "params": params}
    return wanted | ({"at": at} if at else {})


def over_bases(**params: Any) -> Iterator[Case]:
    """Yield one case for each base, factors in turn."""
    for base, factor in zip(BASES, cycle(FACTORS), strict=False):
        yield case(base.source(), factor, **params)


def over_presets(base: Base = PARTIAL, factor: float = 4, **params: Any) -> Iterator[Case]:
    for preset in PRESETS:
        yield case(base.source(), factor, preset, **params)


def over_tables(**params: Any) -> Iterator[Case]:
    """Yield cases on top of tables that are already scaled, which no rope_theta describes."""
    for source, factor in zip(scaled_sources(), (2, 4, 2, 8, 4), strict=True):
        yield case(source, factor, **params)


def divisors(pairs: int, last: float, power: float) -> list[float]:
    """Return made-up longrope divisors: 1 for the fastest pair, growing to `last` for the slowest."""
    return [round(1 + (last - 1) * (i / (pairs - 1)) ** power, 3) for i in range(pairs)]


def scaled_sources() -> list[Case]:
    """Return sources as extended files hold them: llama3, yarn, longrope, linear; in the last, 12 pairs stand still."""
    llama31 = table("llama3", case(LLAMA3.source(), 8))
    gpt_oss = table("yarn", case(Base(64, 150000.0, 4096).source(), 32, truncate=False))
    phi3 = table("longrope", case(Base(96, 1e4, 4096).source(), 32, long_factor=divisors(48, 64, 1.7)))
    gemma3 = table("linear", case(Base(64, 1e6, 16384).source(), 8))
    still = table("linear", case(Base(64, 1e6, 32768).source(), 1))
    still["inv_freq"][20:] = [0.0] * 12  # one turn lies beyond the last pair that moves
    tables = [(llama31, 131072), (gpt_oss, 131072), (phi3, 131072), (gemma3, 131072), (still, 32768)]
    return [
        {"length": length, "inv_freq": found["inv_freq"], "attention_factor": found["attention_factor"]}
        for found, length in tables
    ]


def by_parts_cases() -> Iterator[Case]:
    yield from over_bases()
    yield from over_bases(ramp="turns")
    for base, (fast, slow) in zip((SMALL, LLAMA2, LLAMA3), BETAS, strict=True):
        yield case(base.source(), 8, beta_fast=fast, beta_slow=slow)
        yield case(base.source(), 4, beta_fast=fast, beta_slow=slow, ramp="turns")
    for base in (SMALL, LLAMA2, QUARTER):
        yield case(base.source(), 8, truncate=False)
    for ramp in ("dims", "turns"):
        yield case(Base(64, 5e4, 4096).source(), 32, beta_fast=1, beta_slow=1, ramp=ramp)
    yield from over_tables()
    for source in scaled_sources()[:2]:
        yield case(source, 4, "logn", truncate=False)
        yield case(source, 4, ramp="turns")
    yield from over_presets()


def mla_cases() -> Iterator[Case]:
    """Yield models that scale the whole score: fresh, with DeepSeek's multipliers, and already stretched once."""
    mla = Base(64, 1e4, 4096).source()
    for mscale, factor in ((1.0, 4), (0.707, 40), (1.0, 1.5)):
        yield case(mla | {"mscale": mscale}, factor)
    yield case(mla | {"mscale": 1.0}, 4, 1.25)
    yield case(mla | {"mscale": 1.0, "softmax_multiplier": 1.2965}, 2)


def dynamic_cases() -> Iterator[Case]:
    for base, factor in ((SMALL, 8), (LLAMA2, 4), (QUARTER, 2)):
        for share in (0.5, 1, 1.5, 8):
            yield case(base.source(), factor, at=int(base.length * share))
    yield case(LLAMA3.source(), 4, freeze=40000)
    yield case(scaled_sources()[1], 2, freeze=400000)
    yield case(scaled_sources()[0], 2, at=262144)
    yield from over_presets(freeze=1024)


def longrope_cases() -> Iterator[Case]:
    for base, factor in ((LLAMA2, 4), (Base(96, 1e4, 4096), 32), (BASES[9], 2), (SMALL, 8)):
        pairs = int(base.head_dim * base.partial) // 2
        long, short = divisors(pairs, 2 * factor, 1.7), divisors(pairs, 1.5, 1)
        yield case(base.source(), factor, long_factor=long)
        for share in (0.5, 1, 1.5):
            yield case(base.source(), factor, at=int(base.length * share), long_factor=long, short_factor=short)
    yield case(scaled_sources()[1], 2, long_factor=divisors(32, 2, 1))
    yield from over_presets(long_factor=divisors(16, 4, 2))


def abf_cases() -> Iterator[Case]:
    for base, factor, rope_theta in zip(BASES, cycle(FACTORS), cycle([1e6, 57200.0, 5e3]), strict=False):
        yield case(base.source(), factor, rope_theta=rope_theta)
    yield from over_presets(rope_theta=1e6)


def plain_cases() -> Iterator[Case]:
    yield from over_bases()
    yield from over_tables()
    yield from over_presets()


def mixed_cases() -> Iterator[Case]:
    yield from plain_cases()
    yield from over_bases(exponent=0.75)


def llama3_cases() -> Iterator[Case]:
    yield from plain_cases()
    for base, (high, low) in zip((SMALL, LLAMA2, QWEN), BETAS, strict=True):
        yield case(base.source(), 8, low_freq_factor=low, high_freq_factor=high)


def yarn_cases() -> Iterator[Case]:
    yield from by_parts_cases()
    yield from mla_cases()


CASES: dict[str, Callable[[], Iterator[Case]]] = {
    "linear": plain_cases,
    "ntk": plain_cases,
    "abf": abf_cases,
    "ntk-by-parts": by_parts_cases,
    "yarn": yarn_cases,
    "mixed-ntk": mixed_cases,
    "dynamic": dynamic_cases,
    "llama3": llama3_cases,
    "longrope": longrope_cases,
    "attention": plain_cases,
    "length": plain_cases,
}


# --- transformers ----------------------------------------------------------------------------------------------


def native_keys(method: str, c: Case) -> tuple[Case, int | None] | None:
    """Return transformers' rope keys for the case and the length to ask for, or None where it has no such table."""
    source, s, length = c["source"], c["factor"], c["source"]["length"]
    p = DEFAULTS.get(method, {}) | c["params"]
    if "inv_freq" in source or p.get("ramp") == "turns":
        return None
    if method == "linear":
        return {"rope_type": "linear", "factor": s}, None
    if method == "abf":  # a base table is linear's at factor 1; `default` ignores partial rotation
        return {"rope_type": "linear", "factor": 1.0, "rope_theta": p["rope_theta"]}, None
    if method == "ntk":  # what dynamic gives at s L tokens
        return {"rope_type": "dynamic", "factor": 1.0}, int(s * length)
    if method == "dynamic":
        return {"rope_type": "dynamic", "factor": 1.0}, p.get("freeze", c.get("at"))
    keys = {"factor": s, "original_max_position_embeddings": length}
    if method == "longrope":
        return {"rope_type": "longrope", "short_factor": p["long_factor"]} | keys | p, c.get("at", length + 1)
    if method == "llama3":
        return {"rope_type": "llama3"} | keys | p, None
    if method in ("yarn", "ntk-by-parts"):
        ramp = {"rope_type": "yarn"} | keys | {k: v for k, v in p.items() if k != "ramp"}
        return ramp | yarn_scale_keys(method, c), None
    return None


def yarn_scale_keys(method: str, c: Case) -> Case:
    if method == "ntk-by-parts":
        return {"attention_factor": 1.0}
    if "mscale" in c["source"] and c["attention_factor"] == "auto":
        return {"mscale": c["source"]["mscale"], "mscale_all_dim": c["source"]["mscale"]}
    return {}


def transformers_table(method: str, c: Case) -> Case | None:
    """Return the case's table by transformers; its scales only where it computes them itself."""
    native = native_keys(method, c)
    if native is None:
        return None
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import yarn_apply_mscale

    keys, seq_len = native
    source = c["source"]
    shared = {"rope_theta": source["rope_theta"], "partial_rotary_factor": source["partial_rotary_factor"]}
    config = LlamaConfig(
        head_dim=source["head_dim"],
        hidden_size=2 * source["head_dim"],
        num_attention_heads=2,
        max_position_embeddings=source["length"],
        rope_parameters=shared | keys,
    )
    inv_freq, attention_factor = ROPE_INIT_FUNCTIONS[keys["rope_type"]](config, "cpu", seq_len)
    found: Case = {}
    if c["attention_factor"] == "auto":
        found["attention_factor"] = float(f"{attention_factor:.{DIGITS}g}")
        if "softmax_multiplier" not in source:
            found["softmax_multiplier"] = float(f"{yarn_apply_mscale(keys, 1.0):.{DIGITS}g}")
    return found | {"inv_freq": [float(f"{x:.9g}") for x in inv_freq.tolist()]}


def check_oracles_agree(name: str, a: Case, b: Case) -> None:
    """Exit if the two implementations differ by more than float32 explains: then neither is an oracle."""
    for key, value in b.items():
        pairs = zip(a[key], value, strict=True) if isinstance(value, list) else [(a[key], value)]
        worst = max(abs(y / x - 1) if x else abs(y) for x, y in pairs)
        if worst > TOLERANCE["transformers"]:
            sys.exit(f"{name}: mpmath and transformers differ by {worst:.2g} in {key}")


# --- files -----------------------------------------------------------------------------------------------------


def golden_cases(method: str, *, with_transformers: bool = True) -> list[Case]:
    """Return the method's cases with their tables."""
    cases = []
    for number, c in enumerate(CASES[method]()):
        tables = {"mpmath": table(method, c)}
        native = transformers_table(method, c) if with_transformers else None
        if native:
            check_oracles_agree(f"{method} case {number}", tables["mpmath"], native)
            tables["transformers"] = native
        cases.append(c | {"tables": tables})
    return cases


def golden_file(method: str, versions: Case) -> str:
    """Return the text of a golden file: a head, then one line a case, so that a change is a readable diff."""
    cases = golden_cases(method)
    used = [name for name in versions if any(name in c["tables"] for c in cases)]
    head = {
        "method": method,
        "formula": FORMULAS[method][0],
        "made_by": "scripts/golden/golden.py",
        "oracles": {name: {"version": versions[name], "relative_tolerance": TOLERANCE[name]} for name in used},
    }
    lines = ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases)
    return json.dumps(head, indent=1)[:-2] + f',\n "cases": [\n{lines}\n]}}\n'


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file would change")
    check = parser.parse_args().check

    import mpmath
    import transformers

    transformers.logging.set_verbosity_error()
    versions = {"mpmath": mpmath.__version__, "transformers": transformers.__version__}
    files = {GOLDEN / f"{method}.json": golden_file(method, versions) for method in CASES}
    stale = sorted(path for path in {*GOLDEN.glob("*.json"), *files} if _text(path) != files.get(path))
    if check:
        print("\n".join(f"stale: {path.name}" for path in stale) or f"{len(files)} golden files are current")
        return 1 if stale else 0
    for path in stale:
        if path in files:
            path.write_text(files[path], encoding="utf-8")
            print(f"wrote {path.name}")
        else:
            print(f"no method makes {path.name}; delete it")
    return 0


def _text(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None


if __name__ == "__main__":
    sys.exit(main())

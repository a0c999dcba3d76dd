"""Write tests/oracle/peers.json: what the real classes of vLLM, SGLang, mlx-lm and exllamav3 answer.

Run with ROPETOOL_PEERS set to a folder that has every release named in tests/oracle/peers.py, each unpacked by
`unpack_peer` of scripts/lib.sh; `use_peers` there unpacks those of scripts/peers.txt. With --sglang-families it writes
tests/oracle/sglang_families.json instead, from the releases of SGLang alone.
"""

from __future__ import annotations

import json
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/oracle")]

import peers
import sglang_families

DIGITS = 9  # more than float32 has


def rounded(value: Any) -> Any:
    """Return the answer with its numbers rounded, without the rows of cos and sin: the table says them."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items() if key not in ("rows", "row")}
    return [rounded(inner) for inner in value] if isinstance(value, list) else value


def index(known: list[Any], value: Any) -> int:
    """Return the place of a value in the list, at its end if it is new."""
    if value not in known:
        known.append(value)
    return known.index(value)


def packed(answer: dict[str, Any], layers: list[Any]) -> dict[str, Any]:
    """Return an answer with its layers as places in a list of distinct ones, and an error cut to its first line."""
    if "error" in answer:
        return {"error": answer["error"].splitlines()[0][:120]}
    found = answer.get("layers")
    if isinstance(found, dict):
        return {**answer, "layers": {kind: index(layers, layer) for kind, layer in found.items()}}
    return {**answer, "layers": [index(layers, layer) for layer in found]} if found else answer


def of_sglang_families() -> int:
    """Write what SGLang answers of the families that its decoder knows by its sources."""
    layers: list[Any] = []
    releases = {}
    for release in peers.RELEASES["sglang"]:
        folder = peers.source("sglang", release)
        if folder is None:
            print(f"ROPETOOL_PEERS has no sglang-{release}", file=sys.stderr)
            return 1
        with tempfile.TemporaryDirectory() as scratch:
            found = peers.probe("sglang", folder, list(sglang_families.jobs().values()), Path(scratch))
        releases[release] = [packed(rounded(answer), layers) for answer in found]
    lines = ",\n".join(
        f"{json.dumps(key)}: {_block(value)}" for key, value in {"releases": releases, "layers": layers}.items()
    )
    sglang_families.GOLDEN.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
    return 0


def main() -> int:
    if sys.argv[1:] == ["--sglang-families"]:
        return of_sglang_families()
    jobs, flagged = peers.jobs(), peers.flagged()
    answers: list[Any] = []
    layers: list[Any] = []
    releases, overridden = {}, {}
    for program, versions in peers.RELEASES.items():
        for release in versions:
            folder = peers.source(program, release)
            if folder is None:
                print(f"ROPETOOL_PEERS has no {program}-{release}", file=sys.stderr)
                return 1
            asked = {**jobs, **({} if program not in peers.WITH_FLAGS else {f"with {n}": flagged[n] for n in flagged})}
            with tempfile.TemporaryDirectory() as scratch:
                found = peers.probe(program, folder, list(asked.values()), Path(scratch))
            places = [index(answers, packed(rounded(answer), layers)) for answer in found]
            releases[f"{program} {release}"] = places[: len(jobs)]
            if program in peers.WITH_FLAGS:
                overridden[f"{program} {release}"] = places[len(jobs) :]
            print(program, release, len(layers), file=sys.stderr)
    made = {name: version(name) for name in ("transformers", "torch")} | {"mlx": peers.mlx_version()}
    data = {
        "made_with": made, "configs": list(jobs), "releases": releases, "flagged_configs": list(flagged),
        "flagged": overridden, "answers": answers, "layers": layers,
    }  # fmt: skip
    lines = ",\n".join(f"{json.dumps(key)}: {_block(value)}" for key, value in data.items())
    peers.GOLDEN.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
    return 0


def _block(value: Any) -> str:
    """Return JSON with an entry a line, so that a difference can be read."""
    if isinstance(value, dict):
        return "{\n" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in value.items()) + "\n}"
    return "[\n" + ",\n".join(json.dumps(entry) for entry in value) + "\n]"


if __name__ == "__main__":
    sys.exit(main())

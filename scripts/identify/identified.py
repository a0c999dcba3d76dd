#!/usr/bin/env python3
"""Start real servers with options that change what they rotate by, and record what `ropetool identify` says of each.

    scripts/identify/identified.py                     everything; writes tests/identify/identified.json
    scripts/identify/identified.py --engine vLLM       its rows alone; the others stay as recorded
    scripts/identify/identified.py --missing           the rows that are not recorded, after an interruption
    scripts/identify/identified.py --only beta --check the rows whose options hold a word; run, compare, write nothing

ROPETOOL_LLAMA_SERVER is the path of a llama-server, ROPETOOL_ENGINE_VLLM that of a Python with vLLM. The checkpoints are the demo's
weights under other rope keys. About a minute a row on two cores.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

import serving
from identified_page import LLAMA_SERVER, NONE, RESULT, VLLM, known

from ropetool.servers.http import Http
from ropetool.servers.opening import open_server

DEMO = ROOT / "ropetool/demo/model"
LENGTH = 800  # tokens of the longest prompt: 3 times the trained length
CONTEXT = 1024
AS_MEANT = "as meant"
YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 256, "rope_theta": 10000.0}
SOURCES: dict[str, dict[str, Any]] = {
    "yarn x8": YARN,
    "yarn x8, attention factor 1.3": {**YARN, "attention_factor": 1.3},
    "yarn x8, attention factor 1.3, beta_fast 24, base 500000": {
        **YARN, "attention_factor": 1.3, "beta_fast": 24.0, "rope_theta": 500000.0,
    },
    "linear x4": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0},
}  # fmt: skip
PLAIN, FACTOR, ALL, LINEAR = SOURCES


class Row(NamedTuple):
    """means: what the option amounts to, worked out by hand. quantised: the type of the GGUF file, or of the computation."""

    engine: str
    source: str
    options: str
    means: str
    kind: str


def llama(source: str, options: str, means: str, kind: str = "f32") -> Row:
    return Row(LLAMA_SERVER, source, options, means, kind)


def vllm(source: str, change: dict[str, Any], means: str) -> Row:
    """Return a row whose options are rope keys in place of the source's; None takes one out."""
    return Row(VLLM, source, json.dumps(change) if change else "", means, "bfloat16")


ROWS = (
    llama(PLAIN, "", AS_MEANT),
    llama(PLAIN, "", AS_MEANT, "q8_0"),
    llama(PLAIN, "--rope-scaling none", "scaling dropped"),
    llama(PLAIN, "--rope-scaling none", "scaling dropped", "q8_0"),
    llama(PLAIN, "--rope-scaling linear", "linear in its place"),
    llama(PLAIN, "--rope-scale 4", "factor halved"),
    llama(PLAIN, "--rope-scale 16", "factor doubled"),
    llama(PLAIN, "--rope-scale 2", NONE),
    llama(PLAIN, "--rope-freq-scale 1", "scaling dropped"),
    llama(PLAIN, "--rope-freq-scale 0.25", "factor halved"),
    llama(PLAIN, "--rope-freq-base 500000", "base 500000"),
    llama(PLAIN, "--rope-freq-base 20000", NONE),
    llama(PLAIN, "--yarn-orig-ctx 512", "original length doubled"),
    llama(PLAIN, "--yarn-orig-ctx 128", "--yarn-orig-ctx 128"),
    llama(PLAIN, "--yarn-orig-ctx 2048", "original length lost"),
    llama(PLAIN, "--yarn-ext-factor 0", "linear in its place"),
    llama(PLAIN, "--yarn-ext-factor 0.5", NONE),
    llama(PLAIN, "--yarn-attn-factor 2", AS_MEANT),
    llama(PLAIN, "--yarn-ext-factor 0 --yarn-attn-factor 2", NONE),
    llama(PLAIN, "--yarn-beta-fast 8", NONE),
    llama(PLAIN, "--yarn-beta-slow 4", NONE),
    llama(FACTOR, "", AS_MEANT),
    llama(FACTOR, "--rope-scaling none", "--rope-scaling none"),
    llama(FACTOR, "--rope-scaling linear", "--rope-scaling linear"),
    llama(FACTOR, "--rope-scale 4", "--rope-scale 4"),
    llama(LINEAR, "", AS_MEANT),
    llama(LINEAR, "--rope-scaling none", "scaling dropped"),
    llama(LINEAR, "--rope-scaling yarn", "--rope-scaling yarn"),
    vllm(ALL, {}, AS_MEANT),
    vllm(ALL, {"rope_type": "default"}, "scaling dropped"),
    vllm(ALL, {"rope_type": "linear"}, "linear in its place"),
    vllm(ALL, {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}, NONE),
    # dynamic_ntk_scaling_rope.py: base x (factor x length / length - (factor - 1)), which is the base
    vllm(ALL, {"rope_type": "dynamic"}, "scaling dropped"),
    vllm(ALL, {"attention_factor": 1.0}, "attention factor dropped"),
    vllm(ALL, {"attention_factor": 1.69}, "attention factor squared"),
    vllm(ALL, {"attention_factor": 2.6}, "attention factor doubled"),
    vllm(ALL, {"attention_factor": None}, "attention factor by default"),
    vllm(ALL, {"beta_fast": None}, "betas not read"),
    vllm(ALL, {"beta_slow": 4.0}, NONE),
    vllm(ALL, {"truncate": False}, "truncate the other way"),
    vllm(ALL, {"original_max_position_embeddings": 512}, "original length doubled"),
    vllm(ALL, {"original_max_position_embeddings": 2048}, "original length lost"),
    vllm(ALL, {"factor": 4.0}, "factor halved"),
    vllm(ALL, {"factor": 16.0}, "factor doubled"),
    vllm(ALL, {"rope_theta": 10000.0}, "base 10000"),
    vllm(ALL, {"rope_theta": 200000.0}, NONE),
)


def made(source: str, work: Path) -> Path:
    """Return the demo's weights under these rope keys."""
    folder = work / f"source{list(SOURCES).index(source)}"
    if not folder.exists():
        shutil.copytree(DEMO, folder)
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        for key in ("rope_scaling", "rope_theta"):
            config.pop(key, None)
        config |= {"rope_parameters": SOURCES[source], "max_position_embeddings": 2048}
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def exported(folder: Path, kind: str) -> Path:
    """Return a checkpoint as a GGUF file of this type."""
    file = folder.with_name(f"{folder.name}-{kind}.gguf")
    if not file.exists():
        options = ["--outtype", kind, "--no-check", "--no-sidecars", "--allow-unverified"]
        ropetool("export", str(folder), "-o", str(file), *options)
    return file


def ropetool(*arguments: str, codes: Sequence[int] = (0,)) -> str:
    """Return what a command prints. Raises: SystemExit where it fails."""
    done = subprocess.run([sys.executable, "-m", "ropetool", *arguments], capture_output=True, text=True, check=False)
    if done.returncode not in codes:
        raise SystemExit(f"ropetool {' '.join(arguments)}: {done.stderr}")
    return done.stdout


def command(row: Row, folder: Path) -> list[str]:
    """Return the command of the server of a row."""
    if row.engine == LLAMA_SERVER:
        return serving.llama_server(exported(folder, row.kind), CONTEXT, row.options.split())
    options = []
    if row.options:
        keys = {**SOURCES[row.source], **json.loads(row.options)}
        kept = {key: value for key, value in keys.items() if value is not None}
        options = ["--hf-overrides", json.dumps({"rope_parameters": kept})]
    return serving.vllm(folder, row.kind, CONTEXT, options)


def asked(row: Row, work: Path) -> dict[str, Any]:
    """Return what `ropetool identify` says of a server that was started for this row."""
    folder = made(row.source, work)
    with serving.running(command(row, folder), work / "server.log") as url:
        what = ["--gguf", str(exported(folder, row.kind))] if row.engine == LLAMA_SERVER else ["--source", str(folder)]
        # llama-server takes the original length times the factor for the context of the model, which --rope-scale makes shorter
        longest = min(LENGTH, open_server(Http(url)).limits.prompt or LENGTH)
        options = ["--server", url, "--length", str(longest), "--device", "cpu", "--json"]
        found = json.loads(ropetool("identify", *what, *options, codes=(0, 3)))
    best = min(one["divergence"] for one in found["hypotheses"])
    return {
        **row._asdict(), "program": found["program"], "name": found["name"] or NONE, "rivals": found["rivals"],
        "divergence": float(f"{best:.2g}"), "margin": float(f"{found['margin']:.2g}"),
    }  # fmt: skip


def main() -> int:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=(LLAMA_SERVER, VLLM))
    parser.add_argument("--only", default="", metavar="WORD")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--missing", action="store_true", help="the rows that are not recorded")
    told = parser.parse_args()
    chosen = [row for row in ROWS if told.engine in (None, row.engine) and told.only in row.options]
    rows = {tuple(one[key] for key in Row._fields): one for one in known()}
    chosen = [row for row in chosen if not (told.missing and tuple(row) in rows)]
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="identified-") as folder:
        for row in chosen:
            found = asked(row, Path(folder))
            is_wrong = found["name"] != row.means or bool(found["rivals"])
            wrong += is_wrong
            rows[tuple(row)] = found
            print("WRONG" if is_wrong else "ok   ", row.engine, row.kind, row.options, "->", found["name"], found["rivals"],
                  found["margin"], flush=True)  # fmt: skip
            if not told.check:
                kept = [rows[tuple(row)] for row in ROWS if tuple(row) in rows]
                RESULT.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())

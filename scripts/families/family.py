#!/usr/bin/env python3
"""Write a tiny random checkpoint of a family and run inspect, extend, bake and export on it, in both formats.

Its config follows from the family's file, or is in tests/configs.py; tests/models.py draws the weights.

    scripts/families/family.py seed_oss /tmp/tiny      /tmp/tiny is made; each command is printed, with what it says if it fails
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / name) for name in ("tests", "")]

import configs
import models
import tokenizer_making

from ropetool import families
from ropetool.errors import RopetoolError

TOKENIZER_CONFIG = {**tokenizer_making.TOKENIZER_CONFIG, "eos_token": "<|eos|>"}  # as transformers itself reads it
NOT_COMPARED = "not checked"


def commands(folder: Path, baked: bool, gguf_baked: bool) -> Iterator[list[str]]:
    """Yield the commands, each of which reads what those before it wrote."""
    source, exported = folder / "model", folder / "model.gguf"
    yield ["inspect", str(source)]
    yield ["extend", str(source), "--method", "yarn", "--factor", "4", "-o", str(folder / "extended")]
    if baked:
        yield ["bake", str(folder / "extended"), "attention-factor", "--check", "-o", str(folder / "baked")]
    yield ["export", str(source), "-o", str(exported), "--outtype", "f32"]
    yield [
        "export",
        str(folder / "extended"),
        "-o",
        str(folder / "extended.gguf"),
        "--outtype",
        "f32",
        "--allow-unverified",
    ]
    yield ["inspect", str(exported)]
    yield ["extend", str(exported), "--method", "yarn", "--factor", "4", "-o", str(folder / "longer.gguf")]
    if gguf_baked:
        yield ["bake", str(folder / "longer.gguf"), "attention-factor", "--check", "-o", str(folder / "baked.gguf")]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("name", help="the family's model_type")
    parser.add_argument("folder", type=Path, help="a folder that does not exist yet")
    options = parser.parse_args()
    try:
        family = families.get(options.name)
    except RopetoolError as error:
        parser.error(f"{error.sentence}\nTry: {error.try_}")
    if options.name not in configs.EXPORTED:
        parser.error(
            f"no tiny model of {options.name} can be made: its file has no export, or more than a plain family has"
        )
    options.folder.mkdir(parents=True)
    source = models.write(options.folder / "model", options.name)
    models.save(source / "tokenizer_config.json", TOKENIZER_CONFIG)
    baked = family.bake is not None and not family.bake.refused
    for arguments in commands(options.folder, baked, bool(family.gguf_architectures)):
        done = subprocess.run([sys.executable, "-m", "ropetool", *arguments], capture_output=True, text=True)
        failed = done.returncode != 0 or NOT_COMPARED in done.stdout
        print("failed" if failed else "ok    ", "ropetool", shlex.join(arguments), flush=True)
        if failed:
            print(done.stdout, done.stderr, sep="")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

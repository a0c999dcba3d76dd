"""What docs/export.md says of llama.cpp's converter: which architectures it serves, from the record of scripts/converted/converted.py."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ropetool import families
from ropetool.runtimes.llama_cpp import architectures as archs

RESULT = Path(__file__).resolve().parents[2] / "tests" / "exporting" / "converted.json"
CONVERTED, NOT_RUN, REFUSED, REMOTE, NOT_MADE = "converted", "not run", "refused", "remote code", "not made"
SAME, SAME_GELU = 2e-4, 1e-3  # of the largest logit; llama.cpp takes gelu from a table of float16 numbers
# Read all of a text at once, or write sound.
NO_DECODERS = {
    "eurobert", "gemma-embedding", "jina-bert-v3", "llama-embed", "modern-bert", "neo-bert", "nomic-bert",
    "nomic-bert-moe", "pockettts", "qwen3tts",
}  # fmt: skip
Record = Mapping[str, Any]


def classes() -> dict[str, dict[str, Any]]:
    """Return the record, by class."""
    found: dict[str, dict[str, Any]] = json.loads(RESULT.read_text(encoding="utf-8"))["classes"]
    return found


def is_same(record: Record) -> bool:
    """Return whether the class and llama.cpp give the same logits, as far as float32 tells."""
    return record["outcome"] == CONVERTED and record["apart"] <= (SAME_GELU if record["gelu"] else SAME)


def decoders() -> list[str]:
    """Return the architectures of llama.cpp that rotate and write text."""
    return [name for name in archs.names() if archs.get(name).layout and name not in NO_DECODERS]


def own() -> dict[str, list[str]]:
    """Return the families that are written by a table of ours, by architecture."""
    found: dict[str, list[str]] = {}
    for name in families.exported():
        found.setdefault(families.get(name).gguf_architecture, []).append(name)
    return found


def rows() -> list[list[str]]:
    """Return a line for each architecture: how it is served, by whom, how far logits are apart by the converter, or why not."""
    ours, known, lines = own(), classes(), []
    for arch in decoders():
        tried = {name: one for name, one in known.items() if one.get("arch") == arch}
        same = [f"{name} {one['apart']:.1e}{_against(one)}" for name, one in sorted(tried.items()) if is_same(one)]
        way = "table" if arch in ours else "converter" if same else "-"
        lines.append([arch, way, ", ".join(sorted(ours.get(arch, ()))) or "-", ", ".join(same) or _why(tried)])
    return lines


def _against(record: Record) -> str:
    """Return who computed the logits in place of a class that only remote code has."""
    return f" (by {record['by']})" if "by" in record else ""


def _why(tried: Mapping[str, Record]) -> str:
    """Return why no class of an architecture is served by the converter."""
    if not tried:
        return "no model was made: transformers has no class for it, or the converter stops (below)"
    said = []
    for name, one in sorted(tried.items()):
        apart = (
            f"logits {one['apart']:.2g} of the largest apart, which export refuses" if "apart" in one else one["reason"]
        )
        said.append(f"{name}: {apart}")
    return "; ".join(said).replace("|", "/")


def table() -> str:
    """Return the counts, the lines of architectures, and the classes that come to nothing, as Markdown."""
    lines, known = rows(), classes()
    ways = [line[1] for line in lines]
    same = sorted(name for name, one in known.items() if is_same(one))
    remote = sum(one["outcome"] == REMOTE for one in known.values())
    stood_for = sum("by" in one for one in known.values())
    counts = (
        f"Of {len(lines)} architectures that rotate and write text, {ways.count('table')} are written by a table, "
        f"{ways.count('converter')} more by the converter, {ways.count('-')} by neither or by no class that is measured "
        f"here. With the converter and without ropetool's tables, {len(same)} of {len(known) - remote} classes have the same "
        f"logits. Of these, {stood_for} are classes of remote code: mlx-lm runs them, or a class of transformers "
        f"computes the same under other names (by). The converter registers {remote} more classes that nothing here can run. "
        "For these, ropetool compares only tables and tokens, and adds a note."
    )
    head = ["architecture", "way", "families with a table", "by the converter: difference of the logits, or why not"]
    stopped = [
        [name, one["outcome"], one["reason"].replace("|", "/")]
        for name, one in sorted(known.items())
        if "arch" not in one and one["outcome"] != REMOTE
    ]
    return f"{counts}\n\n{_markdown(head, lines)}\n\n{_markdown(['class', 'outcome', 'reason'], stopped)}\n"


def _markdown(head: list[str], lines: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *lines))

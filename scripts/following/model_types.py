"""The model types whose record changed with a release of transformers."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GENERATED = "ropetool/families/generated"
REMOTE = "ropetool/families/remote"
RELEASE = "transformers"  # the key of a record with the release
PROVEN = ("proven", "hands over", "does not rotate")

Records = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Difference:
    """What a release changed about a model type.

    state: "new", "changed", "gone" or "now native".
    words: the outcome, or the changed keys.
    needs_hand: whether a person has to look at it.
    """

    model_type: str
    state: str
    words: str
    needs_hand: bool


def committed(root: Path) -> dict[str, Any]:
    """Return the records of the last commit by model type."""
    listed = subprocess.run(
        ["git", "ls-tree", "-r", "--format=%(objectname) %(path)", "HEAD", GENERATED],
        cwd=root, capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    asked = "".join(f"{line.split()[0]}\n" for line in listed)
    answers = subprocess.run(
        ["git", "cat-file", "--batch"], cwd=root, input=asked, capture_output=True, text=True, check=True
    )
    return dict(_parsed(answers.stdout, [Path(line.split()[1]).stem for line in listed]))


def _parsed(batch: str, names: list[str]) -> Iterator[tuple[str, Any]]:
    """Yield the objects of `git cat-file --batch`, in which each has a line with its size before it."""
    decoder, place = json.JSONDecoder(), 0
    for name in names:
        record, place = decoder.raw_decode(batch, batch.index("{", place))
        yield name, record


def written(root: Path) -> dict[str, Any]:
    """Return the records in the working tree by model type."""
    return {
        path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted((root / GENERATED).glob("*.json"))
    }


def differences(before: Records, after: Records, remote: set[str]) -> Iterator[Difference]:
    """Yield what a release changed. remote: the types that ropetool knows from remote code."""
    for name in sorted(before.keys() | after.keys()):
        if name not in after:
            yield Difference(name, "gone", "transformers has no such type any more", needs_hand=True)
        elif name not in before:
            state = "now native" if name in remote else "new"
            yield Difference(
                name, state, _outcome(after[name]), after[name]["outcome"] not in PROVEN or state == "now native"
            )
        elif keys := [
            key for key in sorted(before[name].keys() | after[name].keys()) if _changed(before[name], after[name], key)
        ]:
            words = "; ".join(
                f"{key}: {_short(before[name].get(key))} became {_short(after[name].get(key))}" for key in keys
            )
            yield Difference(name, "changed", words, needs_hand=True)


def _changed(before: Mapping[str, Any], after: Mapping[str, Any], key: str) -> bool:
    return key != RELEASE and before.get(key) != after.get(key)


def _outcome(record: Mapping[str, Any]) -> str:
    return f"{record['outcome']}: {record['reason']}" if record.get("reason") else str(record["outcome"])


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."

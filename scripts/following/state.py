"""What is done for a release: the pins, the records, and scripts/following/followed.json with what passed."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import records

from following import pins
from following.packages import Package

ROOT = Path(__file__).resolve().parents[2]
FOLLOWED = Path(__file__).with_name("followed.json")
CHANGELOG = ROOT / "docs" / "changelog.md"
SCORES = ROOT / "tests" / "conformance" / "scores.json"
READS = "- Follows {} {}."


def followed() -> dict[str, str]:
    """Return the release of each package with which every step passed."""
    releases: dict[str, str] = json.loads(FOLLOWED.read_text(encoding="utf-8"))
    return releases


def write_followed(package: Package, release: str) -> None:
    """Note that every step passed with a release."""
    FOLLOWED.write_text(
        json.dumps({**followed(), package.name: release}, indent=1, sort_keys=True) + "\n", encoding="utf-8"
    )


def is_followed(package: Package, release: str) -> bool:
    """Return whether nothing is due for a release."""
    pinned = pins.pinned(ROOT, package)
    return pinned == release == followed().get(package.name) and not due(package, release)


def due(package: Package, release: str) -> list[str]:
    """Return the records of a package that were made with another release. Other reasons do not count."""
    stamps = records.stamps()
    return [name for name in package.records if _is_due(records.BY_NAME[name], stamps.get(name), package, release)]


def _is_due(record: records.Record, stamp: records.Stamp | None, package: Package, release: str) -> bool:
    if stamp is None:
        return True
    if package.name in record.versions and stamp["versions"].get(package.name) != release:
        return True
    inputs = record.inputs_now()
    return any(file in inputs and inputs[file] != stamp["inputs"].get(file) for file in package.pins)


def committed_pin(package: Package) -> str:
    """Return the release that the last commit pins."""
    order = ["git", "show", f"HEAD:{package.pins[0]}"]
    text = subprocess.run(order, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return pins.releases(text, package.name)[-1]


def recorded_columns(engines: tuple[str, ...]) -> list[str]:
    """Return the recorded columns of the conformance kit of these engines, such as "vllm float32"."""
    scores = json.loads(SCORES.read_text(encoding="utf-8"))
    return [column for column in scores["engines"] if column.split()[0] in engines]


def write_changelog(package: Package, release: str) -> None:
    """Write the line about the package into the newest section of the changelog, or change its release there."""
    text = CHANGELOG.read_text(encoding="utf-8")
    start = text.index("\n## ") + 1
    end = text.find("\n## ", start)
    section = text[start:end] if end > 0 else text[start:]
    line = READS.format(package.name, release)
    pattern = rf"(?m)^{re.escape(READS.format(package.name, ''))[:-2]}[\w.]+\.$"
    if re.search(pattern, section):
        changed = re.sub(pattern, line, section)
    else:
        *_, last = re.finditer(r"(?m)^- .*(\n  .*)*$", section)
        changed = f"{section[: last.end()]}\n{line}{section[last.end() :]}"
    CHANGELOG.write_text(text[:start] + changed + text[start + len(section) :], encoding="utf-8")

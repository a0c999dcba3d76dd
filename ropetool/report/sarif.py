"""The findings of `ropetool doctor` in SARIF 2.1.0, which code hosts and editors show next to the files.

Source: OASIS, Static Analysis Results Interchange Format Version 2.1.0, sections 3.13 to 3.58.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ropetool import __version__, names
from ropetool.doctor import Diagnosis, Examined, Finding, Rule
from ropetool.errors import OutputError
from ropetool.files import hub
from ropetool.files.output import check_output
from ropetool.files.transaction import staged

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
VERSION = "2.1.0"
NO_SOURCE = Path(os.devnull)  # a log has no source, so it may be anywhere, also inside a checkpoint
HEAD_BYTES = 500  # at the start of a log that contain its schema


def sarif(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return a SARIF log with one run."""
    index = {rule.name: number for number, rule in enumerate(diagnosis.rules)}
    results = [
        _result(one, finding, index) for one in diagnosis.examined for finding in one.findings if finding.rule in index
    ]
    driver = {"name": "ropetool doctor", "version": __version__, "rules": [_rule(rule) for rule in diagnosis.rules]}
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    return {"$schema": SCHEMA, "version": VERSION, "runs": [run]}


def write_sarif(diagnosis: Diagnosis, path: Path) -> None:
    """Write a log, whole or not at all. Raises: OutputError."""
    with staged(path, NO_SOURCE, force=True, may_replace=_not_a_log) as stage:
        stage.write_text(json.dumps(sarif(diagnosis), indent=2) + "\n", encoding="utf-8")


def check_place(path: Path) -> None:
    """Return if a log can be written to this path, which may be an existing log. Call this before the examination.

    Raises: OutputError.
    """
    try:
        check_output(path, NO_SOURCE, force=True, may_replace=_not_a_log)
    except OutputError as error:
        error.message = error.message.partition("; --force")[0]  # an option that doctor has not
        error.try_ = error.try_.replace("another -o", "another --sarif")
        raise


def _not_a_log(path: Path) -> str:
    with path.open("rb") as file:
        return "" if b"sarif" in file.read(HEAD_BYTES) else "is not a SARIF log, so ropetool does not replace it"


def _rule(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.name,
        "shortDescription": {"text": _sentence(rule.summary)},
        "fullDescription": {"text": rule.why},
        "defaultConfiguration": {"level": rule.severity},
    }


def _result(one: Examined, finding: Finding, index: dict[str, int]) -> dict[str, Any]:
    fix = f" Fix: {finding.fix}" if finding.fix else ""
    return {
        "ruleId": finding.rule,
        "ruleIndex": index[finding.rule],
        "level": finding.severity,
        "message": {"text": f"{_sentence(finding.sentence)}{fix}"},
        "locations": [_location(one, finding)],
        "properties": {"runtimes": list(finding.runtimes)},
    }


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith(('.', '?')) else '.'}"


def _location(one: Examined, finding: Finding) -> dict[str, Any]:
    """Return the file of a finding and the line of its key. A path in the working folder is relative to it."""
    if hub.hub_id(one.name) is not None:
        return {"logicalLocations": [{"fullyQualifiedName": one.name, "kind": "module"}]}
    path, line = Path(one.name), finding.line
    if one.format == "hf":
        in_tokenizer = finding.key == names.MODEL_MAX_LENGTH
        path = path / (names.TOKENIZER_CONFIG_JSON if in_tokenizer else names.CONFIG_JSON)
    place: dict[str, Any] = {"artifactLocation": {"uri": _uri(path)}}
    if path.suffix == ".json":
        place["region"] = {"startLine": line or 1}
    return {"physicalLocation": place}


def _uri(path: Path) -> str:
    absolute, here = os.path.abspath(path), os.getcwd()
    if os.path.commonpath([absolute, here]) == here:
        return quote(Path(os.path.relpath(absolute, here)).as_posix(), errors="surrogateescape")
    return f"file://{quote(Path(absolute).as_posix(), errors='surrogateescape')}"

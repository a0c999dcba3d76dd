"""The findings of `ropetool doctor` and its rules: as parts for a terminal, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any

from ropetool import runtimes
from ropetool.doctor import ERROR, NOTE, WARNING, Diagnosis, Examined, Finding, Rule
from ropetool.doctor.fixing import Repair
from ropetool.sections import Part, counted, listing

SCHEMA = 1
SEVERITIES = (ERROR, WARNING, NOTE)
FORMATS = {"hf": "Hugging Face", "gguf": "GGUF"}


def diagnosis_parts(diagnosis: Diagnosis, repairs: Sequence[Repair] = ()) -> Iterator[Part]:
    """Yield the findings by checkpoint, then the repairs, then the counts."""
    troubled = [checkpoint for checkpoint in diagnosis.examined if checkpoint.findings]
    for checkpoint in troubled:
        yield listing(checkpoint.name, _finding_rows(checkpoint.findings))
    if repairs:
        yield listing("fixed", map(_repaired, repairs))
    if troubled or repairs:
        yield ""
    written = sum(repair.output is not None for repair in repairs)
    yield counts_text(diagnosis, f"; {written} fixed" if written else "")


def _repaired(each: Repair) -> tuple[str, str, str]:
    """Return the path of the copy, the rule and the keys; without a copy, the checkpoint, the rule and the reason."""
    if each.output is None:
        return each.name, each.rule, f"not written: {each.refusal}"
    left = f"; still {counted(each.errors_left, ERROR)}" if each.errors_left else ""
    keys = ", ".join(dict.fromkeys(".".join(edit.path) for edit in each.edits))
    return str(each.output), each.rule, f"{keys}{left}"


def _finding_rows(findings: Sequence[Finding]) -> Iterator[tuple[str, str, str]]:
    """Yield a row for each finding, and one for its fix after the last finding that the fix repairs."""
    for finding, following in zip_longest(findings, findings[1:]):
        yield finding.severity, finding.rule, finding.sentence
        if finding.fix and (following is None or following.fix != finding.fix):
            yield "", "", f"fix: `{finding.fix}`" if finding.is_command else f"fix: {finding.fix}"


def counts_text(diagnosis: Diagnosis, more: str = "") -> str:
    """Return the number of checkpoints and of findings by severity, in one line."""
    examined = [checkpoint for checkpoint in diagnosis.examined if not checkpoint.skipped]
    severities = [severity for severity in SEVERITIES if diagnosis.count(severity)]
    counts = ", ".join(counted(diagnosis.count(severity), severity) for severity in severities)
    quiet = sum(not checkpoint.findings for checkpoint in examined)
    without = f"; {quiet} without findings" if counts and quiet else ""
    return f"{counted(len(examined), 'checkpoint')}: {counts or 'nothing found'}{without}{more}"


def diagnosis_json(diagnosis: Diagnosis, repairs: Sequence[Repair] = ()) -> dict[str, Any]:
    """Return what `ropetool doctor --json` prints."""
    return {
        "schema": SCHEMA,
        "checkpoints": [_examined_json(one) for one in diagnosis.examined],
        "counts": {severity: diagnosis.count(severity) for severity in SEVERITIES},
        "fixed": [
            {
                "source": each.name, "rule": each.rule, "output": None if each.output is None else str(each.output),
                "edits": [edit.to_json() for edit in each.edits], "refusal": each.refusal or None,
                "errors_left": each.errors_left,
            }
            for each in repairs
        ],
    }  # fmt: skip


def _examined_json(one: Examined) -> dict[str, Any]:
    return {
        "source": one.name,
        "format": one.format or None,
        "family": one.family or None,
        "skipped": one.skipped or None,
        "compared_with": one.source or None,
        "findings": [_finding_json(finding) for finding in one.findings],
    }


def _finding_json(finding: Finding) -> dict[str, Any]:
    return {
        "rule": finding.rule, "severity": finding.severity, "sentence": finding.sentence, "fix": finding.fix or None,
        "fix_is_command": finding.is_command, "key": finding.key or None, "runtimes": list(finding.runtimes),
    }  # fmt: skip


def rules_parts(rules: Sequence[Rule]) -> Iterator[Part]:
    """Yield what `ropetool doctor --rules` prints."""
    yield listing("", [(rule.name, rule.severity, rule.summary) for rule in rules], depth=-1)


def rules_json(rules: Sequence[Rule]) -> dict[str, Any]:
    """Return what `ropetool doctor --rules --json` prints."""
    listed = [
        {
            "name": rule.name, "severity": rule.severity, "summary": rule.summary, "why": rule.why,
            "formats": list(rule.formats),
        }
        for rule in rules
    ]  # fmt: skip
    return {"schema": SCHEMA, "rules": listed, "runtimes": runtimes.names()}

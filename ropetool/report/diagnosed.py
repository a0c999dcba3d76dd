"""What `ropetool doctor` found as text for a terminal, and as JSON; and its rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ropetool import runtimes
from ropetool.doctor import ERROR, NOTE, WARNING, Diagnosis, Examined, Finding, Rule
from ropetool.doctor.fixing import Repair
from ropetool.escaping import escaped
from ropetool.report.layout import columns, counted

SCHEMA = 1
SEVERITIES = (ERROR, WARNING, NOTE)
FORMATS = {"hf": "Hugging Face", "gguf": "GGUF"}


def diagnosis_text(found: Diagnosis, width: int | None = None, repairs: Sequence[Repair] = ()) -> str:
    """Return what `ropetool doctor` prints: what was found by checkpoint, what was mended, then how much of it there is."""
    blocks = [_block(one, width) for one in found.examined if one.findings]
    if repairs:
        blocks.append(f"fixed\n{columns([_repaired(each) for each in repairs], width=width)}")
    mended = sum(each.output is not None for each in repairs)
    return "\n".join([*blocks, counts_text(found, f"; {mended} fixed" if mended else "")])


def _repaired(each: Repair) -> tuple[str, str, str]:
    """Return a row: the copy, or the checkpoint that has none; the rule; and the keys, or why not."""
    if each.output is None:
        return escaped(each.name), each.rule, f"not written: {each.refusal}"
    left = f"; still {counted(each.errors_left, ERROR)}" if each.errors_left else ""
    keys = ", ".join(dict.fromkeys(".".join(edit.path) for edit in each.edits))
    return escaped(each.output), each.rule, f"{keys}{left}"


def _block(one: Examined, width: int | None) -> str:
    rows = []
    for finding, after in zip(one.findings, (*one.findings[1:], None), strict=True):
        rows.append((finding.severity, finding.rule, finding.sentence))
        if finding.fix and (after is None or after.fix != finding.fix):  # several are mended by one command
            rows.append(("", "", _fix(finding)))
    return f"{escaped(one.name)}\n{columns(rows, width=width)}"


def _fix(finding: Finding) -> str:
    return f"fix: `{finding.fix}`" if finding.is_command else f"fix: {finding.fix}"


def counts_text(found: Diagnosis, more: str = "") -> str:
    """Return the number of checkpoints and of findings by severity, in one line."""
    looked = [one for one in found.examined if not one.skipped]
    counts = [counted(found.count(severity), severity) for severity in SEVERITIES if found.count(severity)]
    quiet = sum(not one.findings for one in looked)
    said = f"{counted(len(looked), 'checkpoint')}: {', '.join(counts) or 'nothing found'}"
    return f"{said}{f'; {quiet} without findings' if counts and quiet else ''}{more}\n"


def diagnosis_json(found: Diagnosis, repairs: Sequence[Repair] = ()) -> dict[str, Any]:
    """Return what `ropetool doctor --json` prints."""
    return {
        "schema": SCHEMA,
        "checkpoints": [_examined_json(one) for one in found.examined],
        "counts": {severity: found.count(severity) for severity in SEVERITIES},
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


def rules_text(rules: Sequence[Rule], width: int | None = None) -> str:
    """Return what `ropetool doctor --rules` prints."""
    return columns([(rule.name, rule.severity, rule.summary) for rule in rules], indent=0, width=width)


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

"""Run the rules over many checkpoints, and collect the findings and the exit code."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ropetool import runtimes
from ropetool.doctor.cases import Case
from ropetool.doctor.findings import ERROR, SEVERITIES, WARNING, Finding, Rule
from ropetool.doctor.opening import UNREADABLE, Target, opened, targets_of
from ropetool.doctor.rules import chosen
from ropetool.errors import NotACheckpoint, RopetoolError
from ropetool.escaping import Tabular

FOUND_ERRORS, NOT_READ = 3, 1  # exit codes


@dataclass(frozen=True)
class Examined:
    """The findings in a checkpoint. It contains only names, not the checkpoint, because there may be thousands of them.

    name: a path or a Hub id.
    findings: the worst first.
    format: "hf" or "gguf". Empty if ropetool could not read the checkpoint.
    family: the model type. Empty if it is unknown.
    source: the name of the checkpoint that it was compared with, or an empty string.
    skipped: why a file in a folder was skipped: it is a projector or an adapter. Empty if it was not.
    """

    name: str
    findings: tuple[Finding, ...]
    format: str = ""
    family: str = ""
    source: str = ""
    skipped: str = ""


@dataclass(frozen=True)
class Diagnosis(Tabular):
    """The findings in all checkpoints.

    rules: the rules that were run.
    for_runtimes: the user's runtimes as passed. Empty for all runtimes.
    """

    examined: tuple[Examined, ...]
    rules: tuple[Rule, ...]
    for_runtimes: tuple[str, ...] = ()

    @property
    def findings(self) -> Iterator[Finding]:
        return (finding for one in self.examined for finding in one.findings)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield a row for each finding, with the name of its checkpoint."""
        for one in self.examined:
            for finding in one.findings:
                yield {"checkpoint": one.name, **vars(finding)}

    def count(self, severity: str) -> int:
        """Return the number of findings with this severity."""
        return sum(finding.severity == severity for finding in self.findings)

    @property
    def exit_code(self) -> int:
        """Return the exit code: 0 without errors, 3 if a checkpoint has an error, 1 if only unreadable files have."""
        with_errors = [one for one in self.examined if any(f.severity == ERROR for f in one.findings)]
        return 0 if not with_errors else FOUND_ERRORS if any(one.format for one in with_errors) else NOT_READ


Progress = Callable[[str, int, int], None]


def examine(
    named: Sequence[str],
    *,
    source: str | None = None,
    only: Iterable[str] = (),
    for_runtimes: Iterable[str] = (),
    progress: Progress | None = None,
) -> Diagnosis:
    """Return the findings in checkpoints. Does not read weights, and does not write.

    named: paths, folders with many checkpoints, and Hub ids.
    source: a checkpoint that all of them must have the same table as.
    only: the names of the rules to run. All rules if empty.
    for_runtimes: skip findings about other runtimes, and treat warnings about these as errors.
    progress: a callback that gets the name, the number of finished checkpoints and the number of all checkpoints.
    Raises: UnknownName for a rule, UnknownRuntime for a runtime. CheckpointError or HubError if the source does not
      open.
    """
    rules, for_runtimes = chosen(only), tuple(for_runtimes)
    runtime_names = _runtimes(for_runtimes)
    origin = None if source is None else opened(Target(source, True))
    targets = [target for name in named for target in _targets(name)]
    examined = []
    for done, target in enumerate(targets):
        if progress is not None:
            progress(target.name, done, len(targets))
        examined.append(_examined(target, origin, rules, runtime_names) if isinstance(target, Target) else target)
    return Diagnosis(tuple(examined), rules, for_runtimes)


def _targets(name: str) -> list[Target | Examined]:
    """Return the checkpoints of a path or Hub id. If that fails, return an unreadable one with the reason."""
    try:
        return list(targets_of(name))
    except (RopetoolError, OSError) as error:
        return [_unreadable(name, error)]


def _runtimes(asked: Iterable[str]) -> frozenset[str]:
    """Return the full names of runtimes. Raises: UnknownRuntime."""
    return frozenset(runtime.name for name in asked for runtime in runtimes.all_of(name))


def _examined(target: Target, source: Case | None, rules: Sequence[Rule], for_runtimes: frozenset[str]) -> Examined:
    try:
        case = opened(target, source, for_runtimes)
    except NotACheckpoint as error:
        if target.explicit:
            return _unreadable(target.name, error)
        return Examined(target.name, (), skipped=error.message)  # a projector or an adapter
    except (RopetoolError, OSError) as error:
        return _unreadable(target.name, error)
    findings = [finding for rule in rules if case.format in rule.formats for finding in rule.find(case)]
    kept = [each for finding in findings for each in _for_runtimes(finding, for_runtimes)]
    kept = [replace(finding, line=_line(case, finding.key)) for finding in kept]
    kept.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    family = case.inspection.family.model_type if case.inspection and case.inspection.family else ""
    return Examined(target.name, tuple(kept), case.format, family, case.source.name if case.source else "")


def _line(case: Case, key: str) -> int:
    """Return the line of config.json in which a key occurs first, counted from 1. 0 if it does not occur."""
    start = case.hf.text.find(f'"{key}"') if case.hf is not None and key else -1
    return case.hf.text.count("\n", 0, start) + 1 if case.hf is not None and start >= 0 else 0


def _for_runtimes(finding: Finding, for_runtimes: frozenset[str]) -> Iterator[Finding]:
    """Yield a finding as it counts for a user of these runtimes: none about other runtimes, and warnings as errors."""
    if not for_runtimes or not finding.runtimes:
        yield finding
    elif for_runtimes.intersection(finding.runtimes):
        yield replace(finding, severity=ERROR if finding.severity == WARNING else finding.severity)


def _unreadable(name: str, error: RopetoolError | OSError) -> Examined:
    message = error.message if isinstance(error, RopetoolError) else error.strerror or str(error)
    where = error.where if isinstance(error, RopetoolError) else str(error.filename or "")
    sentence = f"{where}: {message}" if where and where != name else message
    return Examined(name, (Finding(UNREADABLE, ERROR, sentence, getattr(error, "try_", "")),))

"""Many checkpoints examined by the rules: what was found in each, and whether that is an error."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ropetool import runtimes
from ropetool.doctor.cases import Case
from ropetool.doctor.findings import ERROR, SEVERITIES, WARNING, Finding, Rule
from ropetool.doctor.opening import UNREADABLE, Place, opened, places
from ropetool.doctor.rules import chosen
from ropetool.errors import NotACheckpoint, RopetoolError
from ropetool.escaping import Tabular

FOUND_ERRORS, NOT_READ = 3, 1  # exit codes


@dataclass(frozen=True)
class Examined:
    """One checkpoint and what was found; of the checkpoint itself only names are kept, for there may be thousands.

    format: empty where it could not be read. source: what it was compared with. skipped: why it is not what was looked for.
    """

    name: str
    findings: tuple[Finding, ...]
    format: str = ""
    family: str = ""
    source: str = ""
    skipped: str = ""


@dataclass(frozen=True)
class Diagnosis(Tabular):
    """What was found in all of them. rules: those that were asked. for_runtimes: those that the user has, as named."""

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
        """Return how many findings are as severe."""
        return sum(finding.severity == severity for finding in self.findings)

    @property
    def exit_code(self) -> int:
        """0 without an error; 3 with one in a checkpoint that was read; 1 where all there is are files that cannot be read."""
        found = [one for one in self.examined if any(f.severity == ERROR for f in one.findings)]
        return 0 if not found else FOUND_ERRORS if any(one.format for one in found) else NOT_READ


Progress = Callable[[str, int, int], None]


def examine(
    named: Sequence[str],
    *,
    source: str | None = None,
    only: Iterable[str] = (),
    for_runtimes: Iterable[str] = (),
    progress: Progress | None = None,
) -> Diagnosis:
    """Return what the rules find in checkpoints: paths, folders of many, hub ids; reads no weights and writes nothing.

    source: a checkpoint that they should compute the same as. only: the rules to ask. for_runtimes: say of other runtimes
    only what concerns these, and count it as an error. progress: told the name, how many are done, and how many there are.
    Raises: UnknownName for a rule or a runtime; what opening the source raises.
    """
    rules, for_runtimes = chosen(only), tuple(for_runtimes)
    wanted = _runtimes(for_runtimes)
    origin = None if source is None else opened(Place(source, True))
    found = [place for name in named for place in _places(name)]
    examined = []
    for done, place in enumerate(found):
        if progress is not None:
            progress(place.name, done, len(found))
        examined.append(_examined(place, origin, rules, wanted) if isinstance(place, Place) else place)
    return Diagnosis(tuple(examined), rules, for_runtimes)


def _places(name: str) -> list[Place | Examined]:
    """Return what a path or a hub id stands for, or that there is nothing."""
    try:
        return list(places(name))
    except (RopetoolError, OSError) as error:
        return [_unreadable(name, error)]


def _runtimes(asked: Iterable[str]) -> frozenset[str]:
    """Return the full names of runtimes. Raises: UnknownRuntime."""
    return frozenset(runtime.name for name in asked for runtime in runtimes.all_of(name))


def _examined(place: Place, source: Case | None, rules: Sequence[Rule], wanted: frozenset[str]) -> Examined:
    try:
        case = opened(place, source, wanted)
    except NotACheckpoint as error:
        if place.explicit:
            return _unreadable(place.name, error)
        return Examined(place.name, (), skipped=error.message)  # a projector, an adapter: not what was looked for
    except (RopetoolError, OSError) as error:
        return _unreadable(place.name, error)
    found = [finding for rule in rules if case.format in rule.formats for finding in rule.find(case)]
    kept = [each for finding in found for each in _for_runtimes(finding, wanted)]
    kept = [replace(finding, line=_line(case, finding.key)) for finding in kept]
    kept.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    family = case.found.family.model_type if case.found and case.found.family else ""
    return Examined(place.name, tuple(kept), case.format, family, case.source.name if case.source else "")


def _line(case: Case, key: str) -> int:
    at = case.hf.text.find(f'"{key}"') if case.hf is not None and key else -1
    return case.hf.text.count("\n", 0, at) + 1 if case.hf is not None and at >= 0 else 0


def _for_runtimes(finding: Finding, wanted: frozenset[str]) -> Iterator[Finding]:
    """Yield a finding as it counts for whoever uses these runtimes: of others nothing, of theirs an error."""
    if not wanted or not finding.runtimes:
        yield finding
    elif wanted.intersection(finding.runtimes):
        yield replace(finding, severity=ERROR if finding.severity == WARNING else finding.severity)


def _unreadable(name: str, error: RopetoolError | OSError) -> Examined:
    said = error.message if isinstance(error, RopetoolError) else error.strerror or str(error)
    where = error.where if isinstance(error, RopetoolError) else str(error.filename or "")
    sentence = f"{where}: {said}" if where and where != name else said
    return Examined(name, (Finding(UNREADABLE, ERROR, sentence, getattr(error, "try_", "")),))

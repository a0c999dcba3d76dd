"""The result of an export or an import: as parts for a terminal, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from ropetool.files.counting import byte_size
from ropetool.report.planned import serving_parts, sidecar_rows
from ropetool.sections import Part, listing
from ropetool.verification.results import INEXACT, NOT_RUN, UNDECIDED, Check

SCHEMA = 1


class Converted(Protocol):
    """The result of an export or an import. This protocol avoids importing their packages, which load half of ropetool."""

    @property
    def output(self) -> Path: ...
    @property
    def arch(self) -> str: ...
    @property
    def tensors(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def encoding(self) -> str: ...
    @property
    def context_length(self) -> int: ...
    @property
    def checks(self) -> tuple[Check, ...]: ...
    def to_json(self) -> dict[str, Any]: ...


class WrittenGguf(Converted, Protocol):
    """The further attributes of an export."""

    @property
    def outtype(self) -> str: ...
    @property
    def bakes(self) -> tuple[str, ...]: ...
    @property
    def sidecars(self) -> tuple[Path, ...]: ...
    @property
    def serving(self) -> tuple[str, ...]: ...


class WrittenHf(Converted, Protocol):
    """The further attributes of an import."""

    @property
    def model_type(self) -> str: ...
    @property
    def dtype(self) -> str: ...


def exported_parts(written: WrittenGguf) -> Iterator[Part]:
    """Yield the facts about an exported file, and the command lines that serve it."""
    rows = [
        ("architecture", written.arch),
        ("context", f"{written.context_length} tokens, {written.encoding}"),
        ("tensors", f"{written.tensors}, matrices in {written.outtype}, {byte_size(written.nbytes)}"),
        *(("weights", sentence) for sentence in written.bakes),
        *_check_rows(written.checks),
        *sidecar_rows(written.sidecars),
    ]
    yield listing(str(written.output), rows)
    yield from serving_parts(written.serving)


def imported_parts(written: WrittenHf) -> Iterator[Part]:
    """Yield the facts about an imported checkpoint."""
    rows = [
        ("model_type", f"{written.model_type}, from a {written.arch} file"),
        ("context", f"{written.context_length} tokens, {written.encoding}"),
        ("tensors", f"{written.tensors} in {written.dtype}, {byte_size(written.nbytes)}"),
        *_check_rows(written.checks),
    ]
    yield listing(str(written.output), rows)


def _check_rows(checks: Sequence[Check]) -> list[tuple[str, str]]:
    words = {NOT_RUN: "not checked", UNDECIDED: "undecided", INEXACT: "inexact"}
    return [(words.get(check.verdict, "checked"), _check_words(check)) for check in checks]


def _check_words(check: Check) -> str:
    unjudged = check.figure is None or check.limit is None or check.verdict == INEXACT
    figure = "" if unjudged else f" {check.figure:.2g} of at most {check.limit:.2g},"
    return f"{check.name}:{figure} {check.detail}"


def written_json(written: Converted) -> dict[str, Any]:
    """Return what `ropetool export --json` and `import --json` print."""
    return {"schema": SCHEMA, **written.to_json()}

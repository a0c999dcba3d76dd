"""What an export or an import wrote, as text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from ropetool.escaping import escaped
from ropetool.files.counting import byte_size
from ropetool.report.layout import columns, serving_text, sidecar_rows
from ropetool.verification.results import INEXACT, NOT_RUN, UNDECIDED, Check

SCHEMA = 1


class Written(Protocol):
    """What an export or an import wrote. Their layers lie above this one, so their types are known by shape."""

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


class Exported(Written, Protocol):
    """What an export says besides."""

    @property
    def outtype(self) -> str: ...
    @property
    def bakes(self) -> tuple[str, ...]: ...
    @property
    def sidecars(self) -> tuple[Path, ...]: ...
    @property
    def serving(self) -> tuple[str, ...]: ...


class Imported(Written, Protocol):
    """What an import says besides."""

    @property
    def model_type(self) -> str: ...
    @property
    def dtype(self) -> str: ...


def exported_text(written: Exported) -> str:
    """Return what `ropetool export` prints."""
    rows = [
        ("architecture", written.arch),
        ("context", f"{written.context_length} tokens, {written.encoding}"),
        ("tensors", f"{written.tensors}, matrices in {written.outtype}, {byte_size(written.nbytes)}"),
        *(("weights", words) for words in written.bakes),
        *_check_rows(written.checks),
        *sidecar_rows(written.sidecars),
    ]
    return f"{escaped(written.output)}\n{columns(rows)}{serving_text(written.serving)}"


def _check_rows(checks: Sequence[Check]) -> list[tuple[str, str]]:
    words = {NOT_RUN: "not checked", UNDECIDED: "undecided", INEXACT: "inexact"}
    return [(words.get(check.verdict, "checked"), _check_words(check)) for check in checks]


def _check_words(check: Check) -> str:
    unjudged = check.figure is None or check.limit is None or check.verdict == INEXACT
    figure = "" if unjudged else f" {check.figure:.2g} of at most {check.limit:.2g},"
    return f"{check.name}:{figure} {check.detail}"


def written_json(written: Written) -> dict[str, Any]:
    """Return what `ropetool export --json` and `import --json` print."""
    return {"schema": SCHEMA, **written.to_json()}


def imported_text(written: Imported) -> str:
    """Return what `ropetool import` prints."""
    rows = [
        ("model_type", f"{written.model_type}, from a {written.arch} file"),
        ("context", f"{written.context_length} tokens, {written.encoding}"),
        ("tensors", f"{written.tensors} in {written.dtype}, {byte_size(written.nbytes)}"),
        *_check_rows(written.checks),
    ]
    return f"{escaped(written.output)}\n{columns(rows)}"

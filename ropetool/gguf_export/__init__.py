"""Export to GGUF: one file for llama.cpp with the same positions as the Hugging Face checkpoint.

gguf_model gives the contents. This package streams the tensors into the file and compares it with the checkpoint. It refuses a
checkpoint that the file or llama.cpp cannot represent, and one that ropetool made and that is broken. It notes other differences.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ropetool.checkpoint import provenance
from ropetool.checkpoint.gguf_keys import KL as INEXACT_KL
from ropetool.checkpoint.gguf_keys import stamp, stamp_inexact
from ropetool.checkpoint.hf import HfCheckpoint
from ropetool.checkpoint.opening import open_checkpoint
from ropetool.checkpoint.provenance import Provenance
from ropetool.errors import CorruptFile, LossyExport, RopetoolError, UnsupportedDtype
from ropetool.escaping import Shown
from ropetool.files import hub
from ropetool.files.counting import nobody
from ropetool.files.gguf import Value, ValueType
from ropetool.files.gguf.splitting import limits_of
from ropetool.files.gguf.writer import overwrite_value
from ropetool.gguf_export import files, kquants
from ropetool.gguf_export import sidecars as companions
from ropetool.gguf_export.comparing import compare
from ropetool.gguf_export.container import File, Progress
from ropetool.gguf_export.converter import prepared
from ropetool.gguf_export.converter.trial import check_runs
from ropetool.gguf_export.files import Choices
from ropetool.gguf_export.imatrix import Weights
from ropetool.gguf_export.preparing import ExportOptions, PreparedExport, prepare
from ropetool.gguf_export.vouching import check_grade, vouched
from ropetool.gguf_model.outtypes import AUTO, check_outtype
from ropetool.rope.deviation import Deviation
from ropetool.runtimes import inspection
from ropetool.verification.kl_gate import KL
from ropetool.verification.kl_gate import NAMES as KL_NAMES
from ropetool.verification.results import NOT_RUN, Check
from ropetool.verification.short_divergence import COMPARING_LOGITS, ModelLengths

__all__ = ["COMPARING_LOGITS", "Exported", "Progress", "check_export", "export_checkpoint"]


# The next step where a refusal names none of its own.
_NEXT_STEPS: tuple[tuple[type[RopetoolError], str], ...] = (
    (LossyExport, "run the checkpoint with transformers or vLLM; llama.cpp would compute something else"),
    (UnsupportedDtype, "save its weights in bfloat16 with transformers, then export that"),
    (CorruptFile, "download the file again, or save the checkpoint again with transformers"),
)


@contextmanager
def _with_next_step() -> Iterator[None]:
    """Give a refusal that says no next step the one of its kind."""
    try:
        yield
    except RopetoolError as error:
        error.try_ = error.try_ or next((step for kind, step in _NEXT_STEPS if isinstance(error, kind)), "")
        raise


@dataclass(frozen=True)
class Exported(Shown):
    """What was written. output: the file, the first of several. encoding: how its rotary table is stated.

    nbytes: the size of all files. bakes: what its weights hold that the checkpoint's keys ask for. checks: how the file
    compares with the checkpoint. serving: the command lines that serve it. sidecars: its model card and Modelfile.
    deviation: of its tables from the checkpoint's, None where they are the same.
    """

    output: Path
    arch: str
    outtype: str
    tensors: int
    nbytes: int
    encoding: str
    context_length: int
    notes: tuple[str, ...]
    bakes: tuple[str, ...] = ()
    checks: tuple[Check, ...] = ()
    serving: tuple[str, ...] = ()
    sidecars: tuple[Path, ...] = ()
    deviation: Deviation | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the facts as plain data."""
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in vars(self).items()}
        checks, sidecars = [vars(check) for check in self.checks], [str(path) for path in self.sidecars]
        apart = None if self.deviation is None else self.deviation.to_json()
        return {**plain, "output": str(self.output), "checks": checks, "sidecars": sidecars, "deviation": apart}


@_with_next_step()
def export_checkpoint(
    source: str | Path,
    output: str | Path | None = None,
    *,
    outtype: str = AUTO,
    imatrix: str | Path | None = None,
    split_max_size: str | None = None,
    split_max_tensors: int | None = None,
    allow_nan: bool = False,
    force: bool = False,
    allow_full_attention: bool = False,
    allow_unverified: bool = False,
    require: str = "",
    rearch: str = "",
    converter: str = "",
    shift_safe: bool = False,
    allow_inexact: bool = False,
    check: bool = True,
    sidecars: bool = True,
    command: str = "",
    progress: Progress | None = None,
) -> Exported:
    """Write a checkpoint as a GGUF file, whole or not at all, and return what was written.

    Without an output it goes beside the source, as NAME-TYPE.gguf; its provenance goes beside it, and with `sidecars` a
    model card and a Modelfile. `command` is the command line that asked for it, for the card. `outtype` is the type
    of the matrices, one of outtypes.OUTTYPES, or auto for the source's own; `imatrix` an importance matrix for those
    that libllama makes. Tensors of more bytes than `split_max_size`, as "2G", or more than `split_max_tensors` of them
    go to several files, NAME-00001-of-00003.gguf. `rearch` is another architecture whose graph computes the same.
    `converter`: what converts a family that has no table here, a folder of llama.cpp's sources, the script, or `auto`.
    `shift_safe` puts the attention factor into the keys, so that llama.cpp can turn cached ones again. `allow_inexact`
    writes the nearest tables where llama.cpp cannot hold the exact ones. What ropetool
    made is refused if its verification failed, or if it is not what its record says, unless `allow_unverified`. `require`
    asks for a passing certificate of a grade up to the whole context.
    With `check` the tokens are compared before anything is written, and tables and logits before the file gets its name.
    `progress` is told the tensor, the bytes done, and those of the whole; in the stage COMPARING_LOGITS tokens, and 0 where
    that is unknown.
    Raises: CheckpointError for broken files and for a source that is broken or lacks such a certificate, ConfigError for broken values,
    UnknownName for an unknown family or type, LossyExport for what a GGUF file or llama.cpp cannot hold, OutputError,
    MissingDependency for a type that needs llama-cpp-python; VerificationFailed for a file that computes something
    else. A NaN or an infinity among the weights is a CheckpointError, unless `allow_nan`.
    """
    matrix = None if imatrix is None else Path(imatrix)
    choices = Choices(outtype, allow_nan, matrix, limits_of(split_max_size, split_max_tensors))
    check_outtype(outtype)
    entries = kquants.check(outtype, matrix)
    options = ExportOptions(
        outtype, force, allow_full_attention, rearch, shift_safe, check, choices.limits, sidecars, allow_inexact
    )
    tell = progress or nobody
    asking = _Asking(matrix, entries, allow_unverified, require, command)
    with _ready(hub.local(source), output, options, converter, tell) as ready:
        return _written(ready, choices, options, asking, tell)


@contextmanager
def _ready(
    source: Path, output: str | Path | None, options: ExportOptions, asked: str, progress: Progress
) -> Iterator[PreparedExport]:
    """Yield the export of a checkpoint: by its family's table, or where it has none by the converter that is asked for."""
    checkpoint = open_checkpoint(source)
    if not asked or not isinstance(checkpoint, HfCheckpoint):
        yield prepare(checkpoint, output, options)
    elif checkpoint.family.export is not None:
        ready = prepare(checkpoint, output, options)
        unused = f"ropetool ignored --converter, because it has its own tensor table for {checkpoint.name}"
        yield replace(ready, notes=(unused, *ready.notes))
    else:
        with prepared(checkpoint, output, options, asked, progress) as ready:
            yield ready


@dataclass(frozen=True, eq=False)
class _Asking:
    """What is asked of an export beside its content: an importance matrix with its entries, and the options of the gate."""

    matrix: Path | None
    entries: Weights
    allow_unverified: bool
    require: str
    command: str

    def __post_init__(self) -> None:
        check_grade(self.require)


def _written(
    ready: PreparedExport, choices: Choices, options: ExportOptions, asking: _Asking, tell: Progress
) -> Exported:
    matrix_notes = kquants.check_fit(asking.matrix, asking.entries, ready.layout) if asking.matrix is not None else ()
    gate_notes = _gate(ready, asking, tell)
    found = companions.fresh_certificate(ready.source)
    values = {**ready.values, **stamp(ready.source.record, ready.bakes, found)}
    values |= kquants.imatrix_keys(asking.matrix, asking.entries) if asking.matrix is not None else {}
    values |= stamp_inexact(ready.deviation) if ready.deviation is not None else {}
    trained = _trained_length(ready)

    def compared(file: Path, outtype: str) -> tuple[Check, ...]:
        if ready.converter:
            check_runs(file)
        lengths = ModelLengths(trained or ready.context_length, ready.context_length, ready.window)
        checks = compare(ready.source.path, file, (outtype,), lengths, tell, weights=True)
        measured = next((check.figure for check in checks if check.name == KL), None)
        if ready.deviation is not None and measured is not None:
            overwrite_value(file, INEXACT_KL, Value.of(ValueType.F32, measured))
        return checks

    def told(checks: tuple[Check, ...]) -> companions.Exporting:
        checks = (*ready.checks, *checks)
        return companions.Exporting(
            ready.outtype,
            ready.encoding.name,
            ready.context_length,
            ready.bakes,
            checks,
            asking.command,
            ready.deviation,
        )

    written = files.write(
        ready.target, ready.source.path, File(values, ready.layout, ready.encoding.tensors), choices,
        lambda checks: _provenance(ready, trained, (*ready.checks, *checks)),
        lambda paths, checks: companions.texts(ready.source, paths, told(checks), found) if options.sidecars else {},
        compared if options.check else None, force=options.force, progress=tell,
    )  # fmt: skip
    lines = companions.serving(written.paths, ready.context_length, written.sidecars)
    unseen = _unseen(ready, written.checks)
    several = (
        ()
        if len(written.paths) == 1
        else (f"the model is split into {len(written.paths)} files; load this one, the first",)
    )
    return Exported(
        written.paths[0], ready.arch, ready.outtype, written.tensors, written.nbytes, ready.encoding.name,
        ready.context_length, (*ready.notes, *matrix_notes, *written.notes, *several, *gate_notes, *unseen), ready.bakes,
        (*ready.checks, *written.checks), tuple(lines), written.sidecars, ready.deviation,
    )  # fmt: skip


@_with_next_step()
def check_export(source: str | Path, output: str | Path, *, force: bool = False, sidecars: bool = True) -> None:
    """Return if export_checkpoint would write this, its certificate and tokens aside: before a verification of hours.

    Raises: what export_checkpoint does.
    """
    prepare(hub.local(source), output, ExportOptions(force=force, check=False, sidecars=sidecars))


def _gate(ready: PreparedExport, asking: _Asking, tell: Progress) -> tuple[str, ...]:
    """Return notes on the certificate of a source that ropetool made. Raises: CheckpointError as `vouched`."""
    if ready.source.record is None:
        return ()
    if asking.allow_unverified:
        return ("exported without a certificate (--allow-unverified): `ropetool verify` measures the checkpoint",)
    return vouched(ready.source, ready.context_length, asking.require, tell)


def _unseen(ready: PreparedExport, checks: Sequence[Check]) -> tuple[str, ...]:
    """Return a note where nothing has shown that the tensors of a converter's file are the checkpoint's."""
    reasons = [check.detail for check in checks if check.name == KL and check.verdict == NOT_RUN]
    reason = reasons[0] if reasons else "" if any(check.name in KL_NAMES for check in checks) else "--no-check"
    if not ready.converter or not reason:
        return ()
    return (
        f"the logits were not compared with the checkpoint ({reason}), so ropetool relies on llama.cpp's converter for the "
        "tensors. `ropetool verify FILE --against SOURCE` compares them",
    )


def _trained_length(ready: PreparedExport) -> int | None:
    source = ready.source
    return (source.record or inspection.inspect_checkpoint(source)).trained_length


def _provenance(ready: PreparedExport, trained_length: int | None, checks: Sequence[Check]) -> Provenance:
    """Return what the file says about its making: the source's own plan and trained length, as far as it has them."""
    source, made = ready.source, ready.source.record
    export = {"outtype": ready.outtype, "encoding": ready.encoding.name}
    more: dict[str, Any] = {
        "converter": ready.converter,
        "bakes": list(ready.bakes),
        "checks": [vars(check) for check in checks],
    }
    more["deviation"] = None if ready.deviation is None else ready.deviation.to_json()
    return Provenance(
        str(hub.absolute(source.path)), provenance.fingerprint(source.path, source.text), trained_length, made.plan if made else {},
        export=export | {name: value for name, value in more.items() if value},
    )  # fmt: skip

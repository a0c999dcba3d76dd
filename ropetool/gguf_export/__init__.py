"""Export to GGUF: a file for llama.cpp with the same positions as the Hugging Face checkpoint.

gguf_model gives the contents. This package streams the tensors into the file and compares it with the checkpoint. It
refuses a checkpoint that the file or llama.cpp cannot represent, and one that ropetool made and that is broken. It
notes other differences.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
from ropetool.files.gguf.writer import overwrite_value
from ropetool.gguf_export import files
from ropetool.gguf_export import sidecars as companions
from ropetool.gguf_export.container import File, Progress
from ropetool.gguf_export.imatrix import Weights, check_fit, imatrix_keys
from ropetool.gguf_export.options import ExportArguments, ExportOptions, check_grade
from ropetool.gguf_export.preparing import PreparedExport, prepare
from ropetool.gguf_model.outtypes import check_outtype, is_made_by_libllama
from ropetool.plans.basis import Unpack, takes_fields
from ropetool.rope.deviation import Deviation
from ropetool.runtimes import inspection
from ropetool.verification.results import COMPARING_LOGITS, KL, KL_NAMES, NOT_RUN, Check

__all__ = ["COMPARING_LOGITS", "Exported", "Progress", "check_export", "export_checkpoint", "export_source"]


# The next step for a refusal without its own.
_NEXT_STEPS: tuple[tuple[type[RopetoolError], str], ...] = (
    (LossyExport, "run the checkpoint with transformers or vLLM; llama.cpp would compute something else"),
    (UnsupportedDtype, "save its weights in bfloat16 with transformers, then export that"),
    (CorruptFile, "download the file again, or save the checkpoint again with transformers"),
)


@contextmanager
def _with_next_step() -> Iterator[None]:
    """Add the next step of its class to a refusal without a next step."""
    try:
        yield
    except RopetoolError as error:
        error.try_ = error.try_ or next((step for refusal, step in _NEXT_STEPS if isinstance(error, refusal)), "")
        raise


@dataclass(frozen=True)
class Exported(Shown):
    """The result of an export.

    output: the file, or the first of several files.
    arch: llama.cpp's architecture.
    outtype: the type of the matrices.
    tensors: their number.
    nbytes: the size of all files.
    encoding: the way in which the file stores the rotary table.
    context_length: tokens.
    notes: sentences for the user.
    bakes: descriptions of the factors that the checkpoint has in keys, and the file in weights.
    checks: how the file compares with the checkpoint.
    serving: command lines of servers.
    sidecars: the model card and the Modelfile.
    deviation: the difference between the tables of file and checkpoint. None if they are equal.
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
        """Return the result as plain data."""
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in vars(self).items()}
        checks, sidecars = [vars(check) for check in self.checks], [str(path) for path in self.sidecars]
        deviation = None if self.deviation is None else self.deviation.to_json()
        return {**plain, "output": str(self.output), "checks": checks, "sidecars": sidecars, "deviation": deviation}


@takes_fields(ExportOptions, ExportArguments)
def export_checkpoint(
    source: str | Path,
    output: str | Path | None = None,
    *,
    progress: Progress | None = None,
    **options: Unpack[ExportArguments],
) -> Exported:
    """Write a checkpoint as a GGUF file, completely or not at all. Its record is written next to it.

    source: a path, or the id of a model on the hub.
    output: None writes NAME-TYPE.gguf next to the source.
    options: the fields of `ExportOptions`, by name.
    progress: called with a tensor's name, and the finished and total bytes. In the stage COMPARING_LOGITS, the numbers
      are tokens, and the total is 0 while it is unknown.

    Raises: CheckpointError for a broken file, for a NaN or an infinity in the weights without `allow_nan`, for an
    extension by ropetool that failed its verification, that differs from its record, or that lacks the required
    certificate; ConfigError for an invalid option; UnknownName for an unknown family or type; LossyExport for a model
    that a GGUF file or llama.cpp cannot represent; OutputError; MissingDependency for a type that needs
    llama-cpp-python; VerificationFailed for a file that computes something else.
    """
    return export_source(source, output, ExportOptions(**options), progress=progress)


@_with_next_step()
def export_source(
    source: str | Path, output: str | Path | None, options: ExportOptions, *, progress: Progress | None = None
) -> Exported:
    """Write a checkpoint as `export_checkpoint` does. Raises: as `export_checkpoint`."""
    _ = options.limits  # invalid limits are the first error
    check_outtype(options.outtype)
    entries = _importance(options)
    check_grade(options.require)
    tell = progress or nobody
    with _ready(hub.local(source), output, options, tell) as ready:
        return _written(ready, options, entries, tell)


@contextmanager
def _ready(
    source: Path, output: str | Path | None, options: ExportOptions, progress: Progress
) -> Iterator[PreparedExport]:
    """Yield the prepared export of a checkpoint: by its family's table, else by the requested converter."""
    checkpoint = open_checkpoint(source)
    if not options.converter or not isinstance(checkpoint, HfCheckpoint):
        yield prepare(checkpoint, output, options)
    elif checkpoint.family.export is not None:
        ready = prepare(checkpoint, output, options)
        unused = f"ropetool ignored --converter, because it has its own tensor table for {checkpoint.name}"
        yield replace(ready, notes=(unused, *ready.notes))
    else:
        from ropetool.gguf_export.converter import prepared  # few exports need it

        with prepared(checkpoint, output, options, progress) as ready:
            yield ready


def _importance(options: ExportOptions) -> Weights:
    """Return the importance matrix by tensor, empty without one. Raises: as `kquants.check`."""
    if options.matrix is None and not is_made_by_libllama(options.outtype):
        return {}
    from ropetool.gguf_export import kquants  # other types need no quantiser

    return kquants.check(options.outtype, options.matrix)


def _written(ready: PreparedExport, options: ExportOptions, entries: Weights, tell: Progress) -> Exported:
    """Write the files of a prepared export. entries: the importance matrix by tensor, empty without one."""
    matrix = options.matrix
    matrix_notes = check_fit(matrix, entries, ready.layout) if matrix is not None else ()
    gate_notes = _gate(ready, options, tell)
    certificate = companions.fresh_certificate(ready.source)  # the gate may have written it
    export = _Export(ready, options, entries, tell, certificate, _trained_length(ready.source))
    outputs = files.write(
        ready.target, ready.source.path, File(export.keys(), ready.layout, ready.encoding.tensors), options,
        export.record, export.sidecars, export.compared if options.check else None, tell,
    )  # fmt: skip
    count = len(outputs.paths)
    several = (f"the model is split into {count} files; load this one, the first",) if count > 1 else ()
    return Exported(
        output=outputs.paths[0],
        arch=ready.arch,
        outtype=ready.outtype,
        tensors=outputs.tensors,
        nbytes=outputs.nbytes,
        encoding=ready.encoding.name,
        context_length=ready.context_length,
        notes=(
            *ready.notes, *matrix_notes, *outputs.notes, *several, *gate_notes, *_unseen(ready, outputs.checks),
        ),
        bakes=ready.bakes,
        checks=(*ready.checks, *outputs.checks),
        serving=tuple(companions.serving(outputs.paths, ready.context_length, outputs.sidecars)),
        sidecars=outputs.sidecars,
        deviation=ready.deviation,
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Export:
    """A prepared export, and what is written with it.

    ready: the export that passed all checks before the weights are read.
    options: the requested settings.
    entries: the importance matrix by tensor, empty without one.
    tell: receives the progress.
    certificate: the certificate of the source; None if there is none, or if it is for other bytes.
    trained_length: the trained length of the source in tokens; None if it is unknown.
    """

    ready: PreparedExport
    options: ExportOptions
    entries: Weights
    tell: Progress
    certificate: Mapping[str, Any] | None
    trained_length: int | None

    def keys(self) -> dict[str, Value]:
        """Return the keys of the file, with those of ropetool and of the importance matrix."""
        ready, matrix = self.ready, self.options.matrix
        values = {**ready.values, **stamp(ready.source.record, ready.bakes, self.certificate)}
        values |= imatrix_keys(matrix, self.entries) if matrix is not None else {}
        values |= stamp_inexact(ready.deviation) if ready.deviation is not None else {}
        return values

    def record(self, checks: Sequence[Check]) -> Provenance:
        """Return the record of the file, with the plan and the trained length of the source if they are known."""
        ready, source = self.ready, self.ready.source
        export: dict[str, Any] = {"outtype": ready.outtype, "encoding": ready.encoding.name}
        optional = {
            "converter": ready.converter,
            "bakes": list(ready.bakes),
            "checks": [vars(check) for check in (*ready.checks, *checks)],
            "deviation": None if ready.deviation is None else ready.deviation.to_json(),
        }
        return Provenance(
            source=str(hub.absolute(source.path)),
            source_fingerprint=provenance.fingerprint(source.path, source.text),
            trained_length=self.trained_length,
            plan=source.record.plan if source.record else {},
            export=export | {name: value for name, value in optional.items() if value},
        )

    def sidecars(self, paths: Sequence[Path], checks: Sequence[Check]) -> Mapping[Path, str]:
        """Return the texts of the model card and the Modelfile by path, nothing without the option."""
        if not self.options.sidecars:
            return {}
        ready = self.ready
        exporting = companions.Exporting(
            ready.outtype, ready.encoding.name, ready.context_length, ready.bakes, (*ready.checks, *checks),
            self.options.command, ready.deviation,
        )  # fmt: skip
        return companions.texts(ready.source, paths, exporting, self.certificate)

    def compared(self, file: Path, outtype: str) -> tuple[Check, ...]:
        """Return how a file with matrices of this type compares with the checkpoint."""
        # These modules load the verification, which an export without checks does not need.
        from ropetool.gguf_export.comparing import compare
        from ropetool.verification.short_divergence import ModelLengths

        ready = self.ready
        if ready.converter:
            from ropetool.gguf_export.converter.trial import check_runs

            check_runs(file)
        lengths = ModelLengths(self.trained_length or ready.context_length, ready.context_length, ready.window)
        checks = compare(ready.source.path, file, (outtype,), lengths, self.tell, weights=True)
        divergence = next((check.figure for check in checks if check.name == KL), None)
        if ready.deviation is not None and divergence is not None:
            overwrite_value(file, INEXACT_KL, Value.of(ValueType.F32, divergence))
        return checks


@_with_next_step()
def check_export(source: str | Path, output: str | Path, *, force: bool = False, sidecars: bool = True) -> None:
    """Check everything about an export except certificate and tokens, before a verification that takes hours.

    Raises: as `export_checkpoint`.
    """
    prepare(hub.local(source), output, ExportOptions(force=force, check=False, sidecars=sidecars))


def _gate(ready: PreparedExport, options: ExportOptions, tell: Progress) -> tuple[str, ...]:
    """Return notes on the certificate of a source that ropetool made. Raises: CheckpointError as `vouched`."""
    if ready.source.record is None:
        return ()
    if options.allow_unverified:
        return ("exported without a certificate (--allow-unverified): `ropetool verify` measures the checkpoint",)
    from ropetool.gguf_export.vouching import vouched  # loads the verification

    return vouched(ready.source, ready.context_length, options.require, tell)


def _unseen(ready: PreparedExport, checks: Sequence[Check]) -> tuple[str, ...]:
    """Return a note if no check compared the tensors of the converter's file with the checkpoint."""
    reasons = [check.detail for check in checks if check.name == KL and check.verdict == NOT_RUN]
    reason = reasons[0] if reasons else "" if any(check.name in KL_NAMES for check in checks) else "--no-check"
    if not ready.converter or not reason:
        return ()
    return (
        f"the logits were not compared with the checkpoint ({reason}), so ropetool relies on llama.cpp's converter for the "
        "tensors. `ropetool verify FILE --against SOURCE` compares them",
    )


def _trained_length(source: HfCheckpoint) -> int | None:
    return (source.record or inspection.inspect_checkpoint(source)).trained_length

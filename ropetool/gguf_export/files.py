"""Write the files of an export, with the record next to the first file: all files or none.

`container.py` writes the content of a file.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from glob import escape
from pathlib import Path
from threading import current_thread, main_thread
from types import FrameType

from ropetool.checkpoint import provenance
from ropetool.checkpoint.provenance import Provenance
from ropetool.errors import OutputError
from ropetool.files.gguf import read_header
from ropetool.files.gguf.splitting import SplitLimits
from ropetool.files.output import check_output, check_place
from ropetool.files.shard_names import model_name, shard_paths
from ropetool.gguf_export import container
from ropetool.gguf_export.container import File, Progress, split, stored_tensors
from ropetool.gguf_export.options import ExportOptions
from ropetool.gguf_model import mxfp4
from ropetool.gguf_model.outtypes import dtype_of, is_made_by_libllama
from ropetool.gguf_model.tensors import Layout, narrow_note
from ropetool.plans import gguf_output
from ropetool.verification.results import KL_NAMES, Check

Checks = tuple[Check, ...]


@dataclass(frozen=True)
class ExportedFiles:
    """The files of an export.

    paths: the GGUF files, in order.
    tensors, nbytes: number of tensors, and bytes, in all files together.
    checks: how the file compares with the checkpoint.
    sidecars: the model card and the Modelfile, as far as they were written.
    notes: sentences for the user.
    """

    paths: tuple[Path, ...]
    tensors: int
    nbytes: int
    checks: Checks
    sidecars: tuple[Path, ...] = ()
    notes: tuple[str, ...] = ()


def check(target: Path, source: Path, limits: SplitLimits, *, force: bool) -> tuple[str, ...]:
    """Check whether the file or its parts may be written, before an export that takes hours.

    Returns notes about the output of an interrupted process, which it finishes or removes first.
    Raises: OutputError.
    """
    notes = gguf_output.settled(target, source)
    if limits == SplitLimits():
        gguf_output.check([target], source, force=force)
        return notes
    check_place(shard_paths(target, 2)[0], source)
    for path in _parts_of(target):
        check_output(path, source, force=True)
        if not force:
            raise OutputError(
                "exists already, as a part of a split model with this name", where=str(path),
                try_="pass a different -o, or --force, which replaces a model with the same number of parts",
            )  # fmt: skip
    return notes


def _parts_of(target: Path) -> list[Path]:
    """Return the existing parts of split models with this name, for any number of parts."""
    digits = "[0-9]" * 5
    return sorted(target.parent.glob(f"{escape(model_name(target))}-{digits}-of-{digits}.gguf"))


def write(
    target: Path, source: Path, file: File, options: ExportOptions, record: Callable[[Checks], Provenance],
    beside: Callable[[Sequence[Path], Checks], Mapping[Path, str]], compared: Callable[[Path, str], Checks] | None,
    progress: Progress,
) -> ExportedFiles:  # fmt: skip
    """Write the file, or several files under the names that llama.cpp requires, with a record and sidecars.

    record: returns the record for the results of the comparison.
    beside: returns the texts of the sidecars by path, for the GGUF files and the results of the comparison.
    compared: compares a file, whose matrices have this type, with the checkpoint, before it gets its name. None
      compares nothing.

    Raises: as container.write, kquants.quantise and `compared`; OutputError if a file exists.
    """
    notes: tuple[str, ...] = ()
    checks: Checks = ()
    limits, force = options.limits, options.force
    by_libllama = is_made_by_libllama(options.outtype)
    with _unwound_when_terminated(), gguf_output.gguf_output(target, source, force=force) as output:
        if by_libllama:
            expected = _expected(target, file, limits)
            if expected:
                gguf_output.check(expected, source, force=force)
            file, checks = _quantised(output.transaction.workspace(), file, options, record, compared, progress)
            notes = _narrow_note(file.layout, options.outtype)
        parts = split(file, limits)
        stages = output.stage(len(parts))
        total, done = sum(part.size() for part in parts), 0
        for part, path in zip(parts, stages, strict=True):
            done += container.write(path, part, _shifted(progress, done, total), allow_nan=options.allow_nan)
        if compared is not None:
            provenance.write(record(checks), provenance.beside(stages[0]))  # names the checkpoint of the comparison
            checks += compared(stages[0], options.outtype if by_libllama else file.layout.outtype)
        output.finish(record(checks), partial(beside, output.files, checks))
    notes += _leftovers_note(target, output.files) if limits != SplitLimits() else ()
    count = sum(len(part.infos()) for part in parts)
    return ExportedFiles(tuple(output.files), count, total, checks, tuple(output.sidecars), (*notes, *output.notes))


def _expected(target: Path, file: File, limits: SplitLimits) -> list[Path]:
    """Return the files of the quantised model, or nothing if their number depends on the size in bytes."""
    if limits.nbytes and 0 < limits.tensors < len(file.infos()):
        return []
    return shard_paths(target, len(split(file, SplitLimits(tensors=limits.tensors))))


def _narrow_note(layout: Layout, outtype: str) -> tuple[str, ...]:
    """Return a note on matrices that libllama stored in another type, because their rows are not whole blocks."""
    narrow = [
        placed
        for placed in layout.tensors
        if placed.dtype != mxfp4.DTYPE and dtype_of(placed.info.name, placed.info.shape[::-1], outtype) == "F16"
    ]
    return narrow_note(narrow, outtype)


def _leftovers_note(target: Path, paths: Sequence[Path]) -> tuple[str, ...]:
    others = [path.name for path in _parts_of(target) if path not in paths]
    if not others:
        return ()
    return (
        f"the folder still contains {len(others)} parts of an older split, the first {others[0]}; delete them if unused",
    )


@contextmanager
def _unwound_when_terminated() -> Iterator[None]:
    """Make SIGTERM raise an exception in the body, so that unfinished files are removed.

    It keeps a handler that the process has already.
    """
    if current_thread() is not main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return

    def leave(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)  # the code that a shell reports for a process that a signal ended

    signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _shifted(progress: Progress, before: int, total: int) -> Progress:
    return lambda tensor, done, _: progress(tensor, before + done, total)


def _quantised(
    folder: Path, file: File, options: ExportOptions, record: Callable[[Checks], Provenance],
    compared: Callable[[Path, str], Checks] | None, progress: Progress,
) -> tuple[File, Checks]:  # fmt: skip
    """Return the same model with quantised matrices, which are stored in this folder, and the checks of its logits.

    The unquantised file is compared, because the error of a type with two bits would hide rows in a wrong order.
    """
    plain, small = folder / "plain.gguf", folder / "quantised.gguf"
    container.write(plain, file, progress)
    checks: Checks = ()
    if compared is not None:
        provenance.write(record(checks), provenance.beside(plain))
        compared_checks = compared(plain, file.layout.outtype)
        checks = tuple(
            replace(check, name=f"{check.name} before quantising")
            for check in compared_checks
            if check.name in KL_NAMES
        )
    from ropetool.gguf_export import kquants  # few types need the quantiser

    progress("quantising", 0, 0)
    kept = [placed.info.name for placed in file.layout.tensors if placed.dtype == mxfp4.DTYPE]
    kquants.quantise(plain, small, options.outtype, options.matrix, kept)
    plain.unlink()
    return _read(small), checks


def _read(path: Path) -> File:
    """Return the content of a GGUF file, to write it again."""
    header = read_header(path)
    return File(header.values, Layout("", tuple(stored_tensors(header))), {})

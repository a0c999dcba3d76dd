"""Write a GGUF model as an output: its files, its record and its sidecar files get their names together.

Callers write the content of the files. This module determines the names and the files that may be replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ropetool.checkpoint import listings, provenance
from ropetool.checkpoint.gguf import GgufCheckpoint
from ropetool.checkpoint.provenance import Provenance
from ropetool.errors import RopetoolError
from ropetool.files import hub
from ropetool.files.counting import counted
from ropetool.files.hidden import alone_in, settle
from ropetool.files.output import Rule, check_output, check_place
from ropetool.files.shard_names import model_name, shard_paths
from ropetool.files.transaction import Transaction, transaction
from ropetool.plans import model_card
from ropetool.runtimes import inspection


@contextmanager
def gguf_output(target: Path, source: Path, *, force: bool) -> Iterator[GgufOutput]:
    """Yield an output for the files of a GGUF model.

    The files get their names when the body has ended without an error.
    Raises: OutputError.
    """
    output = GgufOutput(target, source, force)
    with transaction(
        target, source, force=force, may_replace=lambda path: rule(output.files)(path), hidden_name=_hidden_name(target)
    ) as output.transaction:
        yield output


def settled(target: Path, source: Path) -> tuple[str, ...]:
    """Remove or finish the leftovers of dead processes for a model, and return notes.

    For a check before the transaction.
    Raises: OutputError if the target is not a place for an output.
    """
    check_place(target, source)
    return tuple(settle(hidden_place(target)))


def hidden_place(target: Path) -> Path:
    """Return the path that the names of a model's hidden folders are based on."""
    return target.with_name(_hidden_name(target))


def _hidden_name(target: Path) -> str:
    return f"{model_name(target)}.gguf"  # the same for every name that a user may pass for the files of a model


def check(files: Sequence[Path], source: Path, *, force: bool) -> None:
    """Return if a model may be written to these files, with its record next to the first. Call it before hours of work.

    Existing sidecar files of other programs are allowed, because they are not replaced.
    Raises: OutputError.
    """
    for path in files:
        check_output(path, source, force=force, may_replace=rule(files))
    record = provenance.beside(files[0])
    # The record of a file that no longer exists may be replaced without --force.
    check_output(record, source, force=force or not files[0].exists(), may_replace=rule(files))


def rule(files: Sequence[Path]) -> Rule:
    """Return the rule that decides which files may be replaced, for a model's files and the files next to them."""
    return listings.files_rule(files)


@dataclass
class GgufOutput:
    """A model that is being written.

    target: the path that the user passed.
    source: the source's path.
    force: replace existing files.
    files: the final paths, after `stage`.
    staged: the paths to write to, after `stage`.
    sidecars: the final paths of the card and the Modelfile, after `finish`.
    """

    target: Path
    source: Path
    force: bool
    files: list[Path] = field(default_factory=list)
    staged: list[Path] = field(default_factory=list)
    sidecars: list[Path] = field(default_factory=list)
    transaction: Transaction = field(init=False)
    _notes: list[str] = field(default_factory=list)

    @property
    def notes(self) -> tuple[str, ...]:
        """Return notes on files of other programs, and on leftovers of dead processes."""
        return (*self.transaction.notes, *self._notes)

    @property
    def modelfile(self) -> Path | None:
        """Return the path of the Modelfile, or None if it is not written."""
        place = model_card.modelfile_place(self.files)
        return place if place in self.sidecars else None

    def stage(self, count: int) -> list[Path]:
        """Return the paths to write the files of the model to, under their own names.

        Raises: OutputError if a file may not be written.
        """
        self.files = shard_paths(self.target, count)
        check(self.files, self.source, force=self.force)
        for path in (provenance.beside(self.files[0]), model_card.card_place(self.files[0])):
            self._notes += settle(path)  # the leftovers of a killed verification
        self.staged = [self.transaction.stage(path) for path in self.files]
        return self.staged

    def finish(
        self,
        record: Provenance,
        texts: Callable[[], Mapping[Path, str]] | None = None,
        placed: Mapping[Path, str] | None = None,
    ) -> None:
        """Write the record, which lists all files, and sidecars. Files of other programs stay.

        texts: returns the text of each sidecar by path. It may read an earlier sidecar. None writes no sidecars.
        placed: the way each unchanged file got there, by its staged path.
        """
        self.transaction.flush()
        record_path = provenance.beside(self.files[0])
        # While another process renames an earlier output, its card has no name, or has no record that lists it.
        with alone_in(self.target.parent):
            free = self.force or not self.files[0].exists()
            written = {} if texts is None else texts()
            cards = self._write_sidecars(written, force=free)
            staged_record = self.transaction.stage(record_path, force=free)
            if self.force:
                for path in listings.leftovers(self.files[0], [record_path, *self.files, *written]):
                    self.transaction.withdraw(path)
        record = replace(record, files=listings.of_files([*self.staged, *cards], [record_path.name], placed))
        provenance.write(record, staged_record, record_path)

    def _write_sidecars(self, texts: Mapping[Path, str], *, force: bool) -> list[Path]:
        """Write these texts, and return the staged files. A file of another program stays, with a note."""
        stages = []
        for place, text in texts.items():
            objection = self._objection(place)
            if objection:
                self._notes.append(f"{place} is not replaced, because it {objection}")
                continue
            stages.append(self.transaction.stage(place, force=force))
            model_card.write_card(stages[-1], text)
            self.sidecars.append(place)
        return stages

    def _objection(self, place: Path) -> str:
        """Return why a sidecar may not replace an existing file, or an empty string if it may or there is no file."""
        if place.is_file() and not place.is_symlink():
            return rule(self.files)(place)
        return listings.NOT_LISTED if place.exists() or place.is_symlink() else ""


def copied_record(source: GgufCheckpoint, export: Mapping[str, Any], *, same_table: bool = True) -> Provenance:
    """Return the record of the same model in new files. It contains the source's plan, if there is one.

    export: data about the new files.
    same_table: whether the new files have the source's tables. If not, the source's plan does not apply.
    """
    record = record_of(source)
    plan = record.plan if record is not None and same_table else {}
    trained = record.trained_length if record is not None else _trained_length(source)
    return Provenance(str(hub.absolute(source.path)), provenance.fingerprint(source.path), trained, plan, export=export)


def record_of(source: GgufCheckpoint) -> Provenance | None:
    """Return the record of the source, or None. A record of a different file does not count."""
    try:
        return provenance.read(source.path)
    except RopetoolError:
        return None


def _trained_length(source: GgufCheckpoint) -> int | None:
    try:
        return (source.record or inspection.inspect_checkpoint(source)).trained_length
    except RopetoolError:  # it is not a language model, or llama.cpp refuses the file
        return None


@contextmanager
def counted_bytes(name: str, total: int, tell: Callable[[str, int, int], None] | None) -> Iterator[None]:
    """Report the written bytes of an output while the body runs."""
    done = 0

    def moved(nbytes: int) -> None:
        nonlocal done
        done = min(done + nbytes, total)
        if tell is not None:
            tell(name, done, total)

    with counted(moved):
        yield

"""A GGUF model as an output: its files, its record and what goes beside them, put in their places together.

Knows which names there are and what may be replaced; what is inside the files is for others to write.
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
from ropetool.files.gguf import model_name, shard_paths
from ropetool.files.hidden import settle
from ropetool.files.output import Rule, check_output, check_place
from ropetool.files.transaction import Transaction, transaction
from ropetool.plans import model_card
from ropetool.runtimes import inspection


@contextmanager
def gguf_output(target: Path, source: Path, *, force: bool) -> Iterator[GgufOutput]:
    """Yield what stages a GGUF model; nothing has its name before the body has ended without an error.

    Raises: OutputError.
    """
    made = GgufOutput(target, source, force)
    with transaction(
        target, source, force=force, may_replace=lambda path: rule(made.files)(path), hidden_name=_hidden_name(target)
    ) as made.transaction:
        yield made


def settled(target: Path, source: Path) -> tuple[str, ...]:
    """Settle what dead processes left of a model, and return notes of it; for a check before there is a transaction.

    Raises: OutputError if this is not a place for an output.
    """
    check_place(target, source)
    return tuple(settle(hidden_place(target)))


def hidden_place(target: Path) -> Path:
    """Return what the hidden folders of a model are named after."""
    return target.with_name(_hidden_name(target))


def _hidden_name(target: Path) -> str:
    return f"{model_name(target)}.gguf"  # one for all names that a user may give to the files of a model


def check(files: Sequence[Path], source: Path, *, force: bool) -> None:
    """Return if a model may be written to these files, its record beside the first: before work of hours.

    What else would stand beside it is left alone where others wrote it.
    Raises: OutputError.
    """
    for path in files:
        check_output(path, source, force=force, may_replace=rule(files))
    record = provenance.beside(files[0])
    # The record of a file that is gone is not an output: it may go without --force.
    check_output(record, source, force=force or not files[0].exists(), may_replace=rule(files))


def rule(files: Sequence[Path]) -> Rule:
    """Return the rule of what may be replaced, for the files of a model and what stands beside them."""
    return listings.files_rule(files)


@dataclass
class GgufOutput:
    """A model that is being written. files: their final paths, once they are staged. sidecars: what is written beside them."""

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
        """What became of files of others, and of those that dead processes left."""
        return (*self.transaction.notes, *self._notes)

    @property
    def modelfile(self) -> Path | None:
        """Where a Modelfile is written for these files, if it is."""
        place = model_card.modelfile_place(self.files)
        return place if place in self.sidecars else None

    def stage(self, count: int) -> list[Path]:
        """Return where to write the files of the model, under their own names.

        Raises: OutputError if one may not be written.
        """
        self.files = shard_paths(self.target, count)
        check(self.files, self.source, force=self.force)
        for path in (provenance.beside(self.files[0]), model_card.card_place(self.files[0])):
            self._notes += settle(path)  # what a verification that was killed has left
        self.staged = [self.transaction.stage(path) for path in self.files]
        return self.staged

    def finish(self, made: Provenance, beside: Mapping[Path, str], placed: Mapping[Path, str] | None = None) -> None:
        """Write the record, which lists all, and these texts; what others wrote under such a name stays.

        placed: by its staged path, how a file of the source was put there.
        """
        self.transaction.flush()
        free = self.force or not self.files[0].exists()
        listed = list(self.staged)
        for place, text in beside.items():
            objection = self._objection(place)
            if objection:
                self._notes.append(f"{place} is not replaced, because it {objection}")
                continue
            stage = self.transaction.stage(place, force=free)
            model_card.write_card(stage, text)
            self.sidecars.append(place)
            listed.append(stage)
        record = provenance.beside(self.files[0])
        made = replace(made, files=listings.of_files(listed, [record.name], placed))
        provenance.write(made, self.transaction.stage(record, force=free), record)
        if self.force:
            for path in listings.leftovers(self.files[0], [record, *self.files, *beside]):
                self.transaction.withdraw(path)

    def _objection(self, place: Path) -> str:
        """Return why a file in the place of a sidecar may not be replaced, empty if it may or if there is none."""
        if place.is_file() and not place.is_symlink():
            return rule(self.files)(place)
        return listings.NOT_LISTED if place.exists() or place.is_symlink() else ""


def copied_record(source: GgufCheckpoint, stated: Mapping[str, Any], *, same_table: bool = True) -> Provenance:
    """Return the record of the same model in other files: what it states of them, and the plan of the source, if any.

    same_table: it rotates as the source does; otherwise the source's plan says nothing of it.
    """
    made = record_of(source)
    plan = made.plan if made is not None and same_table else {}
    trained = made.trained_length if made is not None else _trained_length(source)
    return Provenance(str(hub.absolute(source.path)), provenance.fingerprint(source.path), trained, plan, export=stated)


def record_of(source: GgufCheckpoint) -> Provenance | None:
    """Return the record of the source; one that is of another file says nothing of this one."""
    try:
        return source.record
    except RopetoolError:
        return None


def _trained_length(source: GgufCheckpoint) -> int | None:
    try:
        return inspection.inspect_checkpoint(source).trained_length
    except RopetoolError:  # of a file that is no language model, or one that llama.cpp refuses
        return None


@contextmanager
def counted_bytes(name: str, total: int, tell: Callable[[str, int, int], None] | None) -> Iterator[None]:
    """Tell how many of the bytes of an output are written."""
    done = 0

    def moved(nbytes: int) -> None:
        nonlocal done
        done = min(done + nbytes, total)
        if tell is not None:
            tell(name, done, total)

    with counted(moved):
        yield

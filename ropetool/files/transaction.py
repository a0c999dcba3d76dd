"""Files of an output that take their places together: staged in a hidden folder, renamed in a declared order, or rolled back.

Knows paths, not what is written. Names change in `renames` only; `hidden` knows the folders.

What holds at every moment, whoever is killed or refused by the system:

- Nothing has a name of the output before all of it is written and on the disk, in `.NAME.ropetool-XXXXXX` beside it.
- The last file of the order makes the others count: it is the one that loaders open, the first shard of a model, or the
  only one. Under its name stands the whole earlier output, or nothing, or the whole new one: the earlier one is taken away
  before any other name changes, the new one is put last. So no loader finds a mix, and no file a record of another.
- An output that is one file or one directory takes the place of an earlier one in a single step where the system has one.
- Before the first name changes, the order goes to a journal in the hidden folder, with what tells each staged file. An
  error, or the next run on the output after a kill, reads there what has been put, takes that back, and gives the earlier
  files their names again; unless the last one was put: then all of it was.
- A process holds a lock on its hidden folder while it lives, so that only what the dead left is removed, and one on the
  output's folder while names change in it, so that two processes never do that at a time.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ropetool.errors import CheckpointError, OutputError, RopetoolError
from ropetool.files import digests
from ropetool.files.hidden import alone_in, clear, hidden_name, hidden_start, make_hidden, settle, why_kept
from ropetool.files.output import Rule, anything, check_output, check_place, output_error
from ropetool.files.renames import NEW, Order, file_key, flush

_WORK = "work"


@contextmanager
def transaction(
    output: Path, source: Path, *, force: bool = False, directory: bool = False, may_replace: Rule = anything,
    hidden_name: str = "",
) -> Iterator[Transaction]:  # fmt: skip
    """Yield what stages the files of an output; they get their names once the body has ended without an error.

    On any error, a keyboard interrupt included, nothing of the output has changed. What dead processes left of the same
    output is settled first. force, may_replace: as `check_output` has them. hidden_name: what the hidden folder is called
    after, where that is not the output.
    Raises: OutputError if the output may not or cannot be written.
    """
    check_place(output, source)
    made = Transaction(output, source, force, directory, may_replace, hidden_name)
    try:
        made.open()
        with digests.taken():
            yield made
        made.commit()
    except BaseException as error:
        made.close()
        if isinstance(error, OSError):
            refusal = output_error(error, made.final(error.filename))
            refusal.notes = tuple(made.notes)
            raise refusal from error
        if isinstance(error, RopetoolError):
            error.where = made.renamed(error.where)
            error.notes = (*error.notes, *made.notes)
        raise
    made.close()


@contextmanager
def staged(
    output: Path, source: Path, *, force: bool = False, directory: bool = False, may_replace: Rule = anything
) -> Iterator[Path]:
    """Yield a path that takes the place of `output`, which is one file or one directory, as `transaction` has it.

    It is an empty directory, or the name of a file that the body creates.
    """
    with transaction(output, source, force=force, directory=directory, may_replace=may_replace) as made:
        stage = made.stage(output)
        if directory:
            stage.mkdir()
        yield stage


@dataclass(frozen=True)
class _Place:
    path: Path
    force: bool


class Transaction:
    """Files that are being written, and what is to happen to names. notes: what was done about those of dead processes."""

    def __init__(
        self, output: Path, source: Path, force: bool, directory: bool, may_replace: Rule, hidden_name: str
    ) -> None:
        self.notes: list[str] = []
        self._output, self._source = output, source
        self._force, self._directory, self._may_replace = force, directory, may_replace
        self._called_after = output.with_name(hidden_name or output.name)
        self._hidden: Path | None = None
        self._lock: int | None = None
        self._places: list[_Place] = []
        self._withdrawn: list[Path] = []

    def open(self) -> None:
        """Settle what dead processes left, and make the hidden folder."""
        self.notes += settle(self._called_after)
        if self._directory:
            self._check(_Place(self._output, self._force))
        done = False
        while not done:
            self._hidden = hidden_name(self._called_after)  # known before it is there, for `close`
            done, self._lock = make_hidden(self._hidden)
        self._inside(NEW).mkdir()

    def stage(self, place: Path, *, force: bool | None = None) -> Path:
        """Return where to write what `place` is going to be, a path of the same name.

        The first that is staged makes the others count, and is put last. force: as that of the transaction, for this file.
        Raises: OutputError if it may not be written there.
        """
        staged = _Place(place, self._force if force is None else force)
        self._check(staged)
        self._places.insert(0, staged)
        return self._inside(NEW) / place.name

    def withdraw(self, path: Path) -> None:
        """Take this file of the earlier output away, which the new one has not."""
        self._withdrawn.append(path)

    def workspace(self) -> Path:
        """Return a folder for files that are gone with the transaction."""
        folder = self._inside(_WORK)
        folder.mkdir(exist_ok=True)
        return folder

    def flush(self) -> None:
        """Bring what is staged to the disk, which may take minutes: so that what is decided after it stays true."""
        flush(self._inside(NEW))

    def commit(self) -> None:
        """Bring all to the disk and give the staged files their names; what fails is rolled back."""
        self.flush()
        with alone_in(self._output.parent):
            for place in self._places:
                self._check(place)  # again: writing may have taken hours
            order = self._order()
            order.write()
            try:
                self._rename(order)
                order.forget()
            except BaseException:
                with suppress(OSError):  # then `close` tries again, and says what is where
                    order.roll_back()
                raise

    def close(self) -> None:
        """Remove the hidden folder; a note says where it is if the system does not let it go."""
        try:
            self._clear()
        except BaseException:  # interrupted: once more
            self._clear()
            raise
        finally:
            if self._lock is not None:
                os.close(self._lock)
                self._lock = None

    def final(self, name: object) -> Path:
        """Return the file that an error is about by the name that it was to have."""
        return Path(self.renamed(name)) if isinstance(name, str) else self._output

    def renamed(self, text: str) -> str:
        """Return a text with the names that the user knows."""
        start, folder = hidden_start(self._called_after), str(self._output.with_name("_"))[:-1]
        hidden = re.escape(str(start)) + r"[^/\\]+"
        text = re.sub(hidden + re.escape(f"{os.sep}{NEW}{os.sep}"), lambda _: folder, text)
        return re.sub(hidden + r"[\w./\\]*", lambda _: str(self._output), text)

    def _clear(self) -> None:
        if self._hidden is None or not os.path.lexists(self._hidden):
            return
        try:
            clear(self._hidden)
        except (OSError, CheckpointError) as error:  # that at hand, if there is one, says more
            self.notes.append(f"{self._hidden} {why_kept(self._hidden, error)}")

    def _inside(self, name: str) -> Path:
        assert self._hidden is not None, "the transaction is not open"
        return self._hidden / name

    def _check(self, place: _Place) -> None:
        check_output(
            place.path, self._source, force=place.force, directory=self._directory, may_replace=self._may_replace
        )

    def _order(self) -> Order:
        paths = [place.path for place in self._places]
        earlier = [path for path in (*reversed(paths), *self._withdrawn) if os.path.lexists(path)]
        put = {path.name: file_key(self._inside(NEW) / path.name) for path in paths}
        return Order(self._inside(""), put, tuple(path.name for path in earlier))

    def _rename(self, order: Order) -> None:
        last = self._places[-1].path
        if len(order.put) > 1 or order.earlier != (last.name,):
            order.take_away(order.earlier[:1])
            order.take_away(order.earlier[1:])
            order.put_all()
            return
        earlier = order.replace()
        # once more, now that nobody finds it under its name: what came meanwhile is not lost
        refusal = self._may_replace(earlier) if earlier is not None else ""
        if refusal:
            raise OutputError(f"exists already and {refusal}", where=str(last))

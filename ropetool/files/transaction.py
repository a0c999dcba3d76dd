"""Files of an output that get their names together: staged in a hidden folder, then renamed in order, or rolled back.

Only `renames` changes names, and `hidden` manages the folders.

Guarantees at every moment, also if a process is killed or the system refuses a call:

- No file gets a name of the output before all files are written and on the disk, in `.NAME.ropetool-XXXXXX` next to it.
- The last file of the order completes the output. It is the file that loaders read, the first shard of a model, or the
  only one. Its name refers to the whole earlier output, to no file, or to the whole new output. The earlier one is
  moved away before any other rename, and the new one gets its name last. So a loader never finds a mixture, and a file
  never has the record of a different output.
- An output with only one file or directory replaces the earlier one in a single step, if the system can do this.
- Before the first rename, a journal in the hidden folder gets the order and the key of each staged file. After an
  error, or in the next run after a kill, ropetool reads the journal, moves the new files back, and restores the earlier
  files. If the last new file already has its name, the output is complete and stays.
- A process locks its hidden folder during its whole life, so that only remains of dead processes are removed. It locks
  the output's folder during renames, so that two processes never rename at the same time.
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
    """Yield a Transaction that stages the files of an output. They get their names when the body ends without an error.

    After any error, also a keyboard interrupt, the output is unchanged. Remains of dead processes of the same output
    are settled first.

    force, may_replace: as in `check_output`.
    hidden_name: the name in the hidden folder's name; empty means the output's name.
    Raises: OutputError if the output must not or cannot be written.
    """
    check_place(output, source)
    files = Transaction(output, source, force, directory, may_replace, hidden_name)
    try:
        files.open()
        with digests.taken():
            yield files
        files.commit()
    except BaseException as error:
        files.close()
        if isinstance(error, OSError):
            refusal = output_error(error, files.final(error.filename))
            refusal.notes = tuple(files.notes)
            raise refusal from error
        if isinstance(error, RopetoolError):
            error.where = files.renamed(error.where)
            error.notes = (*error.notes, *files.notes)
        raise
    files.close()


@contextmanager
def staged(
    output: Path, source: Path, *, force: bool = False, directory: bool = False, may_replace: Rule = anything
) -> Iterator[Path]:
    """Yield a path for an output with one file or directory, which replaces `output` as in `transaction`.

    It is an empty directory, or the name of a file that the body creates.
    """
    with transaction(output, source, force=force, directory=directory, may_replace=may_replace) as files:
        stage = files.stage(output)
        if directory:
            stage.mkdir()
        yield stage


@dataclass(frozen=True)
class _Place:
    path: Path
    force: bool


class Transaction:
    """The staged files of an output and their planned renames.

    notes: notes on settled remains of dead processes.
    """

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
        """Settle the remains of dead processes, and create the hidden folder."""
        self.notes += settle(self._called_after)
        if self._directory:
            self._check(_Place(self._output, self._force))
        done = False
        while not done:
            self._hidden = hidden_name(self._called_after)  # set before the folder exists, so that `close` removes it
            done, self._lock = make_hidden(self._hidden)
        self._inside(NEW).mkdir()

    def stage(self, place: Path, *, force: bool | None = None) -> Path:
        """Return the path at which to write the new file for `place`. It has the same file name.

        The first staged file completes the output, so it gets its name last.

        force: as in `transaction`, for this file; None means the transaction's value.
        Raises: OutputError if this place must not be written.
        """
        staged = _Place(place, self._force if force is None else force)
        self._check(staged)
        self._places.insert(0, staged)
        return self._inside(NEW) / place.name

    def withdraw(self, path: Path) -> None:
        """Remove this file of the earlier output, which the new output does not have."""
        self._withdrawn.append(path)

    def workspace(self) -> Path:
        """Return a folder for temporary files, which are removed at the end of the transaction."""
        folder = self._inside(_WORK)
        folder.mkdir(exist_ok=True)
        return folder

    def flush(self) -> None:
        """Write the staged files to the disk, which may take minutes.

        Call this before a check that must stay true until `commit`.
        """
        flush(self._inside(NEW))

    def commit(self) -> None:
        """Write everything to the disk and give the staged files their names. Roll back if this fails."""
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
                with suppress(OSError):  # then `close` tries again, and adds a note
                    order.roll_back()
                raise

    def close(self) -> None:
        """Remove the hidden folder. If this fails, add a note with its path."""
        try:
            self._clear()
        except BaseException:  # interrupted: try again
            self._clear()
            raise
        finally:
            if self._lock is not None:
                os.close(self._lock)
                self._lock = None

    def final(self, name: object) -> Path:
        """Return the final path of the file that an error is about."""
        return Path(self.renamed(name)) if isinstance(name, str) else self._output

    def renamed(self, text: str) -> str:
        """Return a text with final paths in place of paths in the hidden folder."""
        start, folder = hidden_start(self._called_after), str(self._output.with_name("_"))[:-1]
        hidden = re.escape(str(start)) + r"[^/\\]+"
        text = re.sub(hidden + re.escape(f"{os.sep}{NEW}{os.sep}"), lambda _: folder, text)
        return re.sub(hidden + r"[\w./\\]*", lambda _: str(self._output), text)

    def _clear(self) -> None:
        if self._hidden is None or not os.path.lexists(self._hidden):
            return
        try:
            clear(self._hidden)
        except (OSError, CheckpointError) as error:  # only a note, because an earlier error is more important
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
        # Checked again, now that it has no public name, so that a concurrent change to it is not lost.
        refusal = self._may_replace(earlier) if earlier is not None else ""
        if refusal:
            raise OutputError(f"exists already and {refusal}", where=str(last))

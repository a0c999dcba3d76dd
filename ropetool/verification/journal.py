"""The figures of a run, saved row by row on disk, so that an interrupted run can continue."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TypeVar

import numpy as np

from ropetool import machine
from ropetool.files import system
from ropetool.files.hidden import is_open_as
from ropetool.rope.tables import Array
from ropetool.verification.scoring import Done, Predictions, Runner, Scores, Wrapped, ignore

T = TypeVar("T")

DIGEST = 8  # bytes after the figures of a row
SELECT = "select figures from found where key = ?"
TABLE = "CREATE TABLE if not exists found (key blob primary key, figures blob)"
BROKEN = (sqlite3.Error, UnicodeDecodeError)  # the second one for a table name that is not UTF-8
KEY = 32  # bytes of the key of a row
LONGEST = b"longest target"  # an additional key for the longest saved row
CONDITIONS = b"conditions"  # the key of the conditions of all rows
MOST_NAMED = 4  # changed conditions that a note names
LONGEST_VALUE = 40  # characters of a condition's value in a note, which shows versions but not digests
STEP_TOKENS = 65536  # tokens of model input after which the figures are saved


def folder() -> Path:
    """Return the folder of the journals."""
    return machine.cache() / "verify"


class Journal:
    """The figures of one run: a target, a baseline and texts.

    Starts empty unless `resume` is set. If the disk cannot store the figures, the journal keeps them only in memory and
    the run continues. A journal that is damaged, or not from ropetool, is replaced by an empty one.

    key: the user's choices, which select the file.
    conditions: everything else that affects a figure, by name, as digests and versions. If one changes, the journal
      restarts.
    problem: the reason why figures are only in memory, or an empty string.
    lost: the reason why saved figures are not used, or an empty string.
    changed: the conditions that differ from the saved ones, as the end of a sentence.
    stays: whether a complete run keeps its rows for later runs.
    """

    def __init__(self, key: str, conditions: Mapping[str, str] | None = None, *, resume: bool) -> None:
        self.path = folder() / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.sqlite"
        self.problem = self.lost = self.changed = ""
        self.stays = False
        self._conditions = dict(conditions or {})
        self._memory: dict[bytes, bytes] = {}
        self._lock = self._locked()
        self._base = self._begun(resume) if self._lock is not None else None

    def _locked(self) -> IO[bytes] | None:
        """Return an open file that locks out other processes, or None if there is no lock."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            lock = self.path.with_suffix(".lock").open("wb")
        except OSError as error:
            self.problem = f"cannot write to {self.path.parent} ({error.strerror})"
            return None
        locked = system.lock(lock.fileno())
        if locked and is_open_as(lock.fileno(), Path(lock.name)):
            return lock
        lock.close()
        if locked:  # a run that just ended has removed the lock file
            return self._locked()
        self.problem = (
            f"files in {self.path.parent} cannot be locked"
            if locked is None
            else "another process measures the same run"
        )
        return None

    def _begun(self, resume: bool) -> sqlite3.Connection | None:
        """Return the journal on disk, emptied if it is damaged, or None if the disk cannot store it."""
        try:
            if not resume:
                self.path.unlink(missing_ok=True)
            base = _opened(self.path)
            changed = self._compared(base)
            if not changed:
                return base
            self.changed = changed
            base.close()
            return self._begun(False)
        except (OSError, sqlite3.OperationalError) as error:
            self.problem = f"{self.path}: {error}"
        except BROKEN as error:
            if not self.lost:
                self.lost = _damaged(error)
                return self._begun(False)
            self.problem = f"{self.path} is damaged again ({error})"
        return None

    def _compared(self, base: sqlite3.Connection) -> str:
        """Return the conditions that changed since the journal was written. An empty journal gets the current conditions.

        Raises: one of BROKEN.
        """
        try:
            saved = base.execute(SELECT, (CONDITIONS,)).fetchone()
            if saved is not None:
                return _difference(_conditions(saved[0]), self._conditions)
            if base.execute("select count(*) from found").fetchone()[0]:
                raise sqlite3.DatabaseError("the conditions of the run are missing")
            with base:
                sealed = _sealed(CONDITIONS, json.dumps(self._conditions).encode())
                base.execute("insert into found values (?, ?)", (CONDITIONS, sealed))
        except BROKEN:
            base.close()
            raise
        return ""

    @property
    def resumed(self) -> str:
        """Return the note of a resumed run: the number of saved rows, or the reason for a restart."""
        if self.rows:
            return f"{self.rows} saved rows will be used again"
        if self.changed:
            return f"the run starts from the beginning, because {self.changed}"
        why = self.lost or self.problem
        return f"the run starts from the beginning: {why or 'it has no saved results'}"

    @property
    def rows(self) -> int:
        """The number of saved rows."""
        kept = sum(len(key) == KEY for key in self._memory)
        # A condition on the length of keys would read every page, and a damaged page would restart the journal.
        every = int(self._read(lambda base: base.execute("select count(*) from found").fetchone()[0], 0))
        others = "select count(*) from found where key in (?, ?)"
        return kept + every - int(self._read(lambda base: base.execute(others, (LONGEST, CONDITIONS)).fetchone()[0], 0))

    def get(self, key: bytes) -> Array | None:
        """Return the figures of a row, or None if they are missing or damaged."""
        sealed = self._memory.get(key) or self._read(
            lambda base: (base.execute(SELECT, (key,)).fetchone() or [b""])[0], b""
        )
        figures = _unsealed(key, sealed)
        return None if figures is None else np.frombuffer(figures, dtype=np.float64)

    def put(self, keys: Sequence[bytes], figures: Array) -> None:
        """Save the figures of some rows. Shapes: (rows, figures)."""
        rows = {
            key: _sealed(key, np.ascontiguousarray(row, dtype=np.float64).tobytes())
            for key, row in zip(keys, figures, strict=True)
        }

        def insert(base: sqlite3.Connection) -> bool:
            with base:
                base.executemany("insert or replace into found values (?, ?)", rows.items())
            return True

        for _ in range(2):  # the second try is for a journal that was damaged and restarted by the first
            if not self.problem and self._read(insert, False):
                return
        self._memory |= rows

    def _read(self, work: Callable[[sqlite3.Connection], T], default: T) -> T:
        """Return the result of the work, or the default if the journal is damaged. A damaged journal restarts empty."""
        if self._base is None:
            return default
        try:
            return work(self._base)
        except sqlite3.OperationalError as error:  # the disk is full or fails, but the saved figures may still be good
            self.problem = self.problem or f"{self.path}: {error}"
        except BROKEN as error:
            self._base.close()
            again, self.lost = bool(self.lost), self.lost or _damaged(error)
            self.problem = f"{self.path} is damaged again ({error})" if again else self.problem
            self._base = None if again else self._begun(False)
        return default

    def close(self, *, remove: bool) -> None:
        """Close the journal, remove its lock, and the journal too when the run is complete."""
        if self._base is not None:
            self._base.close()
        if self._lock is not None:
            for path in ([self.path] if remove else []) + [Path(self._lock.name)]:
                with suppress(OSError):
                    path.unlink(missing_ok=True)
            self._lock.close()


@contextmanager
def kept_journal(key: str, conditions: Mapping[str, str], resume: bool, notes: list[str]) -> Iterator[Journal]:
    """Yield the journal of one run, and remove it when the run is complete, unless it `stays`.

    notes: receives a note on a resumed run, and one if nothing is saved on disk.
    """
    journal = Journal(key, conditions, resume=resume)
    if resume:
        notes.append(journal.resumed)
    complete = False
    try:
        yield journal
        complete = True
    except KeyboardInterrupt as error:
        # For the message after an interruption.
        error.unkept, error.rows = journal.problem, journal.rows  # type: ignore[attr-defined]
        raise
    finally:
        journal.close(remove=(complete and not journal.stays) or not (journal.rows or journal.problem))
    if journal.problem:
        notes.append(f"--resume will not find the results, because they were not saved: {journal.problem}")


def _opened(place: Path | str) -> sqlite3.Connection:
    """Return the database at a path. Raises: one of BROKEN if it contains anything except the journal's table."""
    base = sqlite3.connect(place)
    try:
        base.execute(TABLE)
        tables = [sql for (sql,) in base.execute("select sql from sqlite_master") if sql is not None]
        if tables != [TABLE.replace("if not exists ", "")]:
            raise sqlite3.DatabaseError("it contains a different table")
    except BROKEN:
        base.close()
        raise
    return base


def _sealed(key: bytes, figures: bytes) -> bytes:
    """Return figures with a digest, because sqlite does not detect a flipped bit in the middle of a value."""
    return figures + hashlib.sha256(key + figures).digest()[:DIGEST]


def _unsealed(key: bytes, kept: object) -> bytes | None:
    """Return the figures of a row without their digest, or None if the digest does not match."""
    figures = kept[:-DIGEST] if isinstance(kept, bytes) else b""
    return figures if kept and kept == _sealed(key, figures) else None


def _damaged(error: Exception) -> str:
    return f"the saved results are damaged ({error})"


def _conditions(kept: object) -> dict[str, str]:
    """Return the conditions of a journal. Raises: sqlite3.DatabaseError if they cannot be read."""
    with suppress(ValueError, RecursionError):
        conditions = json.loads(_unsealed(CONDITIONS, kept) or b"")
        if isinstance(conditions, dict) and all(isinstance(value, str) for value in conditions.values()):
            return conditions
    raise sqlite3.DatabaseError("the conditions of the run cannot be read")


def _difference(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Return the conditions that differ, with both values if they are short, or an empty text."""
    names = [name for name in {**now, **before} if before.get(name) != now.get(name)]
    parts = []
    for name in names[:MOST_NAMED]:
        values = [each.get(name, "none") for each in (before, now)]
        short = all(len(value) <= LONGEST_VALUE for value in values)
        parts.append(f"{name} ({values[0]} before, {values[1]} now)" if short else name)
    more = len(names) - MOST_NAMED
    if more > 0:
        parts.append(f"{more} more")
    return f"these changed: {', '.join(parts)}" if parts else ""


class JournaledRunner(Wrapped):
    """A runner that looks up rows in the journal before it computes them, and saves the computed rows.

    role: the role of the model, part of the keys of rows.
    changes: save the longest scored row too, so that `changed` can test whether the runner is still the same.
    """

    def __init__(self, runner: Runner, journal: Journal, role: str, *, changes: bool = False) -> None:
        super().__init__(runner)
        self._journal, self._changes = journal, changes
        self._role = (
            f"{role} of {runner.description}"  # so that rows of a different runtime, device or type are not used
        )
        kept = journal.get(LONGEST) if changes else None
        self._longest = 0 if kept is None else len(kept) - 1

    def changed(self) -> float:
        """Score the longest saved row again, and return the mean difference over its scored tokens, in nats.

        Returns 0 without a saved row.
        """
        kept = self._journal.get(LONGEST)
        if kept is None:
            return 0.0
        scored, row = int(kept[0]), [int(token) for token in kept[1:]]
        before = self._journal.get(self._key(row, b"", scored))
        if before is None:
            return 0.0
        return float(np.abs(self._runner.score([row], scored, ignore).losses[0] - before[:scored]).mean())

    def score(self, rows: Sequence[Sequence[int]], scored: int, done: Done = ignore) -> Scores:
        """Return the losses of the last `scored` tokens of every row, computed or saved."""

        def compute(part: slice) -> Array:
            scores = self._runner.score(rows[part], scored, done)
            return np.concatenate([scores.losses, scores.hits], axis=1)

        figures = self._figures(rows, [b""] * len(rows), scored, compute, done)
        return Scores(figures[:, :scored], figures[:, scored:] > 0)

    def predict(
        self, rows: Sequence[Sequence[int]], candidates: Sequence[Sequence[int]], done: Done = ignore
    ) -> Predictions:
        """Return the predictions after every row, computed or saved."""

        def compute(part: slice) -> Array:
            predictions = self._runner.predict(rows[part], candidates[part], done)
            return np.concatenate([predictions.log_probs, predictions.top[:, None]], axis=1)

        extras = [np.array(few, dtype=np.int64).tobytes() for few in candidates]
        figures = self._figures(rows, extras, 0, compute, done)
        return Predictions(figures[:, :-1], figures[:, -1].astype(np.int64))

    def _figures(
        self,
        rows: Sequence[Sequence[int]],
        extras: Sequence[bytes],
        scored: int,
        compute: Callable[[slice], Array],
        done: Done,
    ) -> Array:
        """Return the figures of all rows. Missing ones are computed in the order of the rows, several at a time.

        extras: the candidates of each row as bytes, which are part of its key.
        scored: the number of scored tokens of each row, or 0 for predictions.
        """
        keys = [self._key(row, extra, scored) for row, extra in zip(rows, extras, strict=True)]
        step = max(1, STEP_TOKENS // len(rows[0]))
        parts = []
        for start in range(0, len(rows), step):
            part = slice(start, start + step)
            kept = [self._journal.get(key) for key in keys[part]]
            if any(figures is None for figures in kept):
                parts.append(compute(part))
                self._journal.put(keys[part], parts[-1])
                if self._changes and scored and len(rows[0]) > self._longest:
                    self._longest = len(rows[0])
                    self._journal.put([LONGEST], np.array([[scored, *rows[start]]], dtype=np.float64))
            else:
                parts.append(np.array(kept))
                done(sum(map(len, rows[part])))
        return np.concatenate(parts)

    def _key(self, row: Sequence[int], extra: bytes, scored: int) -> bytes:
        start = f"{self._role} {f'score {scored}' if scored else 'predict'} ".encode()
        return hashlib.sha256(start + np.array(row, dtype=np.int64).tobytes() + extra).digest()

"""Decode a checkpoint as a runtime does, and compare the result with a target: the core of every search."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar, overload
from weakref import WeakKeyDictionary

from ropetool import runtimes
from ropetool.checkpoint.edits import FileEdit
from ropetool.checkpoint.opening import Checkpoint
from ropetool.errors import InvalidRope
from ropetool.escaping import command
from ropetool.rope.tables import RopeSet

GGUF_FILE = "file"  # how a GGUF checkpoint calls what its keys stand in
C = TypeVar("C")
T = TypeVar("T")


@dataclass(frozen=True)
class Decoded:
    """The result of decoding a checkpoint as one runtime does.

    name: the runtime.
    rope: the tables that it computes; None if there is no result.
    refuses: the reason for no result.
    known: False if ropetool does not know what the runtime does with the file.
    stops: True if the runtime stops with an error; False if it runs, but computes something else.
    """

    name: str
    rope: RopeSet | None
    refuses: str = ""
    known: bool = True
    stops: bool = True

    def understood(self, where: str, what: str = "config") -> RopeSet:
        """Return the tables that the runtime computes. where, what: the place and the name of the input, for the error.

        Raises: InvalidRope if it stops with an error, or ropetool does not know.
        """
        if self.rope is None:
            step = command("ropetool", "doctor", where) if self.known and self.stops and what == GGUF_FILE else ""
            raise InvalidRope(self.problem(what), where=where, try_=step)
        return self.rope

    def problem(self, what: str) -> str:
        """Return why there is no table, as a sentence. what: the name of the input, such as "config"."""
        if not self.known:
            return f"ropetool does not know how {self.name} reads this {what}: {self.refuses}"
        does = "cannot load" if self.stops else "does not compute the rotation of"
        return f"{self.name} {does} this {what}: {self.refuses}"

    def objection(self, target: RopeSet) -> str:
        """Return why the runtime does not compute the target; empty if it does."""
        if self.rope is None:
            if not self.known:
                return f"not known: {self.refuses}"
            return f"stops with {self.refuses}" if self.stops else self.refuses
        return target.mismatch(self.rope)


# The results of a checkpoint never change, because it is frozen: a checkpoint with edits is a different object.
_known: WeakKeyDictionary[Checkpoint, dict[str, Decoded]] = WeakKeyDictionary()


def decoded(runtime: str, checkpoint: Checkpoint) -> Decoded:
    """Return the checkpoint as this runtime reads it.

    llama.cpp reads ropetool's export of a Hugging Face checkpoint.
    """
    by_runtime = _known.setdefault(checkpoint, {})
    if runtime not in by_runtime:
        by_runtime[runtime] = _decoded(runtime, checkpoint)
    return by_runtime[runtime]


def _decoded(runtime: str, checkpoint: Checkpoint) -> Decoded:
    try:
        return Decoded(runtime, runtimes.decode(runtime, checkpoint))
    except runtimes.Refuses as refusal:
        known, stops = not isinstance(refusal, runtimes.NotKnown), not isinstance(refusal, runtimes.NotHeld)
        return Decoded(runtime, None, str(refusal), known, stops)


class Readings(Sequence[Decoded]):
    """A checkpoint as several runtimes read it. Each is decoded at its first access.

    names: the runtimes.
    """

    def __init__(self, names: Sequence[str], checkpoint: Checkpoint) -> None:
        self.names, self._checkpoint = tuple(names), checkpoint

    def __len__(self) -> int:
        return len(self.names)

    @overload
    def __getitem__(self, index: int) -> Decoded: ...
    @overload
    def __getitem__(self, index: slice) -> Readings: ...
    def __getitem__(self, index: int | slice) -> Decoded | Readings:
        if isinstance(index, slice):
            return Readings(self.names[index], self._checkpoint)
        return decoded(self.names[index], self._checkpoint)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def named(self, name: str) -> Decoded | None:
        """Return the result of a runtime; None if it is not among the runtimes."""
        return decoded(name, self._checkpoint) if name in self.names else None


@dataclass(frozen=True)
class EncodedTarget:
    """A target as edits of the source's files: a candidate of the search.

    name: the encoding, as plans show it.
    encode: returns the edits. It runs only when the search tries this encoding, because an earlier one usually works.
    in_weights: True if the keys leave a part of a factor to the weights.
    """

    name: str
    encode: Callable[[], Sequence[FileEdit]]
    in_weights: bool = False

    @cached_property
    def edits(self) -> Sequence[FileEdit]:
        """The edits of the source's files."""
        return self.encode()


def first_that_serves(
    candidates: Iterable[C], attempt: Callable[[C], tuple[T | None, str]]
) -> tuple[T | None, list[tuple[C, str]]]:
    """Return the result of the first candidate that works, or None, and every tried candidate with its objection.

    attempt: returns the result of a candidate, or None and the objection.
    """
    tried: list[tuple[C, str]] = []
    for candidate in candidates:
        outcome, objection = attempt(candidate)
        tried.append((candidate, objection))
        if outcome is not None:
            return outcome, tried
    return None, tried

"""A way to write a target into a checkpoint's files. The search decodes it as every runtime would before it keeps it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from ropetool.checkpoint.edits import FileEdit


@dataclass(frozen=True)
class EncodedTarget:
    """A target as edits of the source's files.

    name: the encoding, as plans show it.
    encode: returns the edits. It runs only if the search comes to this encoding, because an earlier one usually works.
    in_weights: True if the weights take what the keys leave of a factor.
    """

    name: str
    encode: Callable[[], Sequence[FileEdit]]
    in_weights: bool = False

    @cached_property
    def edits(self) -> Sequence[FileEdit]:
        """The edits of the source's files."""
        return self.encode()

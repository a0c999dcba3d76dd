"""The names of the checks of readback, and what a user says of a target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ropetool.errors import ConfigError
from ropetool.rope.tables import MAX_LENGTH

TABLES, WEIGHTS, FILES, DRESS = "tables", "weights", "files", "dress"


@dataclass(frozen=True)
class Terms:
    """What a user says of a target beside its files.

    stated: keys that are meant as they are, with the value in JSON or "as-is".
    trained_length: the length of the model before any extension, in tokens.
    finetuned: the weights were trained, so they are reported and not judged.
    strict: differences that change no number fail too.
    """

    stated: Mapping[str, str] = field(default_factory=dict)
    trained_length: int | None = None
    finetuned: bool = False
    strict: bool = False

    def __post_init__(self) -> None:
        length = self.trained_length
        if length is not None and not 2 <= length <= MAX_LENGTH:
            raise ConfigError(
                f"{length} is not a length; it is a whole number of tokens from 2 to {MAX_LENGTH}",
                where="--trained-length",
            )

"""The names of readback's checks, and the user's statements about a target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ropetool.errors import ConfigError
from ropetool.rope.tables import MAX_LENGTH

LOGITS_DECIDE = "only the logits show whether it is the same model"
NO_WEIGHTS = "neither checkpoint contains weights"
COPY = "pass a copy of the original file as --baseline"
TABLES, WEIGHTS, FILES, DRESS = "tables", "weights", "files", "dress"


@dataclass(frozen=True)
class Terms:
    """The user's statements about a target.

    stated: keys that were changed on purpose, with the value in JSON or "as-is".
    trained_length: the trained length before any extension, in tokens. None uses the files.
    finetuned: the weights were trained, so differences are reported and do not fail.
    strict: cosmetic differences fail too.
    """

    stated: Mapping[str, str] = field(default_factory=dict)
    trained_length: int | None = None
    finetuned: bool = False
    strict: bool = False

    def __post_init__(self) -> None:
        length = self.trained_length
        if length is not None and not 2 <= length <= MAX_LENGTH:
            raise ConfigError(
                f"must be a whole number of tokens from 2 to {MAX_LENGTH}, not {length}", where="--trained-length"
            )

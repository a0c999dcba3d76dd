"""The options of an export."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from ropetool.checkpoint.certificate import GRADES
from ropetool.errors import ConfigError, did_you_mean
from ropetool.files.gguf.splitting import SplitLimits, limits_of
from ropetool.gguf_model.outtypes import AUTO


class ExportArguments(TypedDict, total=False):
    """The arguments of `export` besides source, output and progress; `ExportOptions` explains them."""

    outtype: str
    imatrix: str | Path | None
    split_max_size: str | None
    split_max_tensors: int | None
    allow_nan: bool
    force: bool
    allow_full_attention: bool
    allow_unverified: bool
    require: str
    rearch: str
    converter: str
    shift_safe: bool
    allow_inexact: bool
    check: bool
    sidecars: bool
    command: str


@dataclass(frozen=True)
class ExportOptions:
    """The options of an export.

    outtype: the type of the matrices, one of outtypes.OUTTYPES, or `auto` for the stored type.
    imatrix: the file of an importance matrix, for the types that libllama quantises.
    split_max_size: bytes of tensors in a file, such as "2G". Above it, ropetool writes several files.
    split_max_tensors: number of tensors in a file. Above it, ropetool writes several files.
    allow_nan: write weights with NaN or infinity, as f32, f16 or bf16.
    force: replace an earlier output of ropetool.
    allow_full_attention: accept full attention if llama.cpp ignores the sliding window of the model.
    allow_unverified: export an extension by ropetool without verification, or after a failed one.
    require: the grade that the certificate must have up to the context length; empty for no grade.
    rearch: another architecture that computes the same; empty for the architecture of the family.
    converter: llama.cpp's converter, for a family that has no tensor table here: a folder of llama.cpp's sources, the
      script, or `auto`. Empty refuses such a family.
    shift_safe: multiply the keys by the squared attention factor, so that llama.cpp can rotate cached keys again.
    allow_inexact: write the nearest tables if llama.cpp cannot store the exact ones.
    check: compare the tokens before writing, and tables and logits before the file gets its name.
    sidecars: also write a model card and a Modelfile.
    command: the command line, for the model card.
    """

    outtype: str = AUTO
    imatrix: str | Path | None = None
    split_max_size: str | None = None
    split_max_tensors: int | None = None
    allow_nan: bool = False
    force: bool = False
    allow_full_attention: bool = False
    allow_unverified: bool = False
    require: str = ""
    rearch: str = ""
    converter: str = ""
    shift_safe: bool = False
    allow_inexact: bool = False
    check: bool = True
    sidecars: bool = True
    command: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "outtype", self.outtype.lower())  # file names have Q4_K_M

    @property
    def limits(self) -> SplitLimits:
        """The limits of a file. Raises: ConfigError for an invalid size or number of tensors."""
        return limits_of(self.split_max_size, self.split_max_tensors)

    @property
    def matrix(self) -> Path | None:
        """The file of the importance matrix."""
        return None if self.imatrix is None else Path(self.imatrix)


def check_grade(required: str) -> None:
    """Raise ConfigError for an unknown grade."""
    if required and required not in GRADES:
        raise ConfigError(
            f"{required!r} is not one of {', '.join(GRADES)}{did_you_mean(required, GRADES)}", where="--require"
        )

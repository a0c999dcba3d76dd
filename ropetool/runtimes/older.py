"""Releases of programs that read a config differently from the newest release, as data.

A program whose releases compute different tables for many models has ranges of releases in its module. The entries here
concern a few families. Each was confirmed by running both releases; tests/oracle/older_releases.json has the answers.
"""

from __future__ import annotations

from dataclasses import dataclass

from ropetool import names


@dataclass(frozen=True)
class OlderReading:
    """A different reading in older releases.

    program: the runtime.
    before: the first release with the reading of today.
    families: the model types.
    reads: what older releases do, as the end of a sentence. {channels}, {rotary_dim}, {share} and {softmax} stand for
        numbers of the checkpoint.
    keys: rope keys, or keys next to them, that the config has.
    absent: a rope key that the config does not have.
    nested: whether the rope keys are nested by layer type; None for both.
    scaled: whether a layer must have a rope type other than "default".
    fix: what makes all releases read the same; empty if only a newer release does.
    """

    program: str
    before: str
    families: tuple[str, ...]
    reads: str
    keys: tuple[str, ...] = ()
    absent: str = ""
    nested: bool | None = None
    scaled: bool = False
    fix: str = ""


OLDER = (
    OlderReading(
        "transformers", "5.18", ("minimax_m2",),
        "ignores rotary_dim, so {channels} channels rotate instead of {rotary_dim}",
        keys=("rotary_dim",), absent=names.PARTIAL_ROTARY_FACTOR,
        fix=f"set {names.PARTIAL_ROTARY_FACTOR} to {{share}} next to rotary_dim",
    ),
    OlderReading(
        "transformers", "5.15", ("deepseek_v2", "mistral4"),
        f"ignores {names.MSCALE_ALL_DIM} for the attention score, which must be multiplied by {{softmax}}",
        keys=(names.MSCALE_ALL_DIM,), scaled=True,
    ),
    OlderReading(
        "transformers", "5.13", ("olmo3",), "also scales the layers with a sliding window", nested=False, scaled=True,
    ),
    OlderReading(
        "transformers", "5.13", ("olmo3",),
        "ignores rope keys nested by layer type, so every layer gets the unscaled table of base 10000", nested=True,
    ),
)  # fmt: skip

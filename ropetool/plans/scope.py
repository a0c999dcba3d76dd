"""The limits of methods without training: their measured cost, and the factors that are doubtful or refused.

The tables do not show these limits: with yarn, llama3 and linear, every pair stays within its trained angles at any
factor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ropetool.errors import ConfigError

MEASURED_FROM, DOUBTFUL, REFUSED = 4.0, 8.0, 32.0  # multiples of the trained length
FORCE = "--force-factor"
# Methods for a model that will be fine-tuned, or that do not change any table.
OUT_OF_SCOPE = frozenset({"abf", "longrope", "length"})
# The measured cost by method: the multiple from which on it is shown, and the text. docs/measurements.md has the
# figures with their intervals.
SMOL = "SmolLM2 135M at 4 times has"
MEASURED = {
    "yarn": (
        (4.0, f"{SMOL} 1.08 times the perplexity at 2,048 tokens and 1.16 times at 32,768"),
        (
            8.0,
            "our demo model at 8 times has 1.15 times the perplexity at 256 tokens and at 2,048, on texts like its training data",
        ),
    ),
    "yarn-native-short": (
        (
            4.0,
            f"{SMOL} 1.00 times the perplexity at 2,048 tokens and 1.49 times at 32,768, without YaRN's attention factor",
        ),
    ),
    "llama3": ((4.0, f"{SMOL} 1.13 times the perplexity at 2,048 tokens and 1.64 times at 32,768"),),
    "ntk": (
        (4.0, f"{SMOL} 1.06 times the perplexity at 2,048 tokens and 2.73 times at 32,768"),
        (8.0, "our demo model at 8 times has 1.06 times the perplexity at 256 tokens and 5 times at 1,024"),
    ),
    "linear": ((4.0, f"{SMOL} 6.27 times the perplexity at 2,048 tokens and 7.76 times at 32,768"),),
}
UNMEASURED = "we measured no model with this method at this factor"
NECESSARY = "necessary, but not sufficient: this is true at any factor"


@dataclass(frozen=True)
class Extent:
    """The size of an extension.

    method: the method's name in `MEASURED`. "" if no model was measured with it.
    times: the target divided by the trained length. 0 if the limits do not apply.
    """

    method: str
    times: float

    @property
    def notes(self) -> tuple[str, ...]:
        """Return the measured cost of the extension, and a warning if it is doubtful. One sentence each."""
        if self.times < MEASURED_FROM:
            return ()
        times = _times(self.times)
        measured = f"{times} the trained length. Measured cost: {self.cost}. `ropetool verify` measures this model"
        return (measured, *self.warning)

    @property
    def cost(self) -> str:
        """Return the measured cost of this method, on the models that we measured."""
        known = [text for least, text in MEASURED.get(self.method, ()) if self.times >= least]
        return " and ".join(known) or UNMEASURED

    @property
    def warning(self) -> tuple[str, ...]:
        """Return the warning about a doubtful extension. Empty for other extensions."""
        if self.times <= DOUBTFUL:
            return ()
        return (f"beyond {_times(DOUBTFUL)} the trained length expect a broken model: fine-tune it at the new length",)

    @property
    def refused(self) -> bool:
        """Return whether the extension needs --force-factor."""
        return self.times > REFUSED

    @property
    def refusal(self) -> str:
        """Return the reason for the refusal."""
        return (
            f"{_times(self.times)} the trained length: beyond {_times(REFUSED)}, no method works without training; "
            "fine-tune the model at the new length"
        )

    def check(self, forced: bool) -> None:
        """Raise TooFar if the extension needs --force-factor and the user did not pass it."""
        if self.refused and not forced:
            raise TooFar(self.refusal, where=FORCE, try_=f"the same command with {FORCE}")


class TooFar(ConfigError):
    """An extension that needs --force-factor."""


def extent(method: str, target: int, trained: int | None, shipped: int | None) -> Extent:
    """Return the size of an extension to a target, in tokens.

    trained: the length before any scaling, in tokens; None if it is unknown.
    shipped: the context of a published source that was scaled and trained at that length, in tokens; else None.
    """
    base = max(trained or 0, shipped or 0)
    return Extent(method, 0.0 if method in OUT_OF_SCOPE or not base else target / base)


def _times(times: float) -> str:
    shown = f"{times:.1f}" if times < 100 else f"{times:.0f}"
    return f"{shown.removesuffix('.0')} times" if math.isfinite(times) else "many times"

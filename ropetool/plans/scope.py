"""How far a method without training is advised: what was measured of it, where it is doubtful, and where it is refused.

The tables cannot tell: no pair leaves the angles that training showed, at any factor of yarn, llama3 or linear.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ropetool.errors import ConfigError

MEASURED_FROM, DOUBTFUL, REFUSED = 4.0, 8.0, 32.0  # times the trained length
FORCE = "--force-factor"
# Methods that a fine-tune is made for, or that leave every table as it is.
OUT_OF_SCOPE = frozenset({"abf", "longrope", "length"})
# The cost that we measured, by method: from which multiple on it is given, and what it is. docs/real-models.md and
# docs/benchmarks.md have the figures with their intervals.
SMOL = "SmolLM2 135M at 4 times has"
MEASURED = {
    "yarn": (
        (4.0, f"{SMOL} 1.08 times the perplexity at 2,048 tokens and 1.16 times at 32,768"),
        (8.0, "our demo model at 8 times has 1.15 times the perplexity at 256 tokens and at 2,048"),
    ),
    "llama3": ((4.0, f"{SMOL} 1.13 times the perplexity at 2,048 tokens and 1.64 times at 32,768"),),
    "ntk": (
        (4.0, f"{SMOL} 1.06 times the perplexity at 2,048 tokens and 2.73 times at 32,768"),
        (8.0, "our demo model at 8 times has 1.06 times the perplexity at 256 tokens and 5 times at 1,024"),
    ),
    "linear": ((4.0, f"{SMOL} 6.27 times the perplexity at 2,048 tokens and 7.76 times at 32,768"),),
}
UNMEASURED = "we measured no model with this method at this factor"
NECESSARY = "that is necessary and not sufficient: it holds at any factor"


@dataclass(frozen=True)
class Extent:
    """How far an extension goes. times: the length that the model was trained for; 0 where the scope leaves it out."""

    method: str
    times: float

    @property
    def notes(self) -> tuple[str, ...]:
        """What the extension costs as far as it was measured, and that it is doubtful; a sentence each."""
        if self.times < MEASURED_FROM:
            return ()
        times = _times(self.times)
        measured = f"{times} the trained length. Measured cost: {self.cost}. `ropetool verify` measures this model"
        return (measured, *self.warning)

    @property
    def cost(self) -> str:
        """The cost that was measured with this method, of the models that were measured."""
        known = [text for least, text in MEASURED.get(self.method, ()) if self.times >= least]
        return " and ".join(known) or UNMEASURED

    @property
    def warning(self) -> tuple[str, ...]:
        """The sentence for an extension that is doubtful, none for another."""
        if self.times <= DOUBTFUL:
            return ()
        return (f"beyond {_times(DOUBTFUL)} the trained length expect a broken model: fine-tune it at the new length",)

    @property
    def refused(self) -> bool:
        """Whether the extension has to be forced."""
        return self.times > REFUSED

    @property
    def refusal(self) -> str:
        """Why it has to be forced."""
        return (
            f"{_times(self.times)} the trained length: beyond {_times(REFUSED)} no method without training is advised; "
            "fine-tune the model at the new length"
        )

    def check(self, forced: bool) -> None:
        """Raise ConfigError for an extension that has to be forced, and is not."""
        if self.refused and not forced:
            raise TooFar(self.refusal, where=FORCE, try_=f"the same command with {FORCE}")


class TooFar(ConfigError):
    """An extension that has to be forced."""


def extent(method: str, target: int, trained: int | None, shipped: int | None) -> Extent:
    """Return how far an extension to a target goes, in tokens.

    trained: before any scaling, None where it is not known. shipped: the context of a source that came scaled, and was trained
    for that; None for one that is not scaled, or that ropetool scaled.
    """
    base = max(trained or 0, shipped or 0)
    return Extent(method, 0.0 if method in OUT_OF_SCOPE or not base else target / base)


def _times(times: float) -> str:
    shown = f"{times:.1f}" if times < 100 else f"{times:.0f}"
    return f"{shown.removesuffix('.0')} times" if math.isfinite(times) else "many times"

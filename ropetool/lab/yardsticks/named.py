"""Reference attention variants by name: `rerope(512)`, `leaky-rerope(512,16)` and others.

If a name has no parameters, they follow from the trained length.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from ropetool.errors import ConfigError, did_you_mean
from ropetool.escaping import command
from ropetool.lab.yardsticks import pairs
from ropetool.lab.yardsticks.pairs import Bands
from ropetool.verification.beside import OPTION

LOG_N = "log-n"
_SPEC = re.compile(r"\s*([a-z][a-z-]*)\s*(?:\(([^()]*)\))?\s*")


@dataclass(frozen=True, eq=False)
class Yardstick:
    """A reference attention variant.

    name: its name with all parameters, so that it can be requested again.
    pairs: the bands of distances, and the keys that are seen.
    log_n: whether the score of a query at place m is multiplied by max(1, ln(m + 1) / ln L), with the trained length L.
    table: `ntk` or `yarn` if the table depends on the length n of a text, with factor max(1, n / L). Empty otherwise.
    served: the program that serves it, as a message. Empty if no known program does.
    """

    name: str
    pairs: Bands = pairs.PLAIN
    log_n: bool = False
    table: str = ""
    served: str = ""


@dataclass(frozen=True)
class Variant:
    """The meaning of a name.

    summary: a description.
    make: returns the bands for its parameters.
    defaults: returns the parameters for a trained length and a longest length, in tokens.
    table: as in `Yardstick`.
    served: returns the message of `Yardstick` for the parameters.
    """

    summary: str
    make: Callable[..., Bands]
    defaults: Callable[[int, int], tuple[int, ...]]
    table: str = ""
    served: Callable[..., str] = lambda *_: ""

    @property
    def parameters(self) -> tuple[str, ...]:
        """Return the names of its parameters, in order."""
        return tuple(inspect.signature(self.make).parameters)


def _compressing(window: int, trained: int, longest: int) -> int:
    """Return the smallest whole divisor of distances beyond a window that keeps them within the trained length."""
    return max(2, math.ceil((longest - window) / (trained - window)))


def _by_llama_cpp(group: int, window: int) -> str:
    """Return how llama.cpp runs Self-Extend.

    Source: common/arg.cpp and tools/completion/completion.cpp of llama-cpp-python 0.3.36.
    """
    width = max(1, window // group) * group  # it accepts only multiples of the group
    line = command("llama-completion", "--grp-attn-n", str(group), "--grp-attn-w", str(width))
    return f"{line} computes a similar variant that moves its cache by blocks; llama-server does not have it"


def _plain() -> Bands:
    return pairs.PLAIN


VARIANTS = {
    "rerope": Variant(
        "distances are capped at a window", pairs.rerope, lambda trained, _: (trained // 2,)
    ),
    "leaky-rerope": Variant(
        "distances grow by 1 / factor beyond a window", pairs.leaky_rerope,
        lambda trained, longest: (trained // 2, _compressing(trained // 2, trained, longest)),
    ),
    "self-extend": Variant(
        "positions are rounded down to groups beyond a window", pairs.self_extend,
        lambda trained, longest: (_compressing(trained // 4, trained, longest), max(1, trained // 4)),
        served=_by_llama_cpp,
    ),
    "sliding-window": Variant("keys beyond a window are not seen", pairs.sliding_window, lambda trained, _: (trained,)),
    "lambda": Variant("the window and the first keys are seen", pairs.lambda_mask, lambda trained, _: (trained, 10)),
    "dynamic-ntk": Variant("NTK by the length of each text", _plain, lambda *_: (), table="ntk"),
    "dynamic-yarn": Variant("YaRN by the length of each text", _plain, lambda *_: (), table="yarn"),
}  # fmt: skip


def parse(spec: str, trained: int, longest: int) -> Yardstick:
    """Return the variant of a name, with or without parameters. A trailing `+log-n` also scales the scores.

    trained: the trained length in tokens, which limits a window.
    longest: the longest measured length in tokens, which determines the default compression.
    Raises: ConfigError for an unknown name or invalid parameters.
    """
    text, plus, more = spec.partition("+")
    match = _SPEC.fullmatch(text)
    name = match[1] if match else text.strip()
    if match is None or name not in VARIANTS or (plus and more.strip() != LOG_N):
        unknown = more.strip() if name in VARIANTS and plus else name
        raise ConfigError(
            f"unknown attention variant {unknown!r}{did_you_mean(unknown, VARIANTS)}; known are {', '.join(VARIANTS)}, "
            f"with or without +{LOG_N}",
            where=OPTION,
            try_=f"{OPTION} rerope or {OPTION} 'leaky-rerope({trained // 2},16)'",
        )
    variant = VARIANTS[name]
    if plus and variant.table:
        raise ConfigError(f"+{LOG_N} works only with variants that change distances, not with {name}", where=OPTION)
    numbers = variant.defaults(trained, longest) if match[2] is None else _numbers(spec, match[2], variant)
    _check(spec, name, dict(zip(variant.parameters, numbers, strict=True)), trained)
    full = f"{name}({','.join(map(str, numbers))})" if numbers else name
    served = "" if plus else variant.served(*numbers)
    return Yardstick(f"{full}+{LOG_N}" if plus else full, variant.make(*numbers), bool(plus), variant.table, served)


def yardsticks_named(specs: str, trained: int, longest: int) -> list[Yardstick]:
    """Return the variants of a list of names with commas between them, without duplicates. Raises: as `parse`."""
    by_name = {one.name: one for one in (parse(each, trained, longest) for each in re.split(r",(?![^()]*\))", specs))}
    return [*by_name.values()]


def _numbers(spec: str, inside: str, variant: Variant) -> tuple[int, ...]:
    given = [part.strip() for part in inside.split(",")] if inside.strip() else []
    if len(given) != len(variant.parameters) or not all(
        part.isascii() and part.isdecimal() and int(part) for part in given
    ):
        needed = f"needs {' and '.join(variant.parameters)}, whole numbers of at least 1"
        raise ConfigError(f"{spec.strip()!r} {needed if variant.parameters else 'accepts no parameters'}", where=OPTION)
    return tuple(map(int, given))


def _check(spec: str, name: str, given: dict[str, int], trained: int) -> None:
    """Raise ConfigError for a window beyond the trained length, or a group larger than the window."""
    window = given.get("window", 0)
    if window > trained:
        raise ConfigError(
            f"{spec.strip()!r}: the window of {window} tokens must not exceed the trained length of {trained}",
            where=OPTION,
            try_=f"{OPTION} {name}",
        )
    if name == "self-extend" and given["group"] > window:
        raise ConfigError(f"{spec.strip()!r}: the group must not be larger than the window", where=OPTION)

"""Reference attention variants by name: `rerope(512)`, `leaky-rerope(512,16)` and others.

If a name has no parameters, they follow from the trained length.
"""

from __future__ import annotations

import inspect
import itertools
import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from ropetool.errors import ConfigError, did_you_mean
from ropetool.escaping import command
from ropetool.lab.yardsticks import pairs
from ropetool.lab.yardsticks.pairs import Bands
from ropetool.verification.beside import OPTION

SCALES = ("log-n", "temperature")
_SPEC = re.compile(r"\s*([a-z][a-z-]*)\s*(?:\(([^()]*)\))?\s*")


@dataclass(frozen=True, eq=False)
class Yardstick:
    """A reference attention variant.

    name: its name with all parameters, so that it can be requested again.
    pairs: the bands of distances, and the keys that are seen.
    scale: multiplies the score of a query by a function of its place, one of `SCALES`. Empty for none.
    table: `linear`, `ntk` or `yarn` for a scaled table. Empty otherwise.
    factor: of the table; 0 if it follows the length of a text.
    ensemble: `nbce` or `bases` if a prediction combines several passes. Empty otherwise.
    numbers: the parameters.
    served: the program that serves it, as a message. Empty if no known program does.
    """

    name: str
    pairs: Bands = pairs.PLAIN
    scale: str = ""
    table: str = ""
    factor: float = 0
    ensemble: str = ""
    numbers: tuple[int, ...] = ()
    served: str = ""

    @property
    def by_group(self) -> bool:
        """Return whether groups of pairs have their own positions."""
        return self.name.startswith("dpe")


@dataclass(frozen=True)
class Variant:
    """The meaning of a name.

    summary: the distance, the visible keys or what else differs, for docs/measurements.md.
    make: returns the bands for its parameters.
    defaults: returns the parameters for a trained length L and a longest length N, in tokens.
    default: the same in words.
    table, ensemble: as in `Yardstick`. The only parameter of a table is its factor.
    served: returns the message of `Yardstick` for the parameters.
    """

    summary: str
    make: Callable[..., Bands]
    defaults: Callable[[int, int], tuple[int, ...]]
    default: str = ""
    table: str = ""
    ensemble: str = ""
    served: Callable[..., str] = lambda *_: ""

    @property
    def parameters(self) -> tuple[str, ...]:
        """Return the names of its parameters, in order."""
        parameters = inspect.signature(self.make).parameters.values()
        names = ([each.name] if each.kind is not each.VAR_POSITIONAL else _GROUPS for each in parameters)
        return tuple(itertools.chain(*names))

    @property
    def scales(self) -> bool:
        """Return whether a scale may follow its name."""
        return not self.ensemble and (not self.table or bool(self.parameters))

    @property
    def source(self) -> str:
        """Return the source in the docstring of its distances; empty if it has none."""
        _, _, source = (self.make.__doc__ or "").partition("Source: ")
        return " ".join(source.split())


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


_GROUPS = [f"group{number + 1}" for number in range(pairs.DPE_GROUPS)]
# For Llama 3 8B at 16 times its length, from the fastest eighth of the pairs on. Source: README of github.com/LuLuLuyi/DPE.
_DPE_AT_16 = (4, 4, 2, 16, 32, 32, 16, 128)


def _factor(trained: int, longest: int) -> int:
    return max(2, math.ceil(longest / trained))


def _dpe(trained: int, longest: int) -> tuple[int, ...]:
    window, factor = max(1, trained // 8), _factor(trained, longest)
    return window, *(min(window, max(1, round(size * factor / 16))) for size in _DPE_AT_16)


def _plain() -> Bands:
    return pairs.PLAIN


def _scaled(factor: int) -> Bands:
    return pairs.PLAIN


def _nbce(tail: int) -> Bands:
    """Source: Su 2023, kexue.fm/archives/9617."""
    return pairs.PLAIN


def _bases(count: int, factor: int) -> Bands:
    """Source: Chen et al. 2023, arXiv 2312.04455."""
    return pairs.PLAIN


_WHOLE_FACTOR = "N / L as a whole number, at least 2"
VARIANTS = {
    "rerope": Variant("distance min(t, window)", pairs.rerope, lambda trained, _: (trained // 2,), "L / 2"),
    "leaky-rerope": Variant(
        "distance t up to the window, beyond it window + (t - window) / factor", pairs.leaky_rerope,
        lambda trained, longest: (trained // 2, _compressing(trained // 2, trained, longest)),
        "L / 2; the smallest whole factor that keeps N within L",
    ),
    "self-extend": Variant(
        "distance t within the window, from there on floor(m / group) - floor(n / group) + window - floor(window / group)",
        pairs.self_extend,
        lambda trained, longest: (_compressing(trained // 4, trained, longest), max(1, trained // 4)),
        "the smallest group that keeps N within L; L / 4", served=_by_llama_cpp,
    ),
    "sliding-window": Variant("only keys with t < window", pairs.sliding_window, lambda trained, _: (trained,), "L"),
    "lambda": Variant(
        "only keys with t < window, and the first keys at distance min(t, window)", pairs.lambda_mask,
        lambda trained, _: (trained, 10), "L; 10",
    ),
    "dpe": Variant(
        "as self-extend, with a group for each eighth of the pairs, from the fastest on", pairs.dpe, _dpe,
        "L / 8; the groups published for Llama 3 8B at 16x, times the whole factor / 16, at most the window",
    ),
    "string": Variant(
        "distance t below the shift, from there on t - shift + window; within L", pairs.string,
        lambda trained, _: (max(1, trained // 3), min(128, max(1, trained // 16))), "L / 3; L / 16, at most 128",
    ),
    **{
        name: Variant(
            f"the table of {name}", _scaled, lambda trained, longest: (_factor(trained, longest),), _WHOLE_FACTOR, table=name
        )
        for name in ("linear", "ntk", "yarn")
    },
    "dynamic-ntk": Variant("NTK with factor max(1, T / L) for a text of T tokens", _plain, lambda *_: (), table="ntk"),
    "dynamic-yarn": Variant("YaRN with factor max(1, T / L)", _plain, lambda *_: (), table="yarn"),
    "nbce": Variant(
        "naive Bayes: the last tokens (`tail`) after each piece of the text before them, within L", _nbce,
        lambda trained, _: (max(1, trained // 4),), "L / 4", ensemble="nbce",
    ),
    "bases": Variant(
        "the mean probability of so many NTK tables, with factors from 1 up to the factor", _bases,
        lambda trained, longest: (4, _factor(trained, longest)), f"4; {_WHOLE_FACTOR}", ensemble="bases",
    ),
}  # fmt: skip


def parse(spec: str, trained: int, longest: int) -> Yardstick:
    """Return the variant of a name, with or without parameters. A trailing `+log-n` or `+temperature` scales the scores.

    trained: the trained length in tokens, which limits a window.
    longest: the longest measured length in tokens, which determines the default compression.
    Raises: ConfigError for an unknown name or invalid parameters.
    """
    text, plus, more = spec.partition("+")
    match, scale = _SPEC.fullmatch(text), more.strip()
    name = match[1] if match else text.strip()
    if match is None or name not in VARIANTS or (plus and scale not in SCALES):
        scaled = bool(match and name in VARIANTS and plus)
        unknown, known = (scale, SCALES) if scaled else (name, tuple(VARIANTS))
        raise ConfigError(
            f"unknown {'scale' if scaled else 'attention variant'} {unknown!r}{did_you_mean(unknown, known)}; known are "
            f"{', '.join(VARIANTS)}, and +{' or +'.join(SCALES)} after a name",
            where=OPTION,
            try_=f"{OPTION} rerope or {OPTION} 'leaky-rerope({trained // 2},16)'",
        )
    variant = VARIANTS[name]
    if plus and not variant.scales:
        raise ConfigError(
            f"+{scale} works only with variants that change distances or have a fixed factor, not with {name}",
            where=OPTION,
        )
    numbers = variant.defaults(trained, longest) if match[2] is None else _numbers(spec, match[2], variant)
    _check(spec, name, dict(zip(variant.parameters, numbers, strict=True)), trained)
    full = f"{name}({','.join(map(str, numbers))})" if numbers else name
    return Yardstick(
        f"{full}+{scale}" if plus else full, variant.make(*numbers), scale, variant.table,
        factor=numbers[0] if variant.table and numbers else 0, ensemble=variant.ensemble, numbers=numbers,
        served="" if plus else variant.served(*numbers),
    )  # fmt: skip


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
    """Raise ConfigError for a parameter that the trained length or another parameter does not allow."""
    window, shift, tail = given.get("window", 0), given.get("shift", 0), given.get("tail", 0)
    rules = {
        f"the window of {window} tokens must not exceed the trained length of {trained}": window > trained,
        f"the shift of {shift} tokens must not exceed the trained length of {trained}": shift > trained,
        f"the tail of {tail} tokens must be shorter than the trained length of {trained}": tail >= trained,
        "the window must not be larger than the shift": name == "string" and window > shift,
        "the group must not be larger than the window": name == "self-extend" and given["group"] > window,
        "a group must not be larger than the window": name == "dpe" and max(given[each] for each in _GROUPS) > window,
        "the mean needs at least 2 bases": name == "bases" and given["count"] < 2,
    }
    for rule, broken in rules.items():
        if broken:
            raise ConfigError(f"{spec.strip()!r}: {rule}", where=OPTION, try_=f"{OPTION} {name}")

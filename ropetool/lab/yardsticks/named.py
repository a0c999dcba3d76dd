"""Yardsticks by name: `rerope(512)`, `leaky-rerope(512,16)`, ..., with parameters from the trained length where left out.

Plain data; knows nothing of models.
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
from ropetool.lab.yardsticks.pairs import Pairs
from ropetool.verification.beside import OPTION

LOG_N = "log-n"
_SPEC = re.compile(r"\s*([a-z][a-z-]*)\s*(?:\(([^()]*)\))?\s*")


@dataclass(frozen=True, eq=False)
class Yardstick:
    """One way to attend. name: with all parameters, as it can be asked for again.

    pairs: distances and keys seen. log_n: whether the score of a query at place m is multiplied by max(1, ln(m + 1) / ln L), L
    the trained length. table: `ntk` or `yarn`, where the table follows the length of a text n with factor max(1, n / L).
    served: by which program, and how, in a sentence; empty where none is known that runs it.
    """

    name: str
    pairs: Pairs = pairs.PLAIN
    log_n: bool = False
    table: str = ""
    served: str = ""


@dataclass(frozen=True)
class Kind:
    """What a name stands for. make: from its parameters. defaults: those of a trained and of a longest length, in tokens.

    served: the sentence of `Yardstick`, from the parameters.
    """

    summary: str
    make: Callable[..., Pairs]
    defaults: Callable[[int, int], tuple[int, ...]]
    table: str = ""
    served: Callable[..., str] = lambda *_: ""

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of its parameters, in order."""
        return tuple(inspect.signature(self.make).parameters)


def _compressing(window: int, trained: int, longest: int) -> int:
    """Return the least whole number by which distances beyond a window can be divided to stay within the trained length."""
    return max(2, math.ceil((longest - window) / (trained - window)))


def _by_llama_cpp(group: int, window: int) -> str:
    """Say how llama.cpp runs Self-Extend: common/arg.cpp and tools/completion/completion.cpp of llama-cpp-python 0.3.36."""
    width = max(1, window // group) * group  # it takes multiples of the group alone
    line = command("llama-completion", "--grp-attn-n", str(group), "--grp-attn-w", str(width))
    return f"{line} computes a similar variant that moves its cache by blocks; llama-server does not have it"


def _plain() -> Pairs:
    return pairs.PLAIN


KINDS = {
    "rerope": Kind(
        "distances are capped at a window", pairs.rerope, lambda trained, _: (trained // 2,)
    ),
    "leaky-rerope": Kind(
        "distances grow by 1 / factor beyond a window", pairs.leaky_rerope,
        lambda trained, longest: (trained // 2, _compressing(trained // 2, trained, longest)),
    ),
    "self-extend": Kind(
        "positions are rounded down to groups beyond a window", pairs.self_extend,
        lambda trained, longest: (_compressing(trained // 4, trained, longest), max(1, trained // 4)),
        served=_by_llama_cpp,
    ),
    "sliding-window": Kind("keys beyond a window are not seen", pairs.sliding_window, lambda trained, _: (trained,)),
    "lambda": Kind("the window and the first keys are seen", pairs.lambda_mask, lambda trained, _: (trained, 10)),
    "dynamic-ntk": Kind("NTK by the length of each text", _plain, lambda *_: (), table="ntk"),
    "dynamic-yarn": Kind("YaRN by the length of each text", _plain, lambda *_: (), table="yarn"),
}  # fmt: skip


def parse(spec: str, trained: int, longest: int) -> Yardstick:
    """Return the yardstick of a name with parameters or without, and with `+log-n` behind it where the score grows too.

    trained: the length that a window may reach. longest: what is to be measured, by which what compresses is chosen. Units:
    tokens. Raises: ConfigError for an unknown name, or parameters that say nothing.
    """
    text, plus, more = spec.partition("+")
    found = _SPEC.fullmatch(text)
    name = found[1] if found else text.strip()
    if found is None or name not in KINDS or (plus and more.strip() != LOG_N):
        unknown = more.strip() if name in KINDS and plus else name
        raise ConfigError(
            f"unknown attention variant {unknown!r}{did_you_mean(unknown, KINDS)}; known are {', '.join(KINDS)}, with or without +{LOG_N}",
            where=OPTION,
            try_=f"{OPTION} rerope or {OPTION} 'leaky-rerope({trained // 2},16)'",
        )
    kind = KINDS[name]
    if plus and kind.table:
        raise ConfigError(f"+{LOG_N} works only with variants that change distances, not with {name}", where=OPTION)
    numbers = kind.defaults(trained, longest) if found[2] is None else _numbers(spec, found[2], kind)
    _check(spec, name, dict(zip(kind.parameters, numbers, strict=True)), trained)
    full = f"{name}({','.join(map(str, numbers))})" if numbers else name
    served = "" if plus else kind.served(*numbers)
    return Yardstick(f"{full}+{LOG_N}" if plus else full, kind.make(*numbers), bool(plus), kind.table, served)


def yardsticks_named(specs: str, trained: int, longest: int) -> list[Yardstick]:
    """Return the yardsticks of a list with commas between them, each once. Raises: as `parse`."""
    found = {one.name: one for one in (parse(each, trained, longest) for each in re.split(r",(?![^()]*\))", specs))}
    return [*found.values()]


def _numbers(spec: str, inside: str, kind: Kind) -> tuple[int, ...]:
    given = [part.strip() for part in inside.split(",")] if inside.strip() else []
    if len(given) != len(kind.parameters) or not all(
        part.isascii() and part.isdecimal() and int(part) for part in given
    ):
        needed = f"needs {' and '.join(kind.parameters)}, whole numbers of at least 1"
        raise ConfigError(
            f"{spec.strip()!r} {needed if kind.parameters else 'accepts no parameters'}",
            where=OPTION,
        )
    return tuple(map(int, given))


def _check(spec: str, name: str, given: dict[str, int], trained: int) -> None:
    """Raise ConfigError for a window that was never trained, or numbers that leave nothing of the method."""
    window = given.get("window", 0)
    if window > trained:
        raise ConfigError(
            f"{spec.strip()!r}: the window of {window} tokens must not exceed the trained length of {trained}",
            where=OPTION,
            try_=f"{OPTION} {name}",
        )
    if name == "self-extend" and given["group"] > window:
        raise ConfigError(f"{spec.strip()!r}: the group must not be larger than the window", where=OPTION)

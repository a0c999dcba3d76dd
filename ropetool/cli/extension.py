"""The extension that the options of `extend` request."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from ropetool.cli.options import instance, refuse
from ropetool.errors import ConfigError, UnknownParameter
from ropetool.escaping import read_number

if TYPE_CHECKING:
    from ropetool.plans.basis import Request

AUTO = "auto"  # as --method: the methods are measured before one is planned
LISTS = ("long_factor", "short_factor")  # parameters that are lists
METHOD_PARAMETERS = ("params", "beta_fast", "beta_slow", "rope_theta")  # options that are parameters of methods
UNMEASURED = (*METHOD_PARAMETERS, "attention_factor", "temperature_scope", "as_type", "config_style", "native_short")


def check_method(name: str) -> None:
    """Raise UnknownMethod unless the name is `auto` or the name of a method."""
    if name != AUTO:
        from ropetool.rope import methods

        methods.get(name)


def check_minutes(minutes: float) -> None:
    """Raise ConfigError unless --tune-minutes is a finite number above 0."""
    if not (math.isfinite(minutes) and minutes > 0):
        from ropetool.verification.options import not_minutes

        raise ConfigError(not_minutes(minutes), where="--tune-minutes")


@dataclass(frozen=True)
class ExtensionOptions:
    """The options of a requested extension, as click returns them. `Request` explains most of them.

    method: None for the recommended method, `auto` for the best measured method.
    tune_minutes: with `auto`, the minutes of a search for a better YaRN table. None searches for none.
    params: names and values of -p.
    beta_fast, beta_slow, rope_theta: parameters of some methods.

    The other fields are those of `plans.basis.Request`.
    """

    method: str | None
    tune_minutes: float | None
    factor: float | None
    target_length: int | None
    reading: str | None
    params: tuple[tuple[str, str], ...]
    attention_factor: str
    temperature_scope: str | None
    beta_fast: float | None
    beta_slow: float | None
    rope_theta: float | None
    original_length: int | None
    for_runtimes: tuple[str, ...]
    config_style: str | None
    as_type: str | None
    native_short: bool
    force_factor: bool

    def check(self) -> None:
        """Check the options against each other, and the values that are wrong for every source.

        Works only in a click command.

        Raises: click.UsageError for options that need another --method, and as `request`; InvalidRope for a wrong
        factor, length or attention factor.
        """
        from ropetool.rope import methods

        if self.method == AUTO:
            if (self.factor is None) == (self.target_length is None):
                raise click.UsageError("--method auto requires either --factor or --target-length")
            refuse(dict.fromkeys(UNMEASURED, "--method auto does not accept {}: name the method with --method"))
            methods.Goal.make(1, self.factor, self.target_length)
            if self.tune_minutes is not None and self.original_length is not None:
                raise click.UsageError(
                    "--tune-minutes requires the original length in the file: leave out --original-length"
                )
            return
        refuse({"tune_minutes": "{} requires --method auto"})
        if self.method is None:
            refuse(dict.fromkeys(METHOD_PARAMETERS, "{} is a parameter of a method: name the method with --method"))
        else:
            methods.get(self.method).params(self.params_by_name())
        methods.Goal.make(1, self.factor, self.target_length, _number_or_name(self.attention_factor))

    def request(self) -> Request:
        """Return the request to the planner, once the method is known.

        Raises: UnknownParameter for a parameter that is passed twice, ConfigError for a list that cannot be read.
        """
        from ropetool.plans.basis import Request

        values = {"params": self.params_by_name(), "attention_factor": _number_or_name(self.attention_factor)}
        return instance(Request, {**vars(self), **values})

    def params_by_name(self) -> dict[str, Any]:
        """Return the parameters of the method, from -p and from their own options. Raises: as `request`."""
        values: dict[str, Any] = {}
        for name, value in self.params:
            if name in values:
                raise UnknownParameter("given twice", where=f"-p {name}")
            values[name] = _read_list(name, value) if name in LISTS else value
        for name in ("beta_fast", "beta_slow", "rope_theta"):
            number = getattr(self, name)
            if number is not None:
                if name in values:
                    raise UnknownParameter("given twice", where=f"-p {name}")
                values[name] = number
        return values


def _read_list(name: str, value: str) -> Any:
    from ropetool.cli.named_files import list_value

    return list_value(name, value)


def _number_or_name(value: str) -> str | float:
    """Return an attention factor as a number, or its name."""
    try:
        return read_number(value)
    except ValueError:
        return value

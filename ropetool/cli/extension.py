"""The extension that the options of `extend` request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ropetool.cli.options import list_value
from ropetool.errors import UnknownParameter
from ropetool.escaping import read_number

if TYPE_CHECKING:
    from ropetool.plans.basis import Request

AUTO = "auto"  # as --method: the methods are measured before one is planned


@dataclass(frozen=True)
class ExtensionOptions:
    """The options of a requested extension, as click returns them. `Request` explains most of them.

    method: None for the recommended method, `auto` for the best measured method.
    params: names and values of -p.
    beta_fast, beta_slow, rope_theta: parameters of some methods.

    The other fields are those of `plans.basis.Request`.
    """

    method: str | None
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
    force_factor: bool

    @property
    def own_parameters(self) -> dict[str, float | None]:
        """The parameters of methods that have an option, by name."""
        return {"beta_fast": self.beta_fast, "beta_slow": self.beta_slow, "rope_theta": self.rope_theta}

    def request(self) -> Request:
        """Return the request to the planner, once the method is known.

        Raises: UnknownParameter for a parameter that is passed twice, ConfigError for a list that cannot be read.
        """
        from ropetool.plans.basis import Request

        assert self.method is not None
        return Request(
            self.method,
            factor=self.factor,
            target_length=self.target_length,
            reading=self.reading,
            original_length=self.original_length,
            as_type=self.as_type,
            params=self._params(),
            attention_factor=_number_or_name(self.attention_factor),
            temperature_scope=self.temperature_scope,
            for_runtimes=self.for_runtimes,
            config_style=self.config_style,
            force_factor=self.force_factor,
        )

    def _params(self) -> dict[str, Any]:
        """Return the parameters of the method, from -p and from their own options."""
        values: dict[str, Any] = {}
        for name, value in self.params:
            if name in values:
                raise UnknownParameter("given twice", where=f"-p {name}")
            values[name] = list_value(name, value) if name in ("long_factor", "short_factor") else value
        for name, number in self.own_parameters.items():
            if number is not None:
                if name in values:
                    raise UnknownParameter("given twice", where=f"-p {name}")
                values[name] = number
        return values


def _number_or_name(value: str) -> str | float:
    """Return an attention factor as a number, or its name."""
    try:
        return read_number(value)
    except ValueError:
        return value

"""The relative errors of products after rounding to a type."""

from __future__ import annotations

import numpy as np

from ropetool.errors import LossyExport
from ropetool.rope.tables import Array

_NARROW = ("F16", "BF16", "float16")


class RoundingErrors:
    """The relative errors of products, and the number of block scales below the normal range of their type.

    dtype: the type of the rounded products; numpy's name for scales.
    """

    def __init__(self, dtype: str, *, scales: bool = False) -> None:
        self.highest, self.subnormal, self._dtype, self._scales = 0.0, 0, dtype, scales
        self._sum, self._count = 0.0, 0

    @property
    def mean(self) -> float:
        return self._sum / self._count if self._count else 0.0

    def add(self, exact: Array, stored: Array, name: str) -> None:
        """Count the relative errors.

        Raises: LossyExport if a product overflows, or a scale becomes zero.
        """
        counted = np.isfinite(exact) & (exact != 0)
        exact, stored = exact[counted], stored[counted]
        overflows = not np.isfinite(stored).all()
        if overflows or (self._scales and (stored == 0).any()):
            wider = "--bake-dtype f32" if self._dtype in _NARROW else ""
            far = "large" if overflows else "small"
            raise LossyExport(f"a product becomes too {far} for {self._dtype}", where=name, try_=wider)
        relative = np.abs(stored - exact) / np.abs(exact)
        self.highest = max(self.highest, float(relative.max(initial=0.0)))
        self._sum, self._count = self._sum + float(relative.sum()), self._count + relative.size
        if self._scales:
            self.subnormal += int(np.count_nonzero(np.abs(exact) < np.finfo(self._dtype).tiny))

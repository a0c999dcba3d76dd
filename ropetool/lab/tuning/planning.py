"""Turn points into plans for the requested runtimes, and run the loaded model with a plan."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from ropetool import names
from ropetool.checkpoint.opening import Checkpoint
from ropetool.errors import ConfigError, LossyExport, RopetoolError
from ropetool.lab.tuning.points import Ground, Point
from ropetool.lab.tuning.searching import Vector
from ropetool.lab.tuning.spaces import SPACES, Space
from ropetool.plans.gains import heads_of, with_gains
from ropetool.plans.plan import Plan
from ropetool.plans.search import make_plan
from ropetool.rope.tables import Array, LayerRope, RopeSet
from ropetool.verification.runners.rotated import RotatedRunner
from ropetool.verification.runners.scaled import ScaledRunner
from ropetool.verification.runners.torch_runner import TorchRunner
from ropetool.verification.scoring import Runner

DEFAULT = "yarn"
PROBES = 4  # random points that are planned before a space is refused


@dataclass(frozen=True, eq=False)
class Planner:
    """Makes plans of points for one source and one target.

    checkpoint: the source.
    own: the tables of the source.
    target_length: tokens.
    reading: the interpretation of a source with a scaling, as in `extend --from`.
    runtimes: the runtimes that must read the output.
    """

    checkpoint: Checkpoint
    own: RopeSet
    target_length: int
    reading: str | None = None
    runtimes: tuple[str, ...] = ()
    _plans: dict[tuple[str, bytes], Plan | RopetoolError] = field(default_factory=dict)

    @cached_property
    def default(self) -> Plan:
        """Return the plan of `extend --method yarn`. Raises: as `make_plan`."""
        return self._plan(Point("yarn, unchanged"))

    def ground(self, space: Space) -> Ground:
        """Return the start of a space.

        Raises: LossyExport if the space needs gains of heads and the weights cannot store them.
        """
        one = self._plan(Point("", "longrope", {"long_factor": (1.0,) * self._pairs}, 1.0), ())
        trained = self._entry(one.target).table
        default = self._entry(self.default.target)
        assert trained is not None
        assert default.table is not None
        base, table = trained.at(1).inv_freq, default.table.at(self.target_length).inv_freq
        divisors = np.where(table > 0, base / np.where(table > 0, table, 1.0), 1.0)
        return Ground(
            base, self.default.trained_length, self.target_length / self.default.trained_length, divisors,
            default.attention_factor, heads_of(self.checkpoint) if "head" in space.name else (),
        )  # fmt: skip

    @property
    def _pairs(self) -> int:
        return self._entry(self.own).rotary_dim // 2

    @staticmethod
    def _entry(rope: RopeSet | None) -> LayerRope:
        assert rope is not None
        return rope.entries[names.FULL_ATTENTION]

    def plan(self, space: Space, ground: Ground, vector: Vector) -> Plan:
        """Return the plan of a possible point. None is the default."""
        if vector is None:
            return self.default
        attempt = self._tried(space, ground, vector)
        if isinstance(attempt, RopetoolError):
            raise attempt
        return attempt

    def possible(self, space: Space, ground: Ground, vector: Array) -> bool:
        """Return whether all requested runtimes would read the point from one file."""
        return isinstance(self._tried(space, ground, vector), Plan)

    def _tried(self, space: Space, ground: Ground, vector: Array) -> Plan | RopetoolError:
        key = space.name, vector.tobytes()
        if key not in self._plans:
            try:
                self._plans[key] = self._point(space, ground, vector)
            except RopetoolError as error:
                self._plans[key] = error
        return self._plans[key]

    def opened(self, space: Space) -> Ground:
        """Return the start of a space, if a file can store a point of it for the requested runtimes.

        Raises: LossyExport if not. The message names the spaces that are possible.
        """
        begin, why = self._start(space)
        if begin is not None:
            return begin
        known = [each.name for each in SPACES.values() if each is not space and self._start(each)[0] is not None]
        whom = f" for {', '.join(self.runtimes)}" if self.runtimes else ""
        raise LossyExport(
            f"no file can store a point of space {space.name}{whom}: {why}", where="--space",
            try_=f"--space {known[0]}; possible are {', '.join(known)}" if known else "another --for",
        )  # fmt: skip

    def _start(self, space: Space) -> tuple[Ground | None, str]:
        """Return the start of a space. None and the reason, if no file can store any of the probed points."""
        try:
            begin = self.ground(space)
        except RopetoolError as error:
            return None, error.message
        rng, size = np.random.default_rng(0), space.size(begin)
        probes: list[Array] = [*space.starts(begin), *(rng.random(size) for _ in range(PROBES))]
        refused = [
            attempt
            for attempt in (self._tried(space, begin, probe) for probe in probes)
            if not isinstance(attempt, Plan)
        ]
        return (begin, "") if len(refused) < len(probes) else (None, refused[0].message)

    def _point(self, space: Space, ground: Ground, vector: Array) -> Plan:
        plan = self._plan(space.point(ground, vector))
        if not math.isclose(plan.softmax_multiplier, self.default.softmax_multiplier, rel_tol=1e-6):
            # The search varies the table. Without the default's softmax scale, a point would be worse for that reason.
            raise LossyExport(
                f"YaRN multiplies the softmax scale of this model by {self.default.softmax_multiplier:.4g}, and lists cannot "
                "store that", where="--space",
            )  # fmt: skip
        return plan

    def _plan(self, point: Point, runtimes: tuple[str, ...] | None = None) -> Plan:
        plan = make_plan(
            self.checkpoint, point.method, target_length=self.target_length, reading=self.reading,
            params=point.params, attention_factor=point.attention_factor,
            for_runtimes=self.runtimes if runtimes is None else runtimes,
        )  # fmt: skip
        return with_gains(plan, self.checkpoint, point.pair_gains, point.head_gains) if point.gains else plan

    def view(self, runner: TorchRunner, plan: Plan, nested: bool) -> Runner:
        """Return the loaded source with the plan's table, and with its rows scaled as in the output."""
        assert plan.target is not None
        rotated = RotatedRunner(runner, plan.target, own=self.own, nested=nested)
        return ScaledRunner(rotated, runner, plan.tensors) if plan.tensors else rotated


def identity(plan: Plan) -> str:
    """Return a digest of the results of a plan. Plans of the same source with the same results have the same digest."""
    if plan.target is None:
        raise ConfigError("the plan does not contain its tables", where="plan")
    data = [plan.tables, plan.softmax_multiplier, [edit.to_json() for edit in plan.tensors]]
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:32]

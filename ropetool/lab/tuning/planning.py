"""Points as plans: what `apply` would write for each, for the runtimes asked for, and what a loaded model makes of it.

Chooses nothing; knows no text.
"""

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
PROBES = 4  # points of a space that are planned before it is said that no file holds it


@dataclass(frozen=True, eq=False)
class Planner:
    """What makes plans of points, for one source and one target.

    own: what the source computes by itself. reading: of a source that is scaled, as `extend --from` takes it.
    """

    checkpoint: Checkpoint
    own: RopeSet
    target_length: int
    reading: str | None = None
    runtimes: tuple[str, ...] = ()
    _made: dict[tuple[str, bytes], Plan | RopetoolError] = field(default_factory=dict)

    @cached_property
    def default(self) -> Plan:
        """The plan of what `extend --method yarn` writes. Raises: as `make_plan`."""
        return self._plan(Point("yarn, unchanged"))

    def ground(self, space: Space) -> Ground:
        """Return what a space starts from. Raises: LossyExport where it is of heads that weights have no place for."""
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
        """Return the plan of a point that is possible; None is the default."""
        if vector is None:
            return self.default
        made = self._tried(space, ground, vector)
        if isinstance(made, RopetoolError):
            raise made
        return made

    def possible(self, space: Space, ground: Ground, vector: Array) -> bool:
        """Return whether the runtimes asked for would all read the point from one file."""
        return isinstance(self._tried(space, ground, vector), Plan)

    def _tried(self, space: Space, ground: Ground, vector: Array) -> Plan | RopetoolError:
        key = space.name, vector.tobytes()
        if key not in self._made:
            try:
                self._made[key] = self._point(space, ground, vector)
            except RopetoolError as error:
                self._made[key] = error
        return self._made[key]

    def opened(self, space: Space) -> Ground:
        """Return what a space starts from, if it has points that one file holds for the runtimes asked for.

        Raises: LossyExport if not, with the spaces that have.
        """
        begin, why = self._held(space)
        if begin is not None:
            return begin
        known = [each.name for each in SPACES.values() if each is not space and self._held(each)[0] is not None]
        whom = f" for {', '.join(self.runtimes)}" if self.runtimes else ""
        raise LossyExport(
            f"no file can store a point of space {space.name}{whom}: {why}", where="--space",
            try_=f"--space {known[0]}; possible are {', '.join(known)}" if known else "another --for",
        )  # fmt: skip

    def _held(self, space: Space) -> tuple[Ground | None, str]:
        """Return what a space starts from; None and why, where no file holds any of its points."""
        try:
            begin = self.ground(space)
        except RopetoolError as error:
            return None, error.message
        rng, size = np.random.default_rng(0), space.size(begin)
        probes: list[Array] = [*space.starts(begin), *(rng.random(size) for _ in range(PROBES))]
        refused = [
            made for made in (self._tried(space, begin, probe) for probe in probes) if not isinstance(made, Plan)
        ]
        return (begin, "") if len(refused) < len(probes) else (None, refused[0].message)

    def _point(self, space: Space, ground: Ground, vector: Array) -> Plan:
        plan = self._plan(space.point(ground, vector))
        if not math.isclose(plan.softmax_multiplier, self.default.softmax_multiplier, rel_tol=1e-6):
            # What is varied is the table, and a point without the default's scale would be worse for that alone.
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
        """Return the loaded source as it will be with the plan: its table, and its rows scaled as they will be written."""
        assert plan.target is not None
        turned = RotatedRunner(runner, plan.target, own=self.own, nested=nested)
        return ScaledRunner(turned, runner, plan.tensors) if plan.tensors else turned


def identity(plan: Plan) -> str:
    """Return a digest of what a plan computes: two plans of one source that compute the same have the same."""
    if plan.target is None:
        raise ConfigError("the plan does not contain its tables", where="plan")
    data = [plan.tables, plan.softmax_multiplier, [edit.to_json() for edit in plan.tensors]]
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:32]

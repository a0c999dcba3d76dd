"""Every method against tables of two independent implementations, and planted defects that these tables must see.

The files come from scripts/golden/golden.py: mpmath on the written formulas, transformers' own functions where it has them.
"""

from __future__ import annotations

import ast
import importlib
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ropetool.rope import arithmetic, methods
from ropetool.rope.methods import Derived, Goal, Source
from ropetool.rope.tables import Regime, RopeTable

GOLDEN = Path(__file__).parent / "golden"
SCRIPTS = Path(__file__).parents[1] / "scripts" / "golden"
FILES = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(GOLDEN.glob("*.json"))}
CASES = [
    pytest.param(method, case, id=f"{method}-{number}")
    for method, file in FILES.items()
    for number, case in enumerate(file["cases"])
]
VISIBLE = 1e-3  # a defect counts as seen when three pairs or a scale move by this much


@dataclass(frozen=True)
class Problem:
    """What a case asks of a method; a planted defect returns another one."""

    method: str
    source: Source
    goal: Goal
    params: dict[str, Any]

    def derive(self) -> Derived:
        method = methods.get(self.method)
        return method.derive(self.source, self.goal, method.params(self.params))


def problem(method: str, case: dict[str, Any]) -> Problem:
    stated = case["source"]
    inv_freq = stated.get("inv_freq")
    if inv_freq is None:
        rotary_dim = int(stated["head_dim"] * stated["partial_rotary_factor"])
        inv_freq = arithmetic.base_inv_freq(stated["rope_theta"], rotary_dim)
    optional = ("rope_theta", "attention_factor", "softmax_multiplier", "mscale")
    source = Source(np.array(inv_freq), stated["length"], **{key: stated[key] for key in optional if key in stated})
    goal = Goal.make(source.length, case["factor"], None, case["attention_factor"])
    return Problem(method, source, goal, case["params"])


def regime_of(derived: Derived, case: dict[str, Any]) -> Regime:
    return derived.table.at(case.get("at", 2**30))


def errors(derived: Derived, case: dict[str, Any], table: dict[str, Any]) -> dict[str, np.ndarray]:
    """Return the relative errors against one golden table: per pair, and of the scales that it states."""
    regime = regime_of(derived, case)
    wanted = np.array(table["inv_freq"])
    assert regime.inv_freq.shape == wanted.shape
    found = {"attention_factor": regime.attention_factor, "softmax_multiplier": derived.softmax_multiplier}
    scales = {key: np.array([abs(value / table[key] - 1)]) for key, value in found.items() if key in table}
    return scales | {"inv_freq": np.abs(regime.inv_freq - wanted) / np.where(wanted > 0, wanted, 1)}


def fails(derived: Derived, case: dict[str, Any], oracles: dict[str, Any]) -> list[str]:
    """Return what is further from a golden table than its oracle's tolerance."""
    return [
        f"{oracle}: {what} is off by {error.max():.2g}"
        for oracle, table in case["tables"].items()
        for what, error in errors(derived, case, table).items()
        if not error.max() <= oracles[oracle]["relative_tolerance"]
    ]


# --- the methods against the tables


def test_every_method_has_a_golden_file() -> None:
    assert set(FILES) == set(methods.names())
    assert all(len(file["cases"]) >= 14 and file["method"] == name for name, file in FILES.items())


@pytest.mark.parametrize(("method", "case"), CASES)
def test_method_gives_the_golden_table(method: str, case: dict[str, Any]) -> None:
    assert fails(problem(method, case).derive(), case, FILES[method]["oracles"]) == []


def test_transformers_vouches_for_every_method_that_it_has() -> None:
    vouched = {name: sum("transformers" in case["tables"] for case in file["cases"]) for name, file in FILES.items()}
    assert {name for name, count in vouched.items() if count == 0} == {"attention", "length", "mixed-ntk"}
    assert sum(vouched.values()) >= 140


# --- where the tables come from


def test_oracles_never_import_ropetool() -> None:
    for path in (SCRIPTS / "golden.py", SCRIPTS / "golden_formulas.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        imported = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
        imported += [str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        assert imported
        assert not [name for name in imported if name.split(".")[0] in ("ropetool", "importlib")]


def test_writing_the_tables_loads_no_ropetool() -> None:
    code = "import golden, sys; golden.golden_cases('yarn', with_transformers=False); print('ropetool' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=SCRIPTS, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("method", FILES)
def test_file_is_what_the_script_writes(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    fresh = importlib.import_module("golden").golden_cases(method, with_transformers=False)
    stored = [{**case, "tables": {"mpmath": case["tables"]["mpmath"]}} for case in FILES[method]["cases"]]
    assert stored == json.loads(json.dumps(fresh))


# --- planted defects


def bent(source: Source, rope_theta_factor: float) -> Source:
    """Return the source as if its base were that much larger."""
    inv_freq = source.inv_freq * rope_theta_factor ** (-np.arange(source.inv_freq.size) / source.inv_freq.size)
    theta = source.rope_theta * rope_theta_factor if source.rope_theta else None
    return replace(source, inv_freq=inv_freq, rope_theta=theta)


def theta_off(p: Problem) -> Derived:
    if p.method == "abf":  # its table holds nothing of the source's base
        return replace(p, params={**p.params, "rope_theta": p.params["rope_theta"] * 1.01}).derive()
    return replace(p, source=bent(p.source, 1.01)).derive()


def attention_factor_dropped(p: Problem) -> Derived:
    derived = p.derive()
    return replace(derived, table=with_regimes(derived.table, lambda r: replace(r, attention_factor=1.0)))


def softmax_multiplier_dropped(p: Problem) -> Derived:
    return replace(p.derive(), softmax_multiplier=1.0)


def truncate_ignored(p: Problem) -> Derived:
    return replace(p, params={**p.params, "truncate": True}).derive()


def length_is_the_target(p: Problem) -> Derived:
    return replace(p, source=replace(p.source, length=p.goal.target_length)).derive()


def ramp_swapped(p: Problem) -> Derived:
    other = {"dims": "turns", "turns": "dims"}[p.params.get("ramp", "dims")]
    return replace(p, params={**p.params, "ramp": other}).derive()


def exponent_off_by_one(p: Problem) -> Derived:
    pairs, b = p.source.inv_freq.size, p.params.get("exponent", 0.625)
    stretch = p.goal.factor ** -((np.arange(pairs) / pairs) ** b)
    derived = p.derive()
    return replace(derived, table=RopeTable.fixed(p.source.inv_freq * stretch, derived.table.at(1).attention_factor))


def base_times_factor(p: Problem) -> Derived:
    return replace(p.derive(), table=RopeTable((Regime(bent(p.source, p.goal.factor).inv_freq),)))


def lists_swapped(p: Problem) -> Derived:
    lists = {"short_factor": p.params["long_factor"], "long_factor": p.params["short_factor"]}
    return replace(p, params=lists).derive()


def factor_7_for_8(p: Problem) -> Derived:
    return replace(p, goal=replace(p.goal, factor=p.goal.factor * 7 / 8)).derive()


def with_regimes(table: RopeTable, change: Callable[[Regime], Regime]) -> RopeTable:
    if table.rule is None:
        return RopeTable(tuple(map(change, table.regimes)))
    rule = table.rule
    return RopeTable(table.regimes, rule=lambda n: change(rule(n)), rule_key=table.rule_key)


Case = dict[str, Any]


def always(case: Case) -> bool:
    return True


def has_attention_factor(case: Case) -> bool:
    return abs(case["tables"]["mpmath"]["attention_factor"] - 1) > VISIBLE


def is_beyond(case: Case) -> bool:
    """Whether a dynamic rule has left the trained length."""
    return case.get("at", case["params"].get("freeze", 0)) > case["source"]["length"]


def has_a_real_ramp(case: Case) -> bool:
    return "beta_fast" not in case["params"] or case["params"]["beta_fast"] != case["params"]["beta_slow"]


def has_a_logn_factor(case: Case) -> bool:
    """Whether ln L is in the attention factor, and the factor large enough for the length to show."""
    return case["attention_factor"] in ("auto", "logn") and case["factor"] >= 4


def is_on_a_base(case: Case) -> bool:
    return "rope_theta" in case["source"]


RAMPS = ("ntk-by-parts", "yarn")
PLAIN = ("linear", "ntk", "mixed-ntk", "llama3", *RAMPS)
# What goes wrong, the methods that must notice, and the cases in which it makes a difference at all.
DEFECTS: list[tuple[Callable[[Problem], Derived], tuple[str, ...], Callable[[Case], bool]]] = [
    (theta_off, tuple(FILES), always),
    (attention_factor_dropped, tuple(FILES), has_attention_factor),
    (softmax_multiplier_dropped, ("yarn",), lambda case: case["tables"]["mpmath"]["softmax_multiplier"] != 1),
    (truncate_ignored, RAMPS, lambda case: case["params"].get("truncate") is False),
    (length_is_the_target, ("llama3", *RAMPS), always),
    (length_is_the_target, ("dynamic",), lambda case: is_beyond(case) and case["factor"] != 1),
    (length_is_the_target, ("attention", "longrope"), has_a_logn_factor),
    (ramp_swapped, RAMPS, has_a_real_ramp),
    (exponent_off_by_one, ("mixed-ntk",), always),
    (base_times_factor, ("ntk",), is_on_a_base),
    (lists_swapped, ("longrope",), lambda case: "short_factor" in case["params"]),
    (factor_7_for_8, PLAIN, always),
]


@pytest.mark.parametrize(
    ("spoil", "method", "applies"),
    [
        pytest.param(spoil, method, applies, id=f"{spoil.__name__}-{method}")
        for spoil, affected, applies in DEFECTS
        for method in affected
    ],
)
def test_golden_tables_see_the_defect(
    spoil: Callable[[Problem], Derived], method: str, applies: Callable[[Case], bool]
) -> None:
    cases = [case for case in FILES[method]["cases"] if applies(case)]
    assert cases
    for case in cases:
        derived = spoil(problem(method, case))
        assert fails(derived, case, FILES[method]["oracles"])
        found = errors(derived, case, case["tables"]["mpmath"])
        scales = max(found["attention_factor"].max(), found["softmax_multiplier"].max())
        assert np.sum(found["inv_freq"] > VISIBLE) >= 3 or scales > VISIBLE, case["source"]

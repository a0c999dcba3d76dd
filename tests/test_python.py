"""The functions of the package, as a user of Python calls them."""

from __future__ import annotations

from pathlib import Path

import pytest

import ropetool
from ropetool.lab.tuning import tuning
from ropetool.lab.tuning.options import TuneOptions

DEMO = Path(ropetool.__file__).parent / "demo" / "model"


def test_dir_lists_every_function() -> None:
    assert dir(ropetool) == sorted(ropetool.__all__)
    assert all(callable(getattr(ropetool, name)) for name in ropetool.__all__ if name != "__version__")


@pytest.mark.parametrize("source", [DEMO, str(DEMO)])
def test_advise_takes_a_path(source: str | Path) -> None:
    advice, same = ropetool.advise(source, 2048), ropetool.advise(ropetool.inspect(source), 2048)
    assert advice.chosen is not None
    assert same.chosen is not None
    assert advice.chosen.method == same.chosen.method == "yarn"


def test_one_runtime_needs_no_list() -> None:
    plans = [ropetool.plan(DEMO, "yarn", factor=2, for_runtimes=each) for each in ("vllm", ["vllm"])]
    assert plans[0].runtimes == plans[1].runtimes != ropetool.plan(DEMO, "yarn", factor=2).runtimes
    assert ropetool.advise(DEMO, 2048, "vllm").chosen == ropetool.advise(DEMO, 2048, ["vllm"]).chosen


def test_one_runtime_needs_no_list_in_a_search() -> None:
    tasks = [tuning._Task.of(DEMO, 512, TuneOptions(for_runtimes=each)) for each in ("vllm", ["vllm"])]
    assert tasks[0].planner.default.runtimes == tasks[1].planner.default.runtimes

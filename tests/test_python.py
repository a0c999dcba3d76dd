"""The functions of the package, as a user of Python calls them."""

from __future__ import annotations

import dataclasses
import html
import importlib
import inspect
import math
import shutil
import sys
import types
import typing
from pathlib import Path

import pytest
from running import run

import ropetool
from ropetool.choosing.options import CandidateOptions, CompareArguments
from ropetool.errors import ConfigError, InvalidRope, MissingDependency
from ropetool.escaping import Shown, Tabular
from ropetool.gguf_export.options import ExportOptions
from ropetool.lab.tuning import tuning
from ropetool.lab.tuning.options import TuneArguments, TuneOptions
from ropetool.plans.applied import Applied
from ropetool.plans.basis import Request
from ropetool.report import printed
from ropetool.verification.options import VerifyArguments

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


class PathLike:
    """A path of another library, such as py.path.local."""

    def __fspath__(self) -> str:
        return str(DEMO)


def test_plan_takes_a_path_of_another_library() -> None:
    source: typing.Any = PathLike()
    assert ropetool.plan(source, "yarn", factor=2).edits == ropetool.plan(DEMO, "yarn", factor=2).edits


def test_one_runtime_needs_no_list() -> None:
    plans = [ropetool.plan(DEMO, "yarn", factor=2, for_runtimes=each) for each in ("vllm", ["vllm"])]
    assert plans[0].runtimes == plans[1].runtimes != ropetool.plan(DEMO, "yarn", factor=2).runtimes
    assert ropetool.advise(DEMO, 2048, "vllm").chosen == ropetool.advise(DEMO, 2048, ["vllm"]).chosen


def test_one_runtime_needs_no_list_in_a_search() -> None:
    tasks = [tuning._Tuning.of(DEMO, 512, TuneOptions(for_runtimes=each)) for each in ("vllm", ["vllm"])]
    assert tasks[0].planner.default.runtimes == tasks[1].planner.default.runtimes


def test_lengths_are_numbers_or_texts() -> None:
    plans = [ropetool.plan(DEMO, "yarn", target_length=length) for length in (2048, "2048", "2k")]
    assert {plan.max_position_embeddings for plan in plans} == {2048}
    assert ropetool.advise(DEMO, "2k").target_length == 2048
    assert CandidateOptions(target_lengths=["2k", 4096]).target_lengths == (2048, 4096)
    with pytest.raises(InvalidRope, match="2q") as refusal:
        ropetool.plan(DEMO, "yarn", target_length="2q")
    assert refusal.value.where == "target_length"


def test_extend_writes_what_the_command_writes(tmp_path: Path) -> None:
    written = ropetool.extend(DEMO, tmp_path / "by-function", target_length="2k")
    assert run("extend", str(DEMO), "--target-length", "2k", "-o", str(tmp_path / "by-command")).code == 0
    assert ropetool.diff(tmp_path / "by-function", tmp_path / "by-command").same
    assert written.notes[: len(plan_notes := ropetool.plan(DEMO, "yarn", target_length=2048).notes)] == plan_notes
    copy = shutil.copytree(DEMO, tmp_path / "model")
    assert ropetool.extend(copy, method="ntk", factor=2).output == tmp_path / "model-ntk-2x"
    with pytest.raises(ConfigError, match="params"):
        ropetool.extend(copy, factor=2, params={"beta_fast": 16})


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Applied:
    return ropetool.extend(DEMO, tmp_path_factory.mktemp("results") / "longer", method="yarn", factor=8)


def test_results_print_as_a_sentence_and_show_as_their_command(extended: Applied) -> None:
    results = {
        "llama, default, 256 tokens": ropetool.inspect(DEMO),
        "--method yarn --target-length 2048": ropetool.advise(DEMO, 2048),
        "yarn x8, 256 -> 2,048 tokens, for transformers, 3 edits": ropetool.plan(DEMO, "yarn", factor=8),
        "longer: edited config.json": extended,
        "context 2048 instead of 256": ropetool.diff(DEMO, extended.output),
        "1 checkpoint: nothing found": ropetool.examine([DEMO]),
    }
    for part, result in results.items():
        assert part in str(result)
        assert len(str(result)) < 600
        assert part.rpartition(" ")[2] in html.unescape(result._repr_html_())
        assert result._repr_html_().startswith("<pre>")


def test_every_result_has_a_sentence() -> None:
    classes = {each.__name__ for each in [*Shown.__subclasses__(), *Tabular.__subclasses__()]} - {"Tabular"}
    assert classes <= printed.SENTENCES.keys()
    assert printed.PARTS.keys() <= printed.SENTENCES.keys()
    for module, name, options, _ in printed.PARTS.values():
        function = getattr(importlib.import_module(f"ropetool.report.{module}"), name)
        assert options.keys() <= inspect.signature(function).parameters.keys()


@pytest.mark.parametrize(("name", "options"), [("plan", Request), ("extend", Request), ("export", ExportOptions)])
def test_options_are_in_the_signature(name: str, options: type) -> None:
    function = getattr(ropetool, name)
    shown = inspect.signature(function).parameters
    for field in dataclasses.fields(options):  # type: ignore[arg-type]
        assert field.name in shown, field.name
        if field.name not in ("method", "limits"):
            assert shown[field.name].default == field.default
    assert {**shown}.keys() >= typing.get_type_hints(function).keys() - {"return"}
    arguments = ["model", "yarn"] if name == "plan" else ["model"]
    with pytest.raises(TypeError, match=rf"^{function.__name__}\(\) got an unexpected keyword argument 'factr'$"):
        function(*arguments, factr=4)


@pytest.mark.parametrize("name", sorted({*ropetool.__all__} - {"__version__"}))
def test_the_types_of_a_function_can_be_read(name: str) -> None:
    function = getattr(ropetool, name)
    hints = typing.get_type_hints(function)
    assert hints.keys() >= {*inspect.signature(function).parameters, "return"}
    assert (hints["return"] is type(None)) == (name == "patch")


@pytest.mark.parametrize(
    ("name", "arguments"), [("verify", VerifyArguments), ("compare", CompareArguments), ("tune", TuneArguments)]
)
def test_the_options_of_a_measurement_have_their_types(name: str, arguments: type) -> None:
    options = typing.get_type_hints(getattr(ropetool, name))["options"]
    assert {options, *typing.get_args(options)} >= {arguments}


def test_rows_of_a_table_are_those_of_the_data_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = list(ropetool.inspect(DEMO).rows())
    assert len(rows) == 32
    assert rows[0] == {
        "layer_type": "full_attention",
        "pair": 0,
        "inv_freq": 1.0,
        "wavelength": pytest.approx(2 * math.pi),
    }
    monkeypatch.setitem(sys.modules, "pandas", types.SimpleNamespace(DataFrame=lambda rows: rows))
    assert ropetool.inspect(DEMO).to_pandas() == rows
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingDependency, match="pandas"):
        ropetool.inspect(DEMO).to_pandas()

"""No command reads the settings of its source twice: each opens it at its edge and hands the open checkpoint down."""

from __future__ import annotations

import os
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import configs
import gguf_files
import pytest
from models import write_model
from running import run
from verifying import shrink_suites

import ropetool
from ropetool.checkpoint.opening import open_checkpoint
from ropetool.choosing.candidates import candidates_of
from ropetool.choosing.options import CandidateOptions
from ropetool.choosing.source import SourceModel
from ropetool.errors import PlanMismatch
from ropetool.files.gguf import header
from ropetool.lab.tuning import planning
from ropetool.lab.tuning.spaces import SPACES
from ropetool.runtimes.inspection import inspect_checkpoint

DEMO = Path(ropetool.__file__).parent / "demo" / "model"
SCALED = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}

# Commands by what they read. All but what EXCEPTIONS names reads a config.json or the header of a GGUF file once.
COMMANDS = (
    "inspect model", "inspect model --target-length 4096", "inspect model --target-length 4096 --cost --json",
    "inspect model --target-length 4096 --html page.html", "advise model --target-length 4096",
    "advise scaled --target-length 8192", "advise model --target-length 4096 --for vllm --for llama.cpp",
    "extend model --factor 4 --dry-run", "extend model --method yarn --factor 4 --dry-run --plan-out plan.json",
    "extend model --factor 4", "extend model --method yarn --factor 4 --companion draft",
    "extend scaled --factor 4", "extend model --method auto --factor 64",
    "bake scaled attention-factor --dry-run", "bake scaled attention-factor --check", "diff model scaled",
    "doctor model scaled", "doctor model.gguf", "export model --no-check", "import model.gguf -o imported --no-check",
    "inspect model.gguf", "inspect model.gguf --target-length 4096", "advise model.gguf --target-length 4096",
    "extend model.gguf --factor 4 --dry-run", "extend model.gguf --factor 4", "extend model.gguf --factor 4 --in-place",
    "gguf list model.gguf", "diff model.gguf model",
)  # fmt: skip

# How often a command reads a file, where that is more than once. This list may only become shorter.
EXCEPTIONS = {
    # A writer reads its source again: it refuses one that has changed since the plan was made.
    ("extend model --factor 4", "model/config.json"): 2,
    ("extend model --method yarn --factor 4 --companion draft", "model/config.json"): 2,
    ("extend model --method yarn --factor 4 --companion draft", "draft/config.json"): 3,
    ("extend model.gguf --factor 4", "model.gguf"): 2,
    # Then it reads a copy of the header into memory, edits, and reads the result, which lies in the same place.
    ("extend model.gguf --factor 4 --in-place", "model.gguf"): 4,
    # transformers reads it for its tokenizer, and the gguf package for the name of the model.
    ("inspect model --target-length 4096 --cost --json", "model/config.json"): 2,
    ("export model --no-check", "model/config.json"): 2,
}

_reads: Counter[str] | None = None


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if _reads is not None and event == "open" and isinstance(arguments[0], (str, os.PathLike)):
        path = os.path.relpath(arguments[0])
        if os.path.basename(path) == "config.json":
            _reads[path] += 1


sys.addaudithook(_hook)


@pytest.fixture
def reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    global _reads
    monkeypatch.chdir(tmp_path)
    for name in ("model", "draft"):
        shutil.copytree(DEMO, name)
    write_model(
        tmp_path / "scaled", configs.config("llama", "v4") | {"max_position_embeddings": 2048, "rope_scaling": SCALED}
    )
    gguf_files.model(tmp_path / "model.gguf")
    parse = header._parse
    found = _reads = Counter()

    def counted(cursor: Any, path: Path, *more: Any) -> Any:
        found[os.path.relpath(path)] += 1
        return parse(cursor, path, *more)

    monkeypatch.setattr(header, "_parse", counted)
    yield found
    _reads = None


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_reads_each_source_once(line: str, reads: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    shrink_suites(monkeypatch)
    done = run(*line.split())
    assert done.code in (0, 1, 2, 3)
    assert reads
    often = {name: count for name, count in reads.items() if count > 1 and not name.startswith((".", ".."))}
    assert often == {name: count for (command, name), count in EXCEPTIONS.items() if command == line}


@pytest.mark.parametrize("options", ["--method auto -p x 1", "--method yarn -p x 1", "--method yarn --for x"])
def test_a_wrong_option_reads_no_source(options: str, reads: Counter[str]) -> None:
    assert run("extend", "model", "--factor", "4", *options.split()).code == 2
    assert not reads


def test_candidates_of_compare_and_tune_are_planned_from_one_opened_source(reads: Counter[str]) -> None:
    checkpoint = SourceModel.of("model", "compare").checkpoint
    found, refused = candidates_of(checkpoint, CandidateOptions(methods=["yarn", "linear", "ntk"], factors=[2, 4]))
    assert (len(found), refused) == (6, [])
    own = inspect_checkpoint(checkpoint).rope
    assert own is not None
    planner = planning.Planner(checkpoint, own, 1024)
    assert planner.default.method == "yarn"
    assert planner.ground(next(iter(SPACES.values()))).factor == 4
    assert reads == {"model/config.json": 1}


def test_a_plan_of_an_opened_source_is_that_of_its_path(reads: Counter[str]) -> None:
    for place in (Path("model"), Path("model.gguf")):
        opened = open_checkpoint(place)
        plans = [ropetool.plan(source, "yarn", factor=4).to_json() for source in (opened, opened, place, str(place))]
        assert plans == plans[:1] * 4
    assert reads == {"model/config.json": 3, "model.gguf": 3}


def test_a_source_that_changes_after_it_was_opened_is_refused(reads: Counter[str]) -> None:
    opened = open_checkpoint(Path("model"))
    plan = ropetool.plan(opened, "yarn", factor=4)
    config = Path("model/config.json")
    config.write_text(config.read_text().replace('"rms_norm_eps": ', '"rms_norm_eps": 1'))
    with pytest.raises(PlanMismatch, match="rms_norm_eps changed since the plan was made"):
        ropetool.apply(plan, "model", "output")
    assert not Path("output").exists()

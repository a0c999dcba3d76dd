"""An output that cannot be written is refused before the model is read: every option that names an output."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import configs
import gguf_files
import pytest
from models import write_model
from running import run, snapshot

from ropetool.cli import COMMANDS, group

# Command lines by command and parameter. OUT is the output.
CASES = {
    ("inspect", "html"): ["inspect model --html OUT"],
    ("doctor", "output"): ["doctor model --fix -o OUT", "doctor model.gguf --fix -o OUT"],
    ("doctor", "sarif_file"): ["doctor model --sarif OUT"],
    ("extend", "output"): [
        "extend model --factor 4 -o OUT", "extend model --method yarn --factor 4 -o OUT",
        "extend model --method auto --factor 4 -o OUT", "extend model.gguf --method yarn --factor 4 -o OUT",
    ],
    ("extend", "plan_out"): ["extend model --factor 4 --dry-run --plan-out OUT"],
    ("extend", "export"): ["extend model --method yarn --factor 4 --export OUT"],
    ("bake", "output"): ["bake scaled attention-factor -o OUT"],
    ("bake", "plan_out"): ["bake scaled attention-factor --dry-run --plan-out OUT"],
    ("apply", "output"): ["apply model plan.json -o OUT"],
    ("compare", "csv_file"): ["compare model --factors 4 --csv OUT"],
    ("compare", "report"): ["compare model --factors 4 --report OUT"],
    ("verify", "report"): ["verify scaled --report OUT", "verify scaled --suite quick --report OUT"],
    ("verify", "certificate_file"): ["verify scaled --certificate OUT", "verify scaled --suite quick --certificate OUT"],
    ("use", "report"): ["use model --report OUT"],
    ("tune", "plan_out"): ["tune model --target-length 2k --plan-out OUT"],
    ("tune", "report"): ["tune model --target-length 2k --plan-out new.json --report OUT"],
    ("identify", "prompts_out"): ["identify --source model --prompts-out OUT", "identify --gguf model.gguf --prompts-out OUT"],
    ("export", "output"): ["export model -o OUT"],
    ("import", "output"): ["import model.gguf -o OUT"],
    ("gguf set", "output"): ["gguf set model.gguf general.name x -o OUT"],
    ("gguf unset", "output"): ["gguf unset model.gguf general.name -o OUT"],
    ("gguf split", "output"): ["gguf split model.gguf --max-tensors 2 -o OUT"],
    ("gguf merge", "output"): ["gguf merge parts/model-00001-of-00002.gguf -o OUT"],
    ("demo", "directory"): ["demo OUT"],
}  # fmt: skip
INPUTS = {
    "source", "target", "a", "b", "file", "sources", "origin", "gguf", "logprobs", "baseline", "against", "judge", "lm_eval",
    "text", "texts", "tokenizer", "plan_file", "plans", "companion", "imatrix", "from_file",
}  # fmt: skip
LINES = [line for lines in CASES.values() for line in lines]
PROBLEMS = {"no/out": "does not exist", "file/out": "is a file, not a directory", "locked/out": "permission denied"}
IN_PARTS = "gguf split"  # the outputs have other names, which depend on the number of tensors
ITS_OWN_WORDS = {"demo": "cannot be created"}
ITS_OWN_EXISTING = {
    "--html": "is not a page of ropetool", "--sarif": "is not a SARIF log", "--certificate": "is not valid JSON",
    "--report": "is not empty", "demo": "cannot be created",
}  # fmt: skip

_reads: list[str] | None = None


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if _reads is not None and event == "open" and isinstance(arguments[0], (str, os.PathLike)):
        _reads.append(os.path.realpath(arguments[0]))


sys.addaudithook(_hook)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    config = configs.config("llama", "v4")
    write_model(folder / "model", config)
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
    write_model(folder / "scaled", config | {"max_position_embeddings": 2048, "rope_scaling": scaling})
    gguf_files.model(folder / "model.gguf")
    (folder / "parts").mkdir()
    for number in (1, 2):
        (folder / "parts" / f"model-{number:05d}-of-00002.gguf").write_bytes((folder / "model.gguf").read_bytes())
    done = run(
        "extend", folder / "model", "--method", "yarn", "--factor", "4", "--dry-run", "--plan-out", folder / "plan.json"
    )
    assert done.code == 0, done.err
    return folder


@pytest.fixture
def reads(sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Give the real paths of the files that are opened."""
    global _reads
    for path in sources.iterdir():
        (tmp_path / path.name).symlink_to(path)
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "thesis").write_text("mine")
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o555)
    access = os.access
    monkeypatch.setattr(  # as for any user but root
        os, "access", lambda path, mode, **more: Path(path).resolve() != locked and access(path, mode, **more)
    )
    monkeypatch.chdir(tmp_path)
    opened: list[str] = []
    _reads = opened
    yield opened
    _reads = None


def refused(line: str, output: str, words: str, opened: list[str]) -> None:
    """Assert that the command refuses the output with these words, opens no model and writes nothing."""
    before = snapshot(Path())
    opened.clear()
    done = run(*(output if word == "OUT" else word for word in shlex.split(line)))
    models = [str(Path(name).resolve()) for name in ("model", "scaled", "parts")]  # and model.gguf
    assert (done.code, done.out) == (1, ""), done.err
    assert [path for path in opened if path.startswith(tuple(models))] == []
    assert words in done.err
    assert snapshot(Path()) == before


@pytest.mark.parametrize("output", PROBLEMS)
@pytest.mark.parametrize("line", LINES)
def test_a_place_that_cannot_be_written(line: str, output: str, reads: list[str]) -> None:
    if line.startswith("demo") and output == "locked/out":
        pytest.skip("demo makes its folder at once, which no lock keeps from root")
    refused(line, output, ITS_OWN_WORDS.get(line.split()[0], PROBLEMS[output]), reads)


@pytest.mark.parametrize("output", ["file", "folder"])
@pytest.mark.parametrize("line", [line for line in LINES if not line.startswith(IN_PARTS)])
def test_what_exists_already(line: str, output: str, reads: list[str]) -> None:
    own = next((words for name, words in ITS_OWN_EXISTING.items() if name in line.split()), "exists already")
    a_folder = output == "folder" and {"--html", "--sarif", "--certificate"} & {*line.split()}
    refused(line, output, "exists already and is a directory" if a_folder else own, reads)


def test_every_option_that_names_a_path_is_here() -> None:
    context = click.Context(group)
    paths = set()
    for name in COMMANDS:
        command = group.get_command(context, name)
        members = command.commands if isinstance(command, click.Group) else {"": command}
        for member, each in members.items():
            assert each is not None
            named = {option.name for option in each.params if isinstance(option.type, click.Path)} - INPUTS
            paths |= {(f"{name} {member}".strip(), option) for option in named}
    assert paths == CASES.keys()


def test_a_directory_has_no_name_of_a_gguf_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_model(Path("model"), configs.config("llama", "v4"))
    done = run("extend", "model", "--method", "yarn", "--factor", "2", "-o", "out.gguf")
    assert done.err.splitlines() == [
        "Error: out.gguf: is the name of a GGUF file, but this output is a directory",
        "Try: -o out, and then ropetool export out -o out.gguf",
    ]
    assert not Path("out.gguf").exists()

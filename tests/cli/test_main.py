"""The command line as a whole: help, usage errors, error objects, interrupts, pipes and odd file names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import click
import configs
import pytest
from making import run, write_config

import ropetool
from ropetool.cli import COMMANDS, group
from ropetool.errors import RopetoolError

PROGRAM = [sys.executable, "-m", "ropetool"]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_config(tmp_path / "model", configs.config("llama", "v4"))


# --- help


def test_the_first_page() -> None:
    done = run("--help")
    assert (done.code, done.err) == (0, "")
    lines = [line.split(maxsplit=1) for line in done.out.partition("Commands:\n")[2].splitlines()]
    assert [name for name, _ in lines] == list(COMMANDS)
    assert done.out == run("-h").out
    nothing = run()
    assert (nothing.code, nothing.out) == (2, "")
    assert nothing.err.startswith("Usage: ropetool")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_the_same_first_line(command: str) -> None:
    done = run(command, "--help")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"Usage: ropetool {command} ")
    first = done.out.splitlines()[2].strip()
    assert first == COMMANDS[command][1]
    assert len(first) < 60
    if command not in ("methods", "families", "runtimes"):
        assert f"\n  ropetool {command} " in done.out  # an example
    for option in group.get_command(click.Context(group), command).params:
        assert getattr(option, "help", None) or option.metavar or isinstance(option, click.Argument), option.name


def test_the_version() -> None:
    assert run("--version").out == f"ropetool, version {ropetool.__version__}\n"


# --- errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bogus"], "No such command 'bogus'."),
        (["inspect"], "Missing argument 'SOURCE'."),
        (["extend", "m"], "Missing option '--method' / '-m'."),
        (["extend", "m", "--method", "yarn", "--factor", "many"], "'many' is not a valid float."),
        (["inspect", "m", "--bogus", "--json"], "No such option '--bogus'."),
        (["extend", "--json", "m", "-p", "beta_fast"], "Option '-p' requires 2 arguments."),
    ],
)
def test_wrong_usage_is_code_2(arguments: list[str], message: str) -> None:
    done = run(*arguments)
    assert done.code == 2
    assert message in done.err.splitlines()[-1]
    if "--json" in arguments:
        assert set(done.json["error"]) == {"type", "where", "message", "try"}
        assert message in done.json["error"]["message"]
    else:
        assert done.out == ""


def test_a_refusal_is_two_lines_on_stderr_and_an_object_on_stdout(tmp_path: Path) -> None:
    path = tmp_path / "nowhere"
    done = run("inspect", path)
    hint = "give a directory that holds a config.json"
    assert (done.code, done.out) == (1, "")
    assert done.err == f"Error: {path}: does not exist\nTry: {hint}\n"
    told = run("inspect", path, "--json")
    assert (told.code, told.err) == (1, done.err)
    assert told.json == {
        "error": {"type": "NotACheckpoint", "where": str(path), "message": "does not exist", "try": hint}
    }  # fmt: skip


def test_the_traceback_is_there_for_those_who_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROPETOOL_TRACEBACK", "1")
    with pytest.raises(RopetoolError, match="does not exist"):
        run("inspect", tmp_path / "nowhere")


def test_what_the_system_says_of_a_file_is_no_traceback(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied", str(model / "config.json"))

    monkeypatch.setattr("ropetool.inspection.open_checkpoint", refuse)
    done = run("inspect", model, "--json")
    assert (done.code, done.err) == (1, f"Error: {model}/config.json: Permission denied\n")
    assert done.json["error"]["where"] == f"{model}/config.json"


def test_results_and_notes_do_not_mix(model: Path) -> None:
    """Notes go to stderr, so that stdout can be piped; with --json they are in the object."""
    shown, told = run("inspect", model), run("inspect", model, "--json")
    assert shown.err == "Note: only config.json, no weights\n"
    assert "Note" not in shown.out
    assert (told.err, told.json["notes"]) == ("", ["only config.json, no weights"])


# --- the process around it


def test_an_interrupt_is_code_130(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ropetool.inspection.inspect", interrupt)
    done = run("inspect", model)
    assert (done.code, done.out) == (130, "")
    assert done.err.strip() == "Interrupted."


STRUCK = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job starts with it ignored
from ropetool.formats import linking
place = linking.place
def struck(*arguments, **options):
    placed = place(*arguments, **options)
    os.kill(os.getpid(), signal.SIGINT)
    return placed
linking.place = struck
from ropetool.cli import main
main(sys.argv[1:])
"""


def test_a_signal_while_writing_leaves_nothing(tmp_path: Path) -> None:
    """A real SIGINT, which the process gets as soon as the first of its files has been copied."""
    source = write_config(tmp_path / "model", configs.config("llama", "v4"))
    for number in range(3):
        (source / f"{number}.txt").write_bytes(b"x" * 4096)
    command = [sys.executable, "-c", STRUCK, "extend", "model", "--method", "yarn", "--factor", "4", "--copy"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr.split(maxsplit=1)[0]) == (130, "", "Interrupted.")
    assert os.listdir(tmp_path) == ["model"]


def test_a_reader_that_leaves_is_no_error(model: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as closed:
        done = subprocess.run(
            [*PROGRAM, "inspect", "model", "--json"], cwd=model.parent, stdout=closed, stderr=subprocess.PIPE
        )
    assert (done.returncode, done.stderr) == (1, b"")


def test_names_that_are_no_utf8_are_shown_and_carried(tmp_path: Path) -> None:
    source = write_config(tmp_path / os.fsdecode(b"mod\xe8le"), configs.config("llama", "v4"))
    command = [*PROGRAM, "extend", source, "--method", "yarn", "--factor", "4"]
    done = subprocess.run(command, capture_output=True, check=True)
    assert b"mod\\udce8le-yarn-4x" in done.stdout
    output = tmp_path / os.fsdecode(b"mod\xe8le-yarn-4x")
    told = subprocess.run([*PROGRAM, "inspect", output, "--json"], capture_output=True, check=True)
    assert json.loads(told.stdout)["source"] == str(output)
    again = subprocess.run([*PROGRAM, "extend", output, "-m", "pi", "--factor", "2"], capture_output=True, check=False)
    assert (again.returncode, again.stderr.splitlines()[1].startswith(b"Try: ")) == (1, True)


def test_output_does_not_depend_on_the_locale(tmp_path: Path) -> None:
    source = write_config(tmp_path / "größe", configs.config("llama", "v4"))
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run([*PROGRAM, "inspect", source, "--json"], capture_output=True, env=environment, check=True)
    assert done.stdout.isascii()
    assert json.loads(done.stdout)["rope"]["full_attention"]["head_dim"] == 32
    assert subprocess.run([*PROGRAM, "inspect", source], capture_output=True, env=environment).returncode == 0

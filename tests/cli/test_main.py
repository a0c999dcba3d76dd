"""The command line as a whole: help, usage errors, error objects, interrupts, pipes and odd file names."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import configs
import pytest
from models import write_config
from running import run

import ropetool
from ropetool.cli import COMMANDS, GROUPS, group
from ropetool.errors import RopetoolError

PROGRAM = [sys.executable, "-m", "ropetool"]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_config(tmp_path / "model", configs.config("llama", "v4"))


# --- help


def test_the_first_page() -> None:
    done = run("--help")
    assert (done.code, done.err) == (0, "")
    grouped = done.out.partition(f"\n{next(iter(GROUPS))}:\n")[2].splitlines()
    lines = [line.split(maxsplit=1) for line in grouped if line.startswith("  ")]
    assert [line for line in grouped if line and not line.startswith(" ")] == [f"{title}:" for title in [*GROUPS][1:]]
    assert sorted(name for name, _ in lines) == sorted(COMMANDS)  # each once
    assert all(said.strip() == COMMANDS[name][1] for name, said in lines)
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


@pytest.mark.parametrize("words", [(), ("extend",), ("gguf", "set")])
def test_help_is_a_command_too(words: tuple[str, ...]) -> None:
    assert run("help", *words).out == run(*words, "--help").out != ""


def test_the_context_length_has_the_names_of_other_programs(model: Path) -> None:
    first = run("extend", model, "--target-length", "2k", "--dry-run")
    assert first.code == 0
    for name in ("--context", "--ctx", "--length"):
        assert run("extend", model, name, "2k", "--dry-run") == first
        assert f"{name} " not in run("extend", "--help").out
    assert "Missing option '--target-length'." in run("advise", model).err


def test_the_version() -> None:
    assert run("--version").out == f"ropetool, version {ropetool.__version__}\n"


# --- errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bogus"], "No such command 'bogus'."),
        (["exted"], "No such command 'exted' (did you mean extend?)."),
        (["extend", "m", "--tarket-length", "4k"], "'--target-length'"),
        (["inspect"], "Missing argument 'SOURCE'."),
        (["advise", "m"], "Missing option '--target-length'."),
        (["extend", "m", "--method", "yarn", "--factor", "many"], "'many' is not a factor; write 4 or 4x"),
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
    hint = "pass a directory with a config.json"
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

    monkeypatch.setattr("ropetool.runtimes.inspection.opened_as", refuse)
    done = run("inspect", model, "--json")
    assert (done.code, done.err) == (1, f"Error: {model}/config.json: Permission denied\n")
    assert done.json["error"]["where"] == f"{model}/config.json"


def test_results_and_notes_do_not_mix(model: Path) -> None:
    """Notes go to stderr, so that stdout can be piped; with --json they are in the object."""
    shown, told = run("inspect", model), run("inspect", model, "--json")
    assert shown.err == "Note: the folder has only config.json: commands that need weights will not work\n"
    assert "Note" not in shown.out
    assert (told.err, told.json["notes"]) == (
        "",
        ["the folder has only config.json: commands that need weights will not work"],
    )


# --- the process around it


def test_an_interrupt_is_code_130(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ropetool.runtimes.inspection.inspect_opened", interrupt)
    done = run("inspect", model)
    assert (done.code, done.out) == (130, "")
    assert done.err.strip() == "Interrupted."


# The process gets the signal, so many times, as soon as the first of its files has been copied.
STRUCK = """
import os, signal, sys
from ropetool.files import linking
place = linking.place
def struck(*arguments, **options):
    placed = place(*arguments, **options)
    for _ in range({times}):
        os.kill(os.getpid(), {number})
    return placed
linking.place = struck
from ropetool.cli import main
main(sys.argv[1:])
"""
ENDS = [
    (signal.SIGINT, 130, "Interrupted."),
    (signal.SIGTERM, 143, "Ended by SIGTERM."),
    (signal.SIGHUP, 129, "Ended by SIGHUP."),
]


def as_a_shell_starts_it() -> None:
    """Have the signals end a process: one in the background of a shell, or of a test run, has some of them ignored."""
    for number, _, _ in ENDS:
        signal.signal(number, signal.SIG_DFL)


def struck(
    folder: Path, number: int, times: int, started: Callable[[], None] = as_a_shell_starts_it
) -> subprocess.CompletedProcess[str]:
    """Return what became of `extend --copy model` in the folder when the signal came."""
    source = write_config(folder / "model", configs.config("llama", "v4"))
    for name in ("0.txt", "1.txt", "2.txt"):
        (source / name).write_bytes(b"x" * 4096)
    program = [sys.executable, "-c", STRUCK.format(number=int(number), times=times)]
    command = [*program, "extend", "model", "--method", "yarn", "--factor", "4", "--copy"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, preexec_fn=started)


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize(("number", "code", "word"), ENDS)
def test_a_signal_while_writing_leaves_nothing(tmp_path: Path, number: int, code: int, word: str, times: int) -> None:
    done = struck(tmp_path, number, times)
    assert (done.returncode, done.stdout, done.stderr.strip()) == (code, "", word)
    assert os.listdir(tmp_path) == ["model"]


def test_under_nohup_a_terminal_may_close(tmp_path: Path) -> None:
    done = struck(tmp_path, signal.SIGHUP, 1, lambda: void(signal.signal(signal.SIGHUP, signal.SIG_IGN)))
    assert done.returncode == 0, done.stderr
    assert sorted(os.listdir(tmp_path)) == ["model", "model-yarn-4x"]


def void(_: object) -> None:
    """Return nothing."""


# What Python calls from C cannot raise: it says so on stderr and goes on.
IN_A_CALLBACK = """
import ctypes, os, signal, sys, time
from ropetool.runtimes import inspection
@ctypes.CFUNCTYPE(None)
def callback():
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0)
def endless(*_):
    callback()
    time.sleep(60)
inspection.inspect_opened = endless
from ropetool.cli import main
main(["inspect", "model"])
"""


def test_a_signal_inside_a_callback_is_not_lost() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IN_A_CALLBACK], capture_output=True, text=True, preexec_fn=as_a_shell_starts_it
    )
    assert (done.returncode, done.stderr.strip()) == (143, "Ended by SIGTERM.")


# A thread of a library, as of a download, that has work for ever.
WITH_A_THREAD = """
import os, signal, threading
from ropetool import __main__
from ropetool.runtimes import inspection
def endless(*_):
    threading.Thread(target=threading.Event().wait).start()
    os.kill(os.getpid(), signal.SIGTERM)
inspection.inspect_opened = endless
import sys
sys.argv[1:] = ["inspect", "model"]
__main__.main()
"""


def test_a_signal_ends_the_threads_too() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITH_A_THREAD], capture_output=True, text=True, timeout=120, preexec_fn=as_a_shell_starts_it
    )  # fmt: skip
    assert (done.returncode, done.stderr.strip()) == (143, "Ended by SIGTERM.")


def test_the_signals_are_given_back(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def look(*_: object) -> None:
        during.extend(map(signal.getsignal, numbers))
        raise RopetoolError("enough")

    numbers, during = [number for number, _, _ in ENDS], list[object]()
    before = [*map(signal.getsignal, numbers), sys.unraisablehook]
    monkeypatch.setattr("ropetool.runtimes.inspection.inspect_opened", look)
    run("inspect", model)
    assert during[1] is not before[1]
    assert [*map(signal.getsignal, numbers), sys.unraisablehook] == before


@pytest.mark.parametrize("fault", [KeyError("k"), EOFError("e"), TypeError("first\n\x1b[2Jsecond" * 90)])
def test_a_bug_is_told_as_one(model: Path, monkeypatch: pytest.MonkeyPatch, fault: Exception) -> None:
    def fail(*_: object) -> None:
        raise fault

    monkeypatch.setattr("ropetool.runtimes.inspection.inspect_opened", fail)
    done = run("inspect", model, "--json")
    lines = done.err.strip().splitlines()
    assert (done.code, len(lines)) == (70, 2)
    where = f"ropetool {ropetool.__version__}"
    assert lines[0].startswith(f"Error: {where}: a bug in ropetool, not in your files ({type(fault).__name__}: ")
    assert "please report it" in lines[0]
    assert lines[0].isprintable()
    assert lines[1] == f"Try: ROPETOOL_TRACEBACK=1 ropetool inspect {model} --json  # prints the traceback"
    error = done.json["error"]
    assert (error["type"], error["where"]) == ("InternalError", where)
    assert lines[0] == f"Error: {error['where']}: {error['message']}"
    assert run("inspect", model).out == ""
    monkeypatch.setenv("ROPETOOL_TRACEBACK", "1")
    shown = run("inspect", model)
    assert shown.code == 70
    assert ", in fail\n" in shown.err


def test_no_memory_is_no_bug(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("ropetool.runtimes.inspection.inspect_opened", fail)
    done = run("inspect", model)
    assert (done.code, done.err) == (1, "Error: the machine ran out of memory\n")


def test_a_reader_that_leaves_is_no_error(model: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as closed:
        done = subprocess.run(
            [*PROGRAM, "inspect", "model", "--json"], cwd=model.parent, stdout=closed, stderr=subprocess.PIPE
        )
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.parametrize("arguments", [["inspect", "nowhere", "--json"], ["inspect", "--bogus", "--json"]])
@pytest.mark.parametrize("both", [False, True])
def test_an_error_that_nobody_reads_keeps_its_code(model: Path, arguments: list[str], both: bool) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as closed, Path("/dev/full").open("w") as full:
        for out in (closed, full):
            err = out if both else subprocess.PIPE
            done = subprocess.run([*PROGRAM, *arguments], cwd=model.parent, stdout=out, stderr=err, text=True)
            assert done.returncode == (2 if "--bogus" in arguments else 1)
            assert both or done.stderr.splitlines()[-1].startswith(("Error: ", "Try: "))
            assert both or "Traceback" not in done.stderr


BUG = "from ropetool.cli import main; import ropetool.runtimes.inspection as i; i.inspect_opened = None; main(['inspect', 'model'])"
REFUSED = "from ropetool.cli import main; main(['inspect', 'nowhere'])"
USAGE = "from ropetool.cli import main; main(['inspect', '--bogus'])"
FAILED = """
from ropetool.cli import main
from ropetool.errors import VerificationFailed
import ropetool.runtimes.inspection as i
def fail(*_, **__): raise VerificationFailed("the file is wrong", try_="another file")
i.inspect_opened = fail
main(["inspect", "model"])
"""


@pytest.mark.parametrize("streams", ["2>&-", "2>/dev/full", ">&- 2>&-", ">/dev/full 2>/dev/full"])
@pytest.mark.parametrize(("program", "code"), [(BUG, 70), (REFUSED, 1), (USAGE, 2), (FAILED, 3)])
def test_closed_and_full_streams_keep_the_exit_code(model: Path, program: str, code: int, streams: str) -> None:
    line = f"exec {shlex.quote(sys.executable)} -c {shlex.quote(program)} {streams}"
    assert subprocess.run(["bash", "-c", line], cwd=model.parent, check=False).returncode == code


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


# Between taking the signals over and the command itself, and while its refusal is being said.
AT_THE_EDGES = """
import os, signal, sys
from ropetool import cli
stopped = cli.{place}
def struck(*arguments):
    os.kill(os.getpid(), signal.SIGHUP)
    return stopped(*arguments)
cli.{place} = struck
cli.main(["inspect", "nowhere"])
"""


@pytest.mark.parametrize("place", ["_outcome", "_refuse"])
def test_a_signal_around_the_command_is_told_too(place: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", AT_THE_EDGES.format(place=place)], capture_output=True, text=True, preexec_fn=as_a_shell_starts_it
    )  # fmt: skip
    assert (done.returncode, done.stderr.strip()) == (129, "Ended by SIGHUP.")


# Where an interrupt does not arrive as what it is: when the handlers are given back, in a class that gets its fields, where
# Python before 3.12 replaces it, and between the start of a context and its body, which leaves the context open.
HANDLERS_BACK = """
from ropetool.cli import signals
def given_back(number, handler):
    before = own(number, handler)
    if number == signal.SIGINT and handler is signal.default_int_handler:
        os.kill(os.getpid(), signal.SIGINT)
    return before
own, signal.signal = signal.signal, given_back
"""
IN_A_CLASS = """
class Field:
    def __set_name__(self, owner, name):
        os.kill(os.getpid(), signal.SIGINT)
inspection.inspect_opened = lambda *_: type("Owner", (), {"field": Field()})
"""
BEFORE_A_BODY = """
from contextlib import contextmanager
@contextmanager
def folder():
    os.mkdir("left")
    try:
        yield
    finally:
        os.rmdir("left")
def stopped(*_):
    context = folder()
    context.__enter__()
    os.kill(os.getpid(), signal.SIGINT)
inspection.inspect_opened = stopped
"""


@pytest.mark.parametrize("program", [HANDLERS_BACK, IN_A_CLASS, BEFORE_A_BODY])
def test_an_interrupt_at_an_odd_moment(tmp_path: Path, program: str) -> None:
    write_config(tmp_path / "model", configs.config("llama", "v4"))
    start = "import os, signal, sys\nfrom ropetool import __main__\nfrom ropetool.runtimes import inspection\n"
    end = 'sys.argv[1:] = ["inspect", "model"]\n__main__.main()\n'
    done = subprocess.run(
        [sys.executable, "-c", start + program + end], cwd=tmp_path, capture_output=True, text=True, preexec_fn=as_a_shell_starts_it
    )  # fmt: skip
    assert (done.returncode, done.stderr.strip().rpartition("\n")[2]) == (130, "Interrupted.")
    assert "Traceback" not in done.stderr
    assert os.listdir(tmp_path) == ["model"]

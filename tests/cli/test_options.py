"""What options of several commands take: lengths, factors, names that are nearly right, and what a shell completes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import configs
import pytest
from models import config_of, write_config
from running import run

from ropetool import families, runtimes
from ropetool.cli import COMMANDS
from ropetool.errors import InvalidRope
from ropetool.escaping import read_length
from ropetool.plans import bakes
from ropetool.rope import methods


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return write_config(tmp_path / "model", configs.config("llama", "v4"))  # trained at 512


# --- lengths and factors


@pytest.mark.parametrize(
    ("text", "length"),
    [("32768", 32768), ("32k", 32768), ("128K", 131072), ("1M", 1048576), ("0.5m", 524288), (" 4k ", 4096), ("-1", -1)],
)
def test_a_length(text: str, length: int) -> None:
    assert read_length(text) == length


@pytest.mark.parametrize(
    "text", ["", "k", "4q", "4kb", "4.1", "0.0001k", "4,096", "4_096", "1e5", "nan", "9" * 5000, "٤"]
)
def test_what_is_no_length(text: str) -> None:
    with pytest.raises(InvalidRope, match="not a length in tokens"):
        read_length(text)


@pytest.mark.parametrize(
    ("arguments", "context"),
    [
        (["--factor", "4x"], 2048), (["--factor", "4X"], 2048), (["--factor", "2.5"], 1280), (["--target-length", "2k"], 2048),
        (["--target-length", "0.5M", "--force-factor"], 524288), (["--factor", "2", "--original-length", "1k"], 2048),
    ],
)  # fmt: skip
def test_an_extension_by_them(model: Path, arguments: list[str], context: int) -> None:
    done = run("extend", model, "--method", "linear", *arguments, "-o", "out")
    assert done.code == 0, done.err
    assert config_of(Path("out"))["max_position_embeddings"] == context


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["inspect", "m", "--target-length", "32q"], "'32q' is not a length in tokens; write 32768, 32k or 1M"),
        (["inspect", "m", "--target-length", "0k"], "0k is not in the range 1 to 2147483648 tokens"),
        (["extend", "m", "-m", "yarn", "--target-length", "4M M"], "'4M M' is not a length in tokens"),
        (["extend", "m", "-m", "yarn", "--target-length", "3000M"], "3000M is not in the range"),
        (["extend", "m", "-m", "yarn", "--factor", "x4"], "'x4' is not a factor; write 4 or 4x"),
        (["extend", "m", "-m", "yarn", "--original-length", "x"], "'x' is not a length in tokens"),
        (["verify", "m", "--lengths", "4k,,8k"], "'4k,,8k' is not a list of lengths; write 256,512,1024 or 4k,8k,16k"),
    ],
)
def test_a_wrong_one_is_wrong_usage(arguments: list[str], message: str) -> None:
    done = run(*arguments)
    assert (done.code, done.out) == (2, "")
    assert message in done.err


def test_lengths_of_a_verification_in_thousands(model: Path) -> None:
    """That they increase is what the library asks for, with the numbers that they stand for."""
    done = run("verify", model, "--lengths", "4k,2k")
    assert (done.code, done.err.splitlines()[0]) == (
        1,
        "Error: --lengths: lengths must increase, but 2048 follows 4096",
    )


# --- names


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["-m", "yran", "--factor", "4"], "no method is called 'yran' (did you mean yarn?)"),
        (["-m", "YARN", "--factor", "4"], "no method is called 'YARN' (did you mean yarn?)"),
        (["-m", "yarn", "--factor", "4", "-p", "beta_fats", "3"], "no parameter beta_fats (did you mean beta_fast or beta_slow?)"),
        (["-m", "yarn", "--factor", "4", "--for", "vlm"], "no runtime is called 'vlm' (did you mean vllm or mlx-vlm?)"),
        (["-m", "banana", "--factor", "4"], "no method is called 'banana'; known: "),
    ],
)  # fmt: skip
def test_a_name_that_is_nearly_right(model: Path, arguments: list[str], hint: str) -> None:
    done = run("extend", model, *arguments)
    assert (done.code, done.out) == (2, "")
    assert hint in done.err


def test_other_names_that_are_nearly_right(model: Path) -> None:
    assert "'atention-factor' (did you mean attention-factor?)" in run("bake", model, "atention-factor").err
    assert "unknown type 'q8-0' (did you mean q8_0" in run("export", model, "--outtype", "q8-0").err
    assert "(did you mean standard?)" in run("verify", model, "--suite", "standart").err


def test_a_second_checkpoint_to_verify_is_a_baseline() -> None:
    done = run("verify", "a model", "b")
    assert (done.code, done.out) == (2, "")
    hint = "Got unexpected extra argument 'b'. To compare with it: ropetool verify 'a model' --baseline b"
    assert done.err.splitlines()[-1] == f"Error: {hint}"


def test_what_goes_on_after_an_interruption_is_a_command_that_works(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same command with --resume is one only where that option is."""

    class Interrupted(KeyboardInterrupt):
        rows = 3

    def interrupt(*_: object, **__: object) -> None:
        raise Interrupted

    monkeypatch.setattr("ropetool.verification.checkpoints.verify_target", interrupt)
    kept = "Note: 3 rows are saved; to continue, run {}"
    done = run("extend", model, "-m", "yarn", "--factor", "4", "--verify", "-o", "the output")
    assert done.code == 130
    assert kept.format("`ropetool verify 'the output' --suite quick --resume`") in done.err.splitlines()
    assert kept.format("the same command with --resume") in run("verify", model).err.splitlines()
    line = f"ropetool verify {Path.cwd()}/demo/model-yarn-8x --baseline demo/model --resume"
    assert kept.format(f"`{line}`") in run("demo", "demo").err.splitlines()
    line = f"ropetool verify {Path.cwd()}/ropetool-demo/model-yarn-8x --baseline ropetool-demo/model --resume"
    assert kept.format(f"`{line}`") in run("demo").err.splitlines()
    Interrupted.rows = 0
    assert "Note: nothing was saved: no measurement was completed" in run("verify", model).err.splitlines()

    def interrupt_unkept(*_: object, **__: object) -> None:
        error = KeyboardInterrupt()
        error.unkept = "the disk is full"  # type: ignore[attr-defined]
        raise error

    monkeypatch.setattr("ropetool.verification.checkpoints.verify_target", interrupt_unkept)
    assert "Note: the measurements were not saved: the disk is full" in run("verify", model).err.splitlines()


# --- completion


def completed(*words: str, code: str = "from ropetool.cli import main; main()") -> list[str]:
    """Return what a shell is told behind these words."""
    environment = {
        "_ROPETOOL_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(words),
        "COMP_CWORD": str(len(words) - 1),
    }
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **environment}
    )  # fmt: skip
    assert done.stderr == ""
    return [line.partition(",")[2] for line in done.stdout.splitlines()]


def test_what_a_shell_completes() -> None:
    assert completed("ropetool", "ex") == [name for name in COMMANDS if name.startswith("ex")]
    assert completed("ropetool", "extend", "--method", "") == methods.names()
    assert completed("ropetool", "extend", "model", "--for", "trans") == ["transformers", "transformers-v4"]
    assert completed("ropetool", "runtimes", "") == runtimes.names()
    assert completed("ropetool", "methods", "ntk-") == ["ntk-by-parts"]
    assert completed("ropetool", "families", "") == families.names()
    assert completed("ropetool", "bake", "model", "") == sorted(bakes.BAKES)
    assert completed("ropetool", "extend", "--target") == ["--target-length"]


def test_completion_loads_nothing_heavy() -> None:
    code = """
import atexit, sys
atexit.register(lambda: print(*{"numpy", "rich", "torch", "gguf"} & set(sys.modules), end="", file=sys.stderr))
from ropetool.cli import main
main()
"""
    assert completed("ropetool", "extend", "--method", "y", code=code) == ["yarn"]
    assert completed("ropetool", "bake", "model", "s", code=code) == ["score", "shift-safe", "softmax-scale"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_lines_of_the_documentation(shell: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
    assert f"_ROPETOOL_COMPLETE={shell}_source ropetool" in page
    environment = {**os.environ, "_ROPETOOL_COMPLETE": f"{shell}_source"}
    done = subprocess.run([sys.executable, "-m", "ropetool"], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert "_ropetool_completion" in done.stdout
    if shell == "bash" and shutil.which("bash"):
        assert subprocess.run(["bash", "-n"], input=done.stdout, text=True).returncode == 0


MODEL_LENGTHS = {
    "--target-length": ("extend", "--method", "yarn"), "--original-length": ("extend", "--method", "yarn", "--factor", "2"),
    "--trained-length": ("verify",), "--lengths": ("verify",),
}  # fmt: skip


@pytest.mark.parametrize("option", MODEL_LENGTHS)
def test_every_length_may_be_in_thousands(option: str, tmp_path: Path) -> None:
    command, *more = MODEL_LENGTHS[option]
    done = run(command, tmp_path / "nothing", *more, option, "4k")
    assert "nothing" in done.err  # the path is wrong, not the option
    assert option not in done.err

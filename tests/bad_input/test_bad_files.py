"""Sources, outputs and plan files that are broken, missing, in the way or out of date."""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import configs
import pytest
from models import safetensors
from running import refused, run, snapshot

from ropetool.files.parts import conversion

BASE = configs.config("llama", "v4")
EXTEND = ("--method", "yarn", "--factor", "4")
C = "{m}/config.json"
SHARD = "model-00001-of-00002.safetensors"


def truncate(model: Path) -> None:
    (model / SHARD).write_bytes((model / SHARD).read_bytes()[:-1])


def claim(length: int) -> Callable[[Path], None]:
    return lambda model: (model / SHARD).write_bytes(length.to_bytes(8, "little") + b"{}") and None


def index(weight_map: Any) -> Callable[[Path], None]:
    text = json.dumps({"weight_map": weight_map})
    return lambda model: (model / "model.safetensors.index.json").write_text(text) and None


def unlink(name: str) -> Callable[[Path], None]:
    return lambda model: (model / name).unlink()


def pickles_alone(model: Path) -> None:
    for file in model.glob("*.safetensors*"):
        file.unlink()
    (model / "pytorch_model.bin").write_bytes(b"\x80\x02}q\x00.")


def folder_for_config(model: Path) -> None:
    (model / "config.json").unlink()
    (model / "config.json").mkdir()


def put(name: str, content: str | bytes) -> Callable[[Path], None]:
    return lambda model: (
        (model / name).write_bytes(content if isinstance(content, bytes) else content.encode()) and None
    )


INDEX = "{m}/model.safetensors.index.json"
AGAIN = "download the file again: it is incomplete"

FILES: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "no config.json": (unlink("config.json"), "{m}: does not contain a config.json", "pass a directory with a config.json"),
    "a folder for config.json": (folder_for_config, f"{C}: is a directory, not a regular file", ""),
    "a shard that is missing": (
        unlink(SHARD), f"{INDEX}: lists 'a.weight' in {SHARD}, which does not exist", f"download {SHARD} into {{m}}",
    ),
    "a shard outside": (
        index({"a.weight": "../secret.safetensors"}),
        f"{INDEX}: lists 'a.weight' in '../secret.safetensors'; shards must be .safetensors files in the same directory", "",
    ),
    "a shard by its full path": (
        index({"a.weight": "/etc/passwd"}),
        f"{INDEX}: lists 'a.weight' in '/etc/passwd'; shards must be .safetensors files in the same directory", "",
    ),
    "an index that is none": (index([]), f"{INDEX}: has no weight_map of tensor names to file names", ""),
    "an index that lies": (
        index({"a.weight": SHARD, "z": SHARD}), f"{INDEX}: lists tensor 'z' in {SHARD}, but it is in no weight file", "",
    ),
    "a header of 2^60 bytes": (
        claim(2**60),
        f"{{m}}/{SHARD}: declares a header of 1,152,921,504,606,846,976 bytes; ropetool reads at most 48,000,000", "",
    ),
    "a header longer than the file": (
        claim(99), f"{{m}}/{SHARD}: declares a header of 99 bytes, but only 2 follow", AGAIN,
    ),
    "a shard cut short": (truncate, f"{{m}}/{SHARD}: the tensors end at byte 141, but the file ends at byte 140", AGAIN),
    "a shard that is a pointer": (
        put(SHARD, "version https://git-lfs.github.com/spec/v1\n"),
        f"{{m}}/{SHARD}: is a Git LFS pointer, not the weights", "git lfs pull",
    ),
    "an empty shard": (
        put(SHARD, b""), f"{{m}}/{SHARD}: is 0 bytes long; a safetensors file begins with the 8-byte length of its header", "",
    ),
    "the same tensor twice": (
        put("model-00002-of-00002.safetensors", safetensors({"a.weight": b"x"})),
        f"{{m}}: tensor 'a.weight' is in {SHARD} and in model-00002-of-00002.safetensors: loaders disagree on "
        "which one to use", "",
    ),
    "pickles alone": (
        pickles_alone, "{m}: the weights are pickles (pytorch_model.bin), which ropetool never loads",
        conversion("M/model").replace("M/model", "{m}"),
    ),
    "a tokenizer_config that is none": (
        put("tokenizer_config.json", "[]"), "{m}/tokenizer_config.json: contains [] instead of a JSON object", "",
    ),
    "a ropetool.json of others": (
        put("ropetool.json", '{"name": "rope"}'),
        "{m}/ropetool.json: not a valid ropetool record (source is absent; it must be text)", "move it away, then run again",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", FILES)
def test_a_broken_file(case: str, model: Path, tmp_path: Path) -> None:
    change, error, try_ = FILES[case]
    (tmp_path / "secret.safetensors").write_bytes(safetensors({"a.weight": b"x"}))
    change(model)
    refused(tmp_path, error, try_, "extend", model, *EXTEND)


@pytest.mark.parametrize("command", ["inspect", "extend"])
def test_a_source_that_is_none(command: str, model: Path, tmp_path: Path) -> None:
    options = EXTEND if command == "extend" else ()
    needs = "pass a directory with a config.json"
    refused(tmp_path, f"{tmp_path}/nowhere: does not exist", needs, command, tmp_path / "nowhere", *options)
    refused(tmp_path, f"{tmp_path}: does not contain a config.json", needs, command, tmp_path, *options)
    file = model / "README.md"
    error = f"{file}: is a file; a checkpoint is a directory with a config.json"
    refused(tmp_path, error, f"pass its directory, {model}", command, file, *options)


# --- outputs


OTHER = "pass another -o"
MOVED = f"{OTHER}, or move the existing output away"
OUTPUTS: dict[str, tuple[str, tuple[str, ...], str, str]] = {
    "a folder of others": (
        "theirs", (), "{r}/theirs: exists already and is a directory that ropetool did not write (it does not contain "
        "ropetool.json)", MOVED,
    ),
    "a folder of others by force": (
        "theirs", ("--force",), "{r}/theirs: exists already and is a directory that ropetool did not write (it does not contain "
        "ropetool.json); --force does not replace it", MOVED,
    ),
    "a link by force": (
        "link", ("--force",), "{r}/link: exists already and is a symbolic link; --force does not replace it", MOVED,
    ),
    "a file": ("file", (), "{r}/file: exists already and is a file; the output must be a directory", MOVED),
    "a file by force": (
        "file", ("--force",), "{r}/file: exists already and is a file; the output must be a directory; --force does not "
        "replace it", MOVED,
    ),
    "below a file": ("file/out", (), "{r}/file/out: {r}/file is a file, not a directory", OTHER),
    "in a folder that is not there": ("no/out", (), "{r}/no/out: the directory {r}/no does not exist", "mkdir -p {r}/no"),
    "the source": ("model", ("--force",), "{r}/model: is the source, {r}/model; ropetool never writes to the source", OTHER),
    "inside the source": (
        "model/out", (), "{r}/model/out: is inside the source, {r}/model; ropetool never writes to the source", OTHER,
    ),
    "around the source": (".", ("--force",), "{r}: contains the source, {r}/model; ropetool never writes to the source", OTHER),
}  # fmt: skip


@pytest.mark.parametrize("case", OUTPUTS)
def test_an_output_that_may_not_be_written(case: str, model: Path, tmp_path: Path) -> None:
    output, options, error, try_ = OUTPUTS[case]
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "thesis.tex").write_text("years of work")
    (tmp_path / "file").write_text("a file")
    (tmp_path / "link").symlink_to("theirs")
    target = tmp_path if output == "." else tmp_path / output
    shown = [text.replace("{r}", str(tmp_path)) for text in (error, try_)]
    refused(tmp_path, *shown, "extend", model, *EXTEND, "-o", target, *options)


def test_an_output_without_a_name(model: Path, tmp_path: Path) -> None:
    for output in ("", "/", ".."):
        refused(
            tmp_path, f"{output or '.'}: does not end in a file name", OTHER, "extend", model, *EXTEND, "-o", output
        )


def test_an_output_that_is_there(model: Path, tmp_path: Path) -> None:
    assert run("extend", model, *EXTEND).code == 0
    error = f"{tmp_path}/model-yarn-4x: exists already"
    refused(tmp_path, error, "pass another -o, or --force to replace it", "extend", model, *EXTEND)


SPACE = 64 * 1024
MOUNT = 'mount -t tmpfs -o size=64k none "$1" && shift && exec "$@"'


def test_no_space_left(model: Path, tmp_path: Path) -> None:
    """On a full disk where one can be mounted, else under a limit on the size of files."""
    (model / "notes.txt").write_bytes(b"x" * 4 * SPACE)
    (tmp_path / "disk").mkdir()
    before = snapshot(tmp_path)
    command = [
        sys.executable,
        "-m",
        "ropetool",
        "extend",
        str(model),
        *EXTEND,
        "--copy",
        "-o",
        str(tmp_path / "disk" / "out"),
    ]
    alone = ["unshare", "-rm", "sh", "-c", MOUNT, "sh", str(tmp_path / "disk")]
    if shutil.which("unshare") and subprocess.run([*alone, "true"], capture_output=True, check=False).returncode == 0:
        done = subprocess.run([*alone, *command], capture_output=True, text=True, check=False)
        assert f"{tmp_path}/disk/out/notes.txt: no space left: 262,144 bytes are needed, " in done.stderr
        assert "Try: pass an -o on a disk with more space\n" in done.stderr
    else:
        done = subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=limit_file_size)
        assert f"{tmp_path}/disk/out/notes.txt: file too large" in done.stderr
    assert (done.returncode, done.stdout) == (1, "")
    assert snapshot(tmp_path) == before


def limit_file_size() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (SPACE, SPACE))


def test_a_file_that_the_system_will_not_write(model: Path, tmp_path: Path) -> None:
    (model / "notes.txt").write_bytes(b"x" * 4 * SPACE)
    before = snapshot(tmp_path)
    command = [sys.executable, "-m", "ropetool", "extend", str(model), *EXTEND, "--copy"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=limit_file_size)
    error = f"Error: {model}-yarn-4x/notes.txt: file too large\nTry: pass another -o\n"
    assert (done.returncode, done.stderr) == (1, error)
    assert snapshot(tmp_path) == before


# --- plan files


def plan_file(tmp_path: Path, model: Path) -> dict[str, Any]:
    done = run("extend", model, *EXTEND, "--dry-run", "--json")
    plan: dict[str, Any] = done.json["plan"]
    return plan


NO_PLAN = "make one with ropetool extend ... --dry-run --plan-out FILE"
PLANS: dict[str, tuple[Any, str, str]] = {
    "empty": ("", "plan.json: is empty", ""),
    "no JSON": ("{", "plan.json: is not valid JSON: Expecting property name enclosed in double quotes at line 1, column 2", ""),
    "a list": ("[]", "plan.json: contains [] instead of a JSON object", ""),
    "an object": ("{}", "plan.json: not a valid ropetool plan (schema is absent; it must be 1 or 2, the schemas of this version)", NO_PLAN),
    "another schema": (
        {"schema": 7}, 'plan.json: not a valid ropetool plan (schema is 7; it must be 1 or 2, the schemas of this version)', NO_PLAN,
    ),
    "a text that is none": (
        {"suffix": "\ud800"}, 'plan.json: not a valid ropetool plan (suffix is "\\ud800"; it must be part of a file name)', NO_PLAN,
    ),
    "a note that is none": (
        {"notes": ["\udc80"]},
        'plan.json: not a valid ropetool plan (notes is ["\\udc80"]; it must be a list of at most 8,192 values, each text)', NO_PLAN,
    ),
    "a factor without end": (
        {"factor": float("inf")}, "plan.json: not a valid ropetool plan (factor is Infinity; it must be a finite number)", NO_PLAN,
    ),
    "a length beyond all": (
        {"trained_length": 10**400},
        "plan.json: not a valid ropetool plan (trained_length is 1" + "0" * 76 + "...; it must be a whole number from 1 to "
        "2147483648)", NO_PLAN,
    ),
    "a truth for a length": (
        {"trained_length": True},
        "plan.json: not a valid ropetool plan (trained_length is true; it must be a whole number from 1 to 2147483648)", NO_PLAN,
    ),
    "a factor of 10^300 on the score": (
        {"tables": {"full_attention": [{"inv_freq": [1.0], "attention_factor": 1e300, "up_to": None}]}},
        "plan.json: not a valid ropetool plan (attention_factor is 1e+300; it multiplies cos and sin and must be above 0, a "
        "number from 1e-18 to 1e+18)", NO_PLAN,
    ),
    "a candidate that is none": (
        {"candidates": [{"name": 1}]}, "plan.json: not a valid ropetool plan (a candidate: name is 1; it must be text)", NO_PLAN,
    ),
    "rows without end": (
        {"tensors": [{"tensor": "a.weight", "operation": "scale", "height": 10**10, "starts": [0], "length": 1, "factors": [2]}]},
        'plan.json: not a valid ropetool plan (the edit of "a.weight": height is 10000000000; it must be a whole number from '
        "0 to 1048576)", NO_PLAN,
    ),
    "rows of many tensors": (
        {"tensors": [
            {"tensor": str(n), "operation": "scale", "height": 2**20, "starts": [0], "length": 1, "factors": [2]}
            for n in range(5)
        ]},
        'plan.json: not a valid ropetool plan (it edits tensors of more than 4,194,304 rows)', NO_PLAN,
    ),
    "another file": (
        {"edits": [{"file": SHARD, "path": ["a"], "new": 1}]},
        f'plan.json: not a valid ropetool plan (an edit: file is "{SHARD}"; it must be one of config.json, tokenizer_config.json, '
        "model.safetensors.index.json, metadata, tensors)", NO_PLAN,
    ),
    "a suffix that leaves": (
        {"suffix": "x/../../y"}, 'plan.json: not a valid ropetool plan (suffix is "x/../../y"; it must be part of a file name)', NO_PLAN,
    ),
    "another family": (
        {"family": "mistral"}, '{m}: the plan is for mistral, but the source is "llama"',
        "make a new plan with ropetool extend ... --dry-run --plan-out FILE",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", PLANS)
def test_a_plan_that_is_none(case: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content, error, try_ = PLANS[case]
    monkeypatch.chdir(tmp_path)
    text = content if isinstance(content, str) else json.dumps({**plan_file(tmp_path, model), **content})
    (tmp_path / "plan.json").write_text(text)
    refused(tmp_path, error, try_, "apply", model, "plan.json")


def test_a_plan_that_is_not_there(model: Path, tmp_path: Path) -> None:
    refused(tmp_path, f"{tmp_path}/plan.json: does not exist", "", "apply", model, tmp_path / "plan.json")


def test_a_plan_for_a_source_that_has_changed(model: Path, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(json.dumps(plan_file(tmp_path, model)))
    (model / "config.json").write_text(json.dumps({**BASE, "max_position_embeddings": 1024}))
    error = f"{C}: max_position_embeddings: is 1024, but the plan was made for 512"
    refused(tmp_path, error, "make the plan again from this file", "apply", model, tmp_path / "plan.json")


def test_a_refusal_quotes_no_more_than_anybody_reads(model: Path) -> None:
    index({"a.weight": "x" * 5000 + ".gguf"})(model)
    done = run("inspect", model)
    assert done.code == 1
    assert len(done.err) < 2500
    assert done.err.startswith(f"Error: {model}/model.safetensors.index.json: lists 'a.weight' in 'xxx")
    assert done.err.rstrip().endswith("...")

"""Pipes, sockets and devices where a file belongs: each is refused by its kind, and none is waited for."""

from __future__ import annotations

import os
import socket
import tracemalloc
from pathlib import Path

import models
import pytest
from running import bounded

from ropetool.errors import CorruptFile
from ropetool.files.regular import read_regular

EXTEND = ("--method", "yarn", "--factor", "4")


def pipe(path: Path) -> str:
    os.mkfifo(path)
    return "named pipe"


def zeros(path: Path) -> str:
    path.symlink_to("/dev/zero")
    return "character device"


def unix_socket(path: Path) -> str:
    folder = os.open(path.parent, os.O_RDONLY)  # the name of a socket has 107 characters at most
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(f"/proc/self/fd/{folder}/{path.name}")
    os.close(folder)
    return "socket"


KINDS = {"pipe": pipe, "endless device": zeros, "socket": unix_socket}
EXPORT = ("export", "{m}", "--no-check", "-o", "{r}/out.gguf")
APPLY = ("apply", "{m}", "{r}/plan.json", "-o", "{r}/out")
# Which file is replaced, below the folder of all, and the command that reads it.
READ = {
    "config.json": ("model/config.json", ("inspect", "{m}")),
    "tokenizer_config.json": ("model/tokenizer_config.json", ("inspect", "{m}")),
    "weights": ("model/model.safetensors", ("extend", "{m}", *EXTEND)),
    "weights to export": ("model/model.safetensors", EXPORT),
    "tokenizer.json": ("model/tokenizer.json", EXPORT),
    "chat template": ("model/additional_chat_templates/x.jinja", EXPORT),
    "README of an export": ("model/README.md", EXPORT),
    "README": ("model/README.md", ("extend", "{m}", *EXTEND)),
    "ropetool.json": ("model/ropetool.json", ("inspect", "{m}")),
    "plan": ("plan.json", APPLY),
    "importance matrix": ("imatrix", (*EXPORT, "--outtype", "q4_k_m", "--imatrix", "{r}/imatrix")),
    "second shard": ("g-00002-of-00002.gguf", ("inspect", "{r}/g-00001-of-00002.gguf")),
}
READ_TEXTS = (
    "import pathlib; from ropetool.verification.texts import read_documents as read; read([pathlib.Path(sys.argv[1])])"
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    models.checkpoint(tmp_path / "model")
    (tmp_path / "model" / "chat_template.jinja").write_text("{{ x }}")
    (tmp_path / "model" / "additional_chat_templates").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("case", "kind"), [(case, "pipe") for case in READ] + [("weights", kind) for kind in KINDS][1:]
)
def test_what_is_no_regular_file_is_refused_by_its_kind(case: str, kind: str, root: Path) -> None:
    name, command = READ[case]
    place = root / name
    if case == "importance matrix":
        pytest.importorskip("llama_cpp")
    if case == "second shard":
        shards(root)
    place.unlink(missing_ok=True)
    word = KINDS[kind](place)
    before = sorted(os.listdir(root))
    arguments = [part.format(m=root / "model", r=root) for part in command]
    code, errors = bounded(*arguments)
    assert (code, errors.count("Error: "), "Traceback" in errors) == (1, 1, False), errors
    assert f"{place}: " in errors
    assert word in errors or "exists already" in errors
    assert sorted(os.listdir(root)) == before


@pytest.mark.parametrize(
    ("name", "kind"), [("a.txt", "endless device"), ("a.jsonl", "pipe"), ("a.gz", "pipe"), ("a.xz", "socket")]
)
def test_a_text_that_is_no_regular_file_is_refused_by_its_kind(name: str, kind: str, tmp_path: Path) -> None:
    word = KINDS[kind](tmp_path / name)
    code, errors = bounded(tmp_path / name, program=READ_TEXTS)
    assert code == 1
    assert errors.splitlines()[-1] == f"ropetool.errors.ConfigError: {tmp_path / name}: is a {word}, not a regular file"


def shards(root: Path) -> None:
    """Export the model to two files."""
    models.export(root / "model", root / "g.gguf", split_max_tensors=12)
    files = sorted(root.glob("g-*.gguf"))
    assert len(files) == 2


def test_a_short_file_claims_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "short"
    path.write_bytes(b"short")
    tracemalloc.start()
    try:
        assert read_regular(path, 1 << 30) == b"short"
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_file_of_the_system_is_read_whole_and_within_its_limit() -> None:
    path = Path("/proc/self/status")  # whose size is said to be 0
    if not path.exists():
        pytest.skip("no /proc")
    assert len(read_regular(path, 1 << 20).splitlines()) > 10
    with pytest.raises(CorruptFile, match="reads at most 10"):
        read_regular(path, 10)

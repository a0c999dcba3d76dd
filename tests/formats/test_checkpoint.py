"""Opening a Hugging Face directory: which files are taken for what, and what is said of a broken one."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from ropetool.errors import CheckpointError, CorruptFile, MissingFile, NotACheckpoint, RopetoolError
from ropetool.files.hf import (
    Directory,
    Edit,
    apply_edits,
    headers,
    limits_of,
    open_directory,
    read_object,
    read_optional_object,
)

CONFIG = '{\r\n  "model_type": "llama",\r\n  "é": 1.0\r\n}\r\n'
INDEX = "model.safetensors.index.json"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def make(path: Path, files: dict[str, Any] | None = None) -> Path:
    """Write config.json and the files: text as it is, anything else as safetensors or JSON."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_bytes(CONFIG.encode())
    for name, content in (files or {}).items():
        (path / name).parent.mkdir(exist_ok=True)
        if isinstance(content, bytes):
            (path / name).write_bytes(content)
        elif name.endswith(".safetensors"):
            save_file({tensor: np.zeros(2, np.float32) for tensor in content}, path / name)
        else:
            (path / name).write_text(json.dumps(content))
    return path


def sharded(path: Path, weight_map: Any = None) -> Path:
    shards = {SHARDS[0]: ["a", "b"], SHARDS[1]: ["c"]}
    default = {tensor: shard for shard, tensors in shards.items() for tensor in tensors}
    return make(path, {**shards, INDEX: {"weight_map": default if weight_map is None else weight_map}})


def names_of(paths: tuple[Path, ...]) -> list[str]:
    return [path.name for path in paths]


# --- what is found


def test_the_config_is_kept_as_text_and_parsed(tmp_path: Path) -> None:
    found = open_directory(make(tmp_path / "m", {"tokenizer_config.json": {"model_max_length": 5}}))
    assert found.config_text == CONFIG
    assert found.config == {"model_type": "llama", "é": 1.0}
    assert found.tokenizer_config == {"model_max_length": 5}
    assert (found.config_only, found.pickle_only, found.weights, found.index) == (True, False, (), None)
    assert open_directory(make(tmp_path / "n")).tokenizer_config is None


def test_shards_are_the_files_of_the_index(tmp_path: Path) -> None:
    path = make(sharded(tmp_path / "m"), {"consolidated.safetensors": ["a", "b", "c"]})
    found = open_directory(path)
    assert names_of(found.weights) == list(SHARDS)
    assert found.index == {"a": SHARDS[0], "b": SHARDS[0], "c": SHARDS[1]}
    assert [set(header.tensors) for header in headers(found)] == [{"a", "b"}, {"c"}]


def test_a_single_file_comes_before_others_and_others_serve_without_it(tmp_path: Path) -> None:
    both = make(tmp_path / "m", {"model.safetensors": ["a"], "consolidated.safetensors": ["a"]})
    assert names_of(open_directory(both).weights) == ["model.safetensors"]
    other = make(tmp_path / "n", {"b.safetensors": ["b"], "a.safetensors": ["a"]})
    assert names_of(open_directory(other).weights) == ["a.safetensors", "b.safetensors"]


def test_pickles_are_found_at_any_depth_and_never_loaded(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return (os.mkdir, (str(tmp_path / "went off"),))

    bomb = pickle.dumps(Bomb())
    path = make(tmp_path / "m", {"pytorch_model.bin": bomb, "original/consolidated.00.pth": bomb, ".cache/x.bin": bomb})
    found = open_directory(path)
    assert names_of(found.pickles) == ["consolidated.00.pth", "pytorch_model.bin"]
    assert (found.pickle_only, found.config_only) == (True, False)
    assert headers(found) == []
    assert not open_directory(make(path, {"model.safetensors": ["a"]})).pickle_only
    assert not (tmp_path / "went off").exists()


def test_a_hub_snapshot_of_links_is_a_checkpoint(tmp_path: Path) -> None:
    blobs = sharded(tmp_path / "blobs")
    snapshot = tmp_path / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    for file in blobs.iterdir():
        (snapshot / file.name).symlink_to(Path("../../blobs", file.name))
    found = open_directory(snapshot)
    assert found.config == {"model_type": "llama", "é": 1.0}
    assert [len(header.tensors) for header in headers(found)] == [2, 1]


def test_an_optional_file_may_be_absent_but_not_broken(tmp_path: Path) -> None:
    assert read_optional_object(tmp_path / "t.json") is None
    (tmp_path / "t.json").write_bytes(b'\xef\xbb\xbf{"a": 1}\r\n')
    assert read_optional_object(tmp_path / "t.json") == ('\ufeff{"a": 1}\r\n', {"a": 1})
    (tmp_path / "t.json").write_text("{")
    with pytest.raises(CorruptFile):
        read_optional_object(tmp_path / "t.json")
    (tmp_path / "u.json").symlink_to("nowhere")
    with pytest.raises(MissingFile, match="is a link to a file that does not exist"):
        read_optional_object(tmp_path / "u.json")


# --- what is not a checkpoint


def refused(path: Path) -> RopetoolError:
    with pytest.raises(RopetoolError) as found:
        open_directory(path)
    return found.value


@pytest.mark.parametrize(
    ("typed", "suggested"),
    [
        ("qwen3-8b.gguf", "Qwen3-8B.gguf"), ("Qwen3-8B.ggfu", "Qwen3-8B.gguf"), ("Qwen3-8", "Qwen3-8B.gguf"),
        ("smolm2", "smollm2"), ("smolm2.gguf", "smollm2.gguf"), ("gemma", "a directory with a config.json"),
        ("x.gguf", "the path of a GGUF file"),
    ],
)  # fmt: skip
def test_a_mistyped_path_suggests_the_model_beside_it(typed: str, suggested: str, tmp_path: Path) -> None:
    for name in ("Qwen3-8B.gguf", "m.gguf", "smollm2.gguf"):
        (tmp_path / name).touch()
    (tmp_path / "smollm2").mkdir()
    place = tmp_path / suggested
    assert refused(tmp_path / typed).try_ == f"pass {place if place.exists() else suggested}"


def test_a_path_that_is_missing_or_a_file_is_no_checkpoint(tmp_path: Path) -> None:
    missing, gguf, config = tmp_path / "none", tmp_path / "m.GGUF", make(tmp_path / "m") / "config.json"
    gguf.write_bytes(b"GGUF")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    expected = {
        missing: ("does not exist", "pass a directory with a config.json"),
        gguf: ("is a GGUF file, not a Hugging Face directory", ""),
        config: ("is a file; a checkpoint is a directory with a config.json", f"pass its directory, {config.parent}"),
        tmp_path / "none.gguf": ("does not exist", "pass the path of a GGUF file"),
        pipe: ("is neither a directory nor a file", "pass a directory with a config.json"),
        tmp_path / ("x" * 300): ("does not exist", "pass a directory with a config.json"),
    }
    for path, (message, try_) in expected.items():
        error = refused(path)
        assert (type(error), error.where, error.message, error.try_) == (NotACheckpoint, str(path), message, try_)


def test_a_directory_without_config_says_what_it_holds(tmp_path: Path) -> None:
    cache = tmp_path / "models--a--b"
    make(cache / "snapshots" / "abc")
    ggufs = tmp_path / "ggufs"
    ggufs.mkdir()
    (ggufs / "m.gguf").touch()
    empty = tmp_path / "empty"
    empty.mkdir()
    expected = {
        empty: "pass a directory with a config.json",
        ggufs: f"pass {ggufs / 'm.gguf'}",
        cache: f"pass {cache / 'snapshots' / 'abc'}",
    }
    for path, try_ in expected.items():
        error = refused(path)
        assert (type(error), error.message, error.try_) == (NotACheckpoint, "does not contain a config.json", try_)


def test_a_directory_of_several_gguf_files_lists_them(tmp_path: Path) -> None:
    names = ["a.gguf", "b-00001-of-00002.gguf", "b-00002-of-00002.gguf"]
    for name in names:
        (tmp_path / name).touch()
    error = refused(tmp_path)
    assert error.message == "does not contain a config.json; it contains 2 GGUF models"
    assert error.try_ == f"pass {tmp_path / names[0]} or {tmp_path / names[1]}"
    for name in ("c", "d", "e", "f"):
        (tmp_path / f"{name}.gguf").touch()
    assert refused(tmp_path).try_.endswith(f"{tmp_path / 'd.gguf'} or one of the 2 others")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("modle", "model"), ("llama.guf", "llama.gguf"), ("lama.gguf", "llama.gguf"), ("LLAMA.GGUF", "llama.gguf"), ("other", ""),
     ("x.txt", "")],
)  # fmt: skip
def test_a_mistyped_name_suggests_its_neighbour(typed: str, meant: str, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "llama.gguf").touch()
    (tmp_path / "x.text").touch()
    plain = "the path of a GGUF file" if typed.lower().endswith(".gguf") else "a directory with a config.json"
    assert refused(tmp_path / typed).try_ == f"pass {tmp_path / meant if meant else plain}"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b" \r\n", "is empty"),
        (b"{", "is not valid JSON: Expecting property name enclosed in double quotes at line 1, column 2"),
        (b'{"a": NaN]', "is not valid JSON: Expecting ',' delimiter at line 1, column 10"),
        (b"[]", "contains [] instead of a JSON object"),
        (b'"text"', 'contains "text" instead of a JSON object'),
        ('{"a": "é"}'.encode("latin-1"), "is not UTF-8: invalid continuation byte at byte 7"),
        ('{"a": 1}'.encode("utf-16"), "is not UTF-8: invalid start byte at byte 0"),
        (b'{"a": 1, "a": 1}', "contains the key 'a' twice in one object"),
        (b'{"a": ' + b"[" * 100_000, "is nested more than 100 levels deep"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_a_broken_config_has_its_own_text(content: bytes, message: str, tmp_path: Path) -> None:
    config = make(tmp_path / "m") / "config.json"
    config.write_bytes(content)
    error = refused(config.parent)
    assert (type(error), error.where, error.message) == (CorruptFile, str(config), message)


def test_a_config_that_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m"
    (path / "config.json").mkdir(parents=True)
    error = refused(path)
    assert (type(error), error.message) == (CorruptFile, "is a directory, not a regular file")
    (path / "config.json").rmdir()
    os.mkfifo(path / "config.json")  # reading it would wait for ever
    error = refused(path)
    assert (type(error), error.message) == (CorruptFile, "is a named pipe, not a regular file")


def test_a_huge_config_is_refused_unread(tmp_path: Path) -> None:
    config = make(tmp_path / "m") / "config.json"
    os.truncate(config, 1 << 40)
    error = refused(config.parent)
    assert error.message == "is 1,099,511,627,776 bytes long; ropetool reads at most 8,388,608"


def test_what_the_system_says_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(path: Path, flags: int) -> int:
        raise PermissionError(13, "Permission denied", str(path))

    path = make(tmp_path / "m")
    monkeypatch.setattr("ropetool.files.regular.os.open", denied)
    with pytest.raises(CheckpointError) as found:
        read_object(path / "config.json")
    assert found.value.sentence == f"{path / 'config.json'}: cannot be read: Permission denied"


# --- the shard index


@pytest.mark.parametrize(
    "shard",
    [
        "../x.safetensors", "/etc/x.safetensors", "a/b.safetensors", "a\\b.safetensors", "..", "./a/b.safetensors",
        "./../x.safetensors", "a/../x.safetensors", ".//etc/x.safetensors",
    ],
)  # fmt: skip
def test_a_shard_outside_the_directory_is_refused(shard: str, tmp_path: Path) -> None:
    save_file({"a": np.zeros(1)}, tmp_path / "x.safetensors")
    path = sharded(tmp_path / "m", {"a": SHARDS[0], "c": shard})
    error = refused(path)
    assert (type(error), error.where) == (CorruptFile, str(path / INDEX))
    assert error.message == f"lists 'c' in {shard!r}; shards must be .safetensors files in the same directory"


def test_a_shard_may_be_named_from_the_directory_itself(tmp_path: Path) -> None:
    path = sharded(tmp_path / "m", {"a": f"./{SHARDS[0]}", "b": f"././{SHARDS[0]}", "c": f"./{SHARDS[1]}"})
    found = open_directory(path)
    assert found.index == {"a": SHARDS[0], "b": SHARDS[0], "c": SHARDS[1]}
    assert [set(header.tensors) for header in headers(found)] == [{"a", "b"}, {"c"}]


def test_a_config_of_another_name_is_given_a_directory(tmp_path: Path) -> None:
    path = tmp_path / "Qwen 3.json"
    path.write_text("{}")
    with pytest.raises(NotACheckpoint) as refused:
        open_directory(path)
    folder = tmp_path / "Qwen 3"
    assert refused.value.try_ == f"mkdir '{folder}' && cp '{path}' '{folder}/config.json', then pass '{folder}'"


def test_an_index_with_members_without_end_is_refused(tmp_path: Path) -> None:
    """Each name is kept, to see one that comes twice."""
    path = sharded(tmp_path / "m")
    (path / INDEX).write_text(json.dumps({"weight_map": {"a": SHARDS[0]}, **{f"%{n}": 1 for n in range(80)}}))
    with pytest.raises(CorruptFile, match="has more than 64 members besides 'weight_map'"):
        open_directory(path)


@pytest.mark.parametrize("weight_map", [[], {}, None, {"a": 1}, "x"])
def test_an_index_without_a_map_is_refused(weight_map: Any, tmp_path: Path) -> None:
    path = make(tmp_path / "m", {INDEX: {"weight_map": weight_map}})
    error = refused(path)
    assert (type(error), error.message) == (CorruptFile, "has no weight_map of tensor names to file names")
    (path / INDEX).write_text("[]")
    assert (type(refused(path)), refused(path).where) == (CorruptFile, str(path / INDEX))


def test_a_missing_shard_names_the_index_a_tensor_and_the_file(tmp_path: Path) -> None:
    path = sharded(tmp_path / "m")
    (path / SHARDS[1]).unlink()
    error = refused(path)
    assert (type(error), error.where) == (MissingFile, str(path / INDEX))
    assert error.message == f"lists 'c' in {SHARDS[1]}, which does not exist"
    assert error.try_ == f"download {SHARDS[1]} into {path}"
    (path / SHARDS[1]).mkdir()
    assert type(refused(path)) is MissingFile


# --- headers against the index


def header_refusal(checkpoint: Directory) -> CorruptFile:
    with pytest.raises(CorruptFile) as found:
        headers(checkpoint)
    return found.value


def test_a_tensor_in_another_shard_than_the_index_says_is_refused(tmp_path: Path) -> None:
    path = sharded(tmp_path / "m", {"a": SHARDS[0], "b": SHARDS[1], "c": SHARDS[1]})
    error = header_refusal(open_directory(path))
    assert (error.where, error.message) == (
        str(path / INDEX),
        f"lists tensor 'b' in {SHARDS[1]}, but it is in {SHARDS[0]}",
    )
    path = sharded(tmp_path / "n", {"a": SHARDS[0], "d": SHARDS[1]})
    error = header_refusal(open_directory(path))
    assert error.message == f"lists tensor 'd' in {SHARDS[1]}, but it is in no weight file"


def test_a_tensor_in_two_files_that_loaders_choose_between_is_refused(tmp_path: Path) -> None:
    path = make(sharded(tmp_path / "m"), {"model.safetensors": ["a", "b", "c"]})
    error = header_refusal(open_directory(path))
    assert (
        error.message == f"tensor 'a' is in {SHARDS[0]} and in model.safetensors: loaders disagree on which one to use"
    )


def test_a_broken_shard_is_refused_by_name(tmp_path: Path) -> None:
    path = sharded(tmp_path / "m")
    os.truncate(path / SHARDS[1], 20)
    assert header_refusal(open_directory(path)).where == str(path / SHARDS[1])


def test_the_index_of_a_large_model_can_be_edited(tmp_path: Path) -> None:
    """As long as DeepSeek V3's, which has 8.9 MB for 91,991 tensors: a config of that length is refused."""
    names = [f"model.layers.{n // 1500}.mlp.experts.{n}.down_proj.weight_scale_inv" for n in range(92_000)]
    text = json.dumps({"metadata": {"total_size": 7}, "weight_map": dict.fromkeys(names, SHARDS[0])})
    assert len(text) > 8 << 20
    for name in (INDEX, "config.json"):
        (tmp_path / name).write_text(text)
    found = read_object(tmp_path / INDEX)[0]
    assert found == text
    edited = apply_edits(found, [Edit(("metadata", "total_size"), 7, 8)], INDEX, limits_of(INDEX))
    assert edited == text.replace('"total_size": 7', '"total_size": 8')
    with pytest.raises(CorruptFile, match="reads at most 8,388,608"):
        read_object(tmp_path / "config.json")

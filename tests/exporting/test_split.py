"""Exports over several files: gguf-split's rules, its keys, and the same model for whoever reads all of them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import gguf
import gguf_files
import models
import numpy as np
import pytest
from gguf_files import write

from ropetool.checkpoint import provenance
from ropetool.errors import ConfigError, OutputError
from ropetool.files.gguf import read_shards
from ropetool.files.gguf.splitting import SplitLimits, grouped, limits_of
from ropetool.files.renames import file_key
from ropetool.gguf_export import container, files
from ropetool.gguf_export.options import ExportOptions
from ropetool.gguf_export.preparing import prepare

SPLIT = ("split.no", "split.count", "split.tensors.count")
LLAMA3 = {
    "rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}  # fmt: skip


# What gguf-split of llama.cpp 0c1e570 makes of `write_whole`: how many tensors each part has, and the SHA-256 of all
# parts, one behind the other. Recorded once with tools/gguf-split/gguf-split.cpp of llama-cpp-python 0.3.36's source
# archive, compiled by itself against the libraries of its wheel: g++ -std=c++17 -Icommon -Iinclude -Iggml/include
# tools/gguf-split/gguf-split.cpp stub.cpp -lllama -lggml -lggml-base, where stub.cpp has the five functions of
# build-info.h; then gguf-split --split OPTION whole.gguf part. Its --merge of an export's parts gave the whole export
# back: all bytes of the data, and all keys, beside which it keeps those of the split.
# 31 of the first make 1M without the padding; the last two make it exactly.
SIZES = (*[32_257] * 62, 700_001, 1_500_000, 1_200_000, 3, 499_999, 600_000, 400_000)
WHOLE = "021ae016f80eb0647cf060bccd88ef1a149122e4dbf9e4a3d2ea304738991f46"
BY_GGUF_SPLIT: list[tuple[SplitLimits, list[int], str]] = [
    (SplitLimits(tensors=1), [1] * 69, "8d3792bf3841a213abf0c76d70dca179e76d38750a5b46709b874d69cf35b624"),
    (SplitLimits(tensors=7), [7] * 9 + [6], "566a23f6c8ce8a067b4cc5b72f5621bb43e4ef7fb014400526bd9ec8a6484b75"),
    (SplitLimits(tensors=17), [17] * 4 + [1], "606b23b35bba7f8ac709043419d92c2ba0f8fd1707ed36b18ecfdc8cd53f7c58"),
    (SplitLimits(tensors=68), [68, 1], "bb15d4c660db05c3bb3718893c0b186b5b70dc5c97763505f0960dd29c4e5c53"),
    (SplitLimits(10**6), [30, 30, 3, 1, 1, 2, 2], "5ce09e60a6a76cad4c66290df4f8cc794f8fefeb6aef5b0fd5157965884d3d89"),
    (SplitLimits(2 * 10**6), [61, 2, 1, 3, 2], "eb1f3ab43f80d425a837a93545fa92172314e270a68e6bdf88ac1f9c69f59d99"),
]


def write_whole(path: Path) -> Path:
    made = [(np.arange(size) * (number + 3) % 251 - 125).astype(np.int8) for number, size in enumerate(SIZES)]
    keys = {"general.name": "parts", "tokenizer.ggml.tokens": ["a", "b"]}
    return write(path, "llama", keys, {f"blk.{number}": tensor for number, tensor in enumerate(made)})


@pytest.mark.parametrize(("limits", "counts", "digest"), BY_GGUF_SPLIT)
def test_the_parts_are_byte_for_byte_those_of_gguf_split(
    limits: SplitLimits, counts: list[int], digest: str, tmp_path: Path
) -> None:
    whole = write_whole(tmp_path / "whole.gguf")
    assert hashlib.sha256(whole.read_bytes()).hexdigest() == WHOLE  # what gguf-split was given
    found = hashlib.sha256()
    parts = container.split(files._read(whole), limits)
    for number, part in enumerate(parts):
        container.write(tmp_path / str(number), part, lambda *_: None)
        found.update((tmp_path / str(number)).read_bytes())
    assert [len(part.infos()) for part in parts] == counts
    assert found.hexdigest() == digest


def test_a_tensor_beyond_the_limit_has_a_file_of_its_own() -> None:
    assert [list(part) for part in grouped([5000, 10, 10, 5000, 10], SplitLimits(nbytes=100))] == [
        [0], [1, 2], [3], [4]
    ]  # fmt: skip


def whole_and_split(tmp_path: Path, **choices: Any) -> tuple[Path, list[Path]]:
    source = models.checkpoint(tmp_path / "model", rope_scaling=LLAMA3)
    models.export(source, tmp_path / "whole.gguf")
    result = models.export(source, tmp_path / "x.gguf", **choices)
    parts = sorted(tmp_path.glob("x-*.gguf"))
    assert result.output == parts[0]
    assert result.nbytes == sum(path.stat().st_size for path in parts)
    assert f"the model is split into {len(parts)} files; load this one, the first" in result.notes
    return tmp_path / "whole.gguf", parts


# With 1, 7 and 21 the last of the 22 tensors, the divisors of the frequencies, has a file to itself.
@pytest.mark.parametrize(
    "choices", [{"split_max_tensors": count} for count in (1, 7, 8, 21)] + [{"split_max_size": "20K"}]
)
def test_the_files_make_the_same_model(choices: dict[str, Any], tmp_path: Path) -> None:
    whole, parts = whole_and_split(tmp_path, **choices)
    count, expected = len(parts), gguf_files.tensors(whole)
    assert [path.name for path in parts] == [f"x-{n:05}-of-{count:05}.gguf" for n in range(1, count + 1)]
    found: dict[str, Any] = {}
    for number, path in enumerate(parts):
        tensors = gguf_files.tensors(path)
        assert tensors
        found |= tensors
        stated = gguf_files.keys(path)
        assert tuple(stated.pop(key) for key in SPLIT) == (number, count, len(expected))
        assert stated == (gguf_files.keys(whole) if number == 0 else {})
        fields = gguf.GGUFReader(path).fields
        types = [fields[key].types for key in SPLIT]
        kinds = gguf.GGUFValueType
        assert types == [[kinds.UINT16], [kinds.UINT16], [kinds.INT32]]
    assert list(found) == list(expected)
    assert found == expected
    assert [len(header.tensors) for header in read_shards(parts[-1])] == [
        len(gguf_files.tensors(path)) for path in parts
    ]


def test_the_record_stands_beside_the_first(tmp_path: Path) -> None:
    _, parts = whole_and_split(tmp_path, split_max_tensors=8)
    made = provenance.record(parts[0])
    assert made is not None
    assert made.kind == "export"
    assert len(list(tmp_path.glob("*.json"))) == 2  # this one, and that of the whole


@pytest.mark.parametrize("choices", [{"split_max_tensors": 7}, {"split_max_tensors": 8}, {"split_max_size": "20K"}])
def test_llama_cpp_loads_the_parts_as_the_whole(choices: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    from ropetool.verification.runners.llama_runner import LlamaRunner

    whole, parts = whole_and_split(tmp_path, **choices)
    ids = [list(range(40))]
    losses = [LlamaRunner(path).score(ids, 39).losses for path in (whole, parts[0])]
    np.testing.assert_array_equal(losses[0], losses[1])
    assert np.isfinite(losses[0]).all()


def test_one_file_that_holds_all_stays_one(tmp_path: Path) -> None:
    source = models.checkpoint(tmp_path / "model")
    models.export(source, tmp_path / "x.gguf")
    models.export(source, tmp_path / "y.gguf", split_max_size="1G")
    assert (tmp_path / "x.gguf").read_bytes() == (tmp_path / "y.gguf").read_bytes()


@pytest.mark.parametrize("text", ["", "G", "2T", "0", "0M", "-1G", "1.5G", "2 G", "G2", "2GB", "nan"])
def test_a_size_that_is_none(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a size: a whole number above 0 with K, M or G") as caught:
        limits_of(text, None)
    assert caught.value.where == "--split-max-size"


def test_sizes_are_decimal_as_gguf_split_has_them() -> None:
    assert [limits_of(text, None).nbytes for text in ("3K", "500M", "2G", "2g", "70")] == [
        3_000, 500_000_000, 2_000_000_000, 2_000_000_000, 70
    ]  # fmt: skip
    assert limits_of("1M", 5) == SplitLimits(10**6, 5)


@pytest.mark.parametrize("number", [0, -3])
def test_a_number_of_tensors_that_is_none(number: int, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"{number} is not a number of tensors"):
        models.export(models.checkpoint(tmp_path / "model"), split_max_tensors=number)


@pytest.mark.parametrize("count", [8, 5], ids=["the same number", "another number"])
def test_a_part_that_exists_is_kept_and_no_other_appears(count: int, tmp_path: Path) -> None:
    source = models.checkpoint(tmp_path / "model")
    models.export(source, tmp_path / "x.gguf", split_max_tensors=8)
    parts = sorted(tmp_path.glob("x-*.gguf"))
    parts[1].write_bytes(b"precious")
    for path in (parts[0], *parts[2:]):
        path.unlink()
    with pytest.raises(OutputError, match="exists already") as caught:
        models.export(source, tmp_path / "x.gguf", split_max_tensors=count)
    assert caught.value.where == str(parts[1])
    assert [*tmp_path.glob("x-*.gguf"), *tmp_path.glob(".x*")] == [parts[1]]
    assert parts[1].read_bytes() == b"precious"


def test_parts_are_asked_for_before_the_tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = models.checkpoint(tmp_path / "model")
    models.export(source, tmp_path / "x.gguf", split_max_tensors=8)
    monkeypatch.delattr("ropetool.gguf_model.contents.tokenizer_values")
    with pytest.raises(OutputError, match="exists already, as a part of a split model with this name"):
        prepare(source, tmp_path / "x.gguf", ExportOptions(split_max_tensors=5))


def test_a_file_that_a_split_would_not_touch_is_no_obstacle(tmp_path: Path) -> None:
    source = models.checkpoint(tmp_path / "model")
    (tmp_path / "y.gguf").write_bytes(b"precious")
    (tmp_path / "y-00001-of-3.gguf").write_bytes(b"no part")
    assert prepare(source, tmp_path / "y.gguf", ExportOptions(check=False, split_max_tensors=8)).target.name == "y.gguf"
    with pytest.raises(OutputError, match="exists already"):
        prepare(source, tmp_path / "y.gguf", ExportOptions(check=False))


@pytest.mark.parametrize("force", [False, True])
def test_a_split_is_refused_where_it_can_never_be(force: bool, tmp_path: Path) -> None:
    source = models.checkpoint(tmp_path / "model")
    (tmp_path / "x-00002-of-00007.gguf").mkdir()
    for target, text in (
        ("absent/x.gguf", "does not exist"),
        ("model/x.gguf", "is inside"),
        ("x.gguf", "exists already"),
    ):
        with pytest.raises(OutputError, match=text):
            files.check(tmp_path / target, source, SplitLimits(tensors=8), force=force)


def test_a_split_leaves_another_file_and_parts_of_another_number(tmp_path: Path) -> None:
    source = models.checkpoint(tmp_path / "model")
    (tmp_path / "x.gguf").write_bytes(b"precious")
    first = models.export(source, tmp_path / "x.gguf", split_max_tensors=8)
    second = models.export(source, tmp_path / "x.gguf", split_max_tensors=11, force=True)
    assert (tmp_path / "x.gguf").read_bytes() == b"precious"
    assert sorted(path.name for path in tmp_path.glob("x-*.gguf")) == [
        "x-00001-of-00002.gguf", "x-00001-of-00003.gguf", "x-00002-of-00002.gguf", "x-00002-of-00003.gguf",
        "x-00003-of-00003.gguf",
    ]  # fmt: skip
    said = "the folder still contains 3 parts of an older split, the first x-00001-of-00003.gguf; delete them if unused"
    assert [said in result.notes for result in (first, second)] == [False, True]


def test_an_interruption_leaves_no_part(tmp_path: Path) -> None:
    source = models.checkpoint(tmp_path / "model")

    def stop(tensor: str, done: int, total: int) -> None:
        if tensor == "blk.1.ffn_down.weight":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        models.export(source, tmp_path / "x.gguf", split_max_tensors=8, progress=stop)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_what_a_killed_export_left_is_settled_before_anything_is_refused(tmp_path: Path) -> None:
    source = models.checkpoint(tmp_path / "model")
    parts = [tmp_path / f"x-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
    left = tmp_path / ".x.gguf.ropetool-abcdef"
    (left / "new").mkdir(parents=True)
    (left / "lock").touch()
    parts[1].write_bytes(b"of the killed one")
    (left / "new" / parts[0].name).write_bytes(b"was to be put last")
    order = {parts[1].name: file_key(parts[1]), parts[0].name: file_key(left / "new" / parts[0].name)}
    (left / "order.json").write_text(json.dumps({"put": order, "earlier": []}))
    result = models.export(source, tmp_path / "x.gguf", split_max_tensors=8)
    assert f"removed {left}, which an interrupted command had left" in result.notes
    assert parts[1].read_bytes()[:4] == b"GGUF"
    assert not list(tmp_path.glob(".x*"))

"""ropetool gguf split and merge: gguf-split's files byte for byte, and sets whose files do not belong together."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import gguf
import gguf_files
import numpy as np
import pytest
from running import run

from ropetool.files.gguf import Patch, Value, ValueType, read_header, read_shards, write_patched

sys.path.insert(0, str(Path(__file__).parents[1] / "exporting"))
from test_split import BY_GGUF_SPLIT, WHOLE, write_whole

# What `gguf-split --merge` of the same llama.cpp makes of its own parts of that file, whatever their number: all keys, and
# those of the split behind them.
MERGED = "9bd218e7a2fc6e3df0c3bc7625e345b782a74d365b57080862042523bd0ff322"


def digest(*paths: Path) -> str:
    found = hashlib.sha256()
    for path in paths:
        found.update(path.read_bytes())
    return found.hexdigest()


def parts(folder: Path, name: str = "part") -> list[Path]:
    return sorted(folder.glob(f"{name}-*-of-*.gguf"))


@pytest.fixture
def three(tmp_path: Path) -> list[Path]:
    """A tiny model of twelve tensors in three files."""
    gguf_files.model(tmp_path / "whole.gguf")
    done = run("gguf", "split", str(tmp_path / "whole.gguf"), "--max-tensors", "5", "-o", str(tmp_path / "part.gguf"))
    assert done.code == 0
    return parts(tmp_path)


@pytest.mark.parametrize("number", range(len(BY_GGUF_SPLIT)))
def test_parts_and_the_merged_file_are_those_of_gguf_split(number: int, tmp_path: Path) -> None:
    limits, counts, expected = BY_GGUF_SPLIT[number]
    whole = write_whole(tmp_path / "whole.gguf")
    assert digest(whole) == WHOLE
    options = ["--max-tensors", str(limits.tensors)] if limits.tensors else ["--max-size", f"{limits.nbytes // 10**6}M"]
    assert run("gguf", "split", str(whole), *options, "-o", str(tmp_path / "part.gguf")).code == 0
    made = parts(tmp_path)
    assert [len(header.tensors) for header in read_shards(made[0])] == counts
    assert digest(*made) == expected
    merged, again = tmp_path / "merged.gguf", tmp_path / "again.gguf"
    assert run("gguf", "merge", str(made[-1]), "-o", str(merged)).code == 0
    assert digest(merged) == MERGED
    assert run("gguf", "split", str(merged), *options, "-o", str(again)).code == 0
    assert digest(*parts(tmp_path, "again")) == expected


def test_a_set_is_split_anew(three: list[Path], tmp_path: Path) -> None:
    assert run("gguf", "split", str(three[1]), "--max-tensors", "7", "-o", str(tmp_path / "two.gguf")).code == 0
    assert (
        run("gguf", "split", str(tmp_path / "whole.gguf"), "--max-tensors", "7", "-o", str(tmp_path / "new.gguf")).code
        == 0
    )
    assert digest(*parts(tmp_path, "two")) == digest(*parts(tmp_path, "new"))


def test_an_alignment_of_its_own_holds_in_the_first_file(tmp_path: Path) -> None:
    tensors = {f"t{number}": np.arange(7 + number, dtype=np.float32) for number in range(4)}
    gguf_files.write(tmp_path / "whole.gguf", "llama", {"general.alignment": 128}, tensors)
    assert (
        run("gguf", "split", str(tmp_path / "whole.gguf"), "--max-tensors", "2", "-o", str(tmp_path / "part.gguf")).code
        == 0
    )
    assert run("gguf", "merge", str(parts(tmp_path)[0]), "-o", str(tmp_path / "one.gguf")).code == 0
    for paths in (parts(tmp_path), [tmp_path / "one.gguf"]):
        found = [tensor for path in paths for tensor in gguf.GGUFReader(path).tensors]
        assert [tensor.name for tensor in found] == [f"t{number}" for number in range(4)]
        for number, tensor in enumerate(found):
            np.testing.assert_array_equal(tensor.data, np.arange(7 + number, dtype=np.float32))


def test_bytes_behind_the_last_tensor_are_left_out_and_told(tmp_path: Path) -> None:
    whole = gguf_files.model(tmp_path / "whole.gguf")
    with whole.open("ab") as file:
        file.write(b"x" * 100)
    done = run("gguf", "split", str(whole), "--max-tensors", "9", "-o", str(tmp_path / "part.gguf"))
    assert (done.code, done.err) == (
        0,
        "Note: 100 bytes after the last tensor of whole.gguf were not copied; no runtime reads them\n",
    )


def test_the_result_as_text_and_json(tmp_path: Path) -> None:
    whole = gguf_files.model(tmp_path / "whole.gguf")
    done = run("gguf", "split", str(whole), "--max-tensors", "9", "-o", str(tmp_path / "part.gguf"))
    nbytes = sum(path.stat().st_size for path in parts(tmp_path))
    assert done.out == (
        f"output    {tmp_path}/part-00001-of-00002.gguf to part-00002-of-00002.gguf\n"
        f"contents  12 tensors, {nbytes:,} bytes, in 2 files\n"
    )
    found = json.loads(run("gguf", "merge", str(parts(tmp_path)[0]), "-o", str(tmp_path / "one.gguf"), "--json").out)
    assert found == {
        "schema": 1, "output": [str(tmp_path / "one.gguf")], "tensors": 12,
        "bytes": (tmp_path / "one.gguf").stat().st_size, "notes": [],
    }  # fmt: skip


# --- sets that are none


def refused(path: Path) -> str:
    """Return what `merge` says against a set, which must leave nothing behind."""
    before = sorted(path.parent.iterdir())
    done = run("gguf", "merge", str(path), "-o", str(path.parent / "merged.gguf"))
    assert (done.code, done.out) == (1, "")
    assert sorted(path.parent.iterdir()) == before
    return done.err.splitlines()[0]


def test_a_missing_file_is_named(three: list[Path]) -> None:
    three[1].unlink()
    assert refused(three[2]) == f"Error: {three[2]}: the shard part-00002-of-00003.gguf is missing from its folder"


def test_files_that_changed_their_names_are_named(three: list[Path]) -> None:
    other = three[1].with_name("other")
    three[1].rename(other)
    three[2].rename(three[1])
    other.rename(three[2])
    assert refused(three[0]) == (
        f"Error: {three[1]}: is shard 3 of 3 by its keys, so llama.cpp requires the name part-00003-of-00003.gguf"
    )


def test_a_file_of_another_model_is_named(three: list[Path], tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    gguf_files.model(foreign / "whole.gguf", "qwen2")
    run("gguf", "split", str(foreign / "whole.gguf"), "--max-tensors", "6", "-o", str(foreign / "part.gguf"))
    (foreign / "part-00002-of-00003.gguf").replace(three[1])
    assert refused(three[0]) == (
        f"Error: {three[0]}: split.tensors.count is 12, but its 3 shards have 13; by its own count, part-00002-of-00003.gguf "
        "belongs to a different model"
    )
    (foreign / "part-00001-of-00003.gguf").replace(three[1])
    assert "part-00002-of-00003.gguf: is shard 1 of 3 by its keys" in refused(three[0])


def test_a_file_with_other_tensors_is_seen_by_their_number(three: list[Path]) -> None:
    plain = read_header(three[2])
    made = three[2].with_name("made")
    write_patched(plain, Patch(tensors={"extra": np.ones(3, np.float32)}), made)
    made.replace(three[2])
    assert refused(three[0]) == f"Error: {three[0]}: split.tensors.count is 12, but its 3 shards have 13"


def test_what_needs_no_splitting_or_merging(tmp_path: Path) -> None:
    whole = gguf_files.model(tmp_path / "whole.gguf")
    assert refused(whole) == f"Error: {whole}: is a single file already"
    done = run("gguf", "split", str(whole), "--max-size", "2G", "-o", str(tmp_path / "part.gguf"))
    assert done.err.startswith(f"Error: {whole}: its 12 tensors of 370,176 bytes fit into one file\n")
    assert run("gguf", "split", str(whole), "-o", str(tmp_path / "part.gguf")).code == 2
    done = run("gguf", "split", str(whole), "--max-size", "2T", "-o", str(tmp_path / "part.gguf"))
    assert done.err.startswith("Error: --max-size: '2T' is not a size")
    assert [path.name for path in tmp_path.iterdir()] == ["whole.gguf"]


def test_an_output_that_exists_is_refused_and_a_listed_one_replaced(three: list[Path], tmp_path: Path) -> None:
    arguments = ["gguf", "split", str(tmp_path / "whole.gguf"), "--max-tensors", "5", "-o", str(tmp_path / "part.gguf")]
    before = digest(*three)
    assert run(*arguments).code == 1
    assert run(*arguments, "--force").code == 0
    assert digest(*three) == before
    three[1].write_bytes(b"mine")
    assert run(*arguments, "--force").code == 1
    assert three[1].read_bytes() == b"mine"


def test_a_key_of_a_merged_model_that_ties_nothing_can_go(three: list[Path], tmp_path: Path) -> None:
    one = tmp_path / "one.gguf"
    run("gguf", "merge", str(three[0]), "-o", str(one))
    assert read_header(one).values["split.count"] == Value.of(ValueType.U16, 0)
    assert run("gguf", "unset", str(one), "split.no", "-o", str(tmp_path / "plain.gguf")).code == 0
    done = run("gguf", "set", str(one), "split.count", "2", "-o", str(tmp_path / "bad.gguf"))
    assert "after this edit, split.count announces 2 files, but this model is a single file" in done.err


def test_llama_cpp_loads_parts_and_the_merged_file(three: list[Path], tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    from ropetool.verification.runners.llama_runner import LlamaRunner

    one = tmp_path / "one.gguf"
    run("gguf", "merge", str(three[0]), "-o", str(one))
    losses = [
        LlamaRunner(path).score([list(range(40))], 39).losses for path in (tmp_path / "whole.gguf", three[0], one)
    ]
    np.testing.assert_array_equal(losses[0], losses[1])
    np.testing.assert_array_equal(losses[0], losses[2])

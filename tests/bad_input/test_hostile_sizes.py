"""Weight files and indexes that list more than any model has: refused within the memory and time of what is read."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from running import bounded

from ropetool.files.hf.directory import MAX_INDEX
from ropetool.files.hf.safetensors import MAX_HEADER, MAX_TENSORS

EXTEND = ("--method", "yarn", "--factor", "4")
INDEX = "model.safetensors.index.json"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
BUSY = 8  # seconds: two where nothing else runs on a fast machine
TOO_MANY = "with this file, the checkpoint has more than 250,000 tensors, the limit"


def header(path: Path, entries: Iterable[str], nbytes: int) -> None:
    """Write a weight file with this header; its data is a hole."""
    text = ("{" + ",".join(entries) + "}").encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + nbytes)


def entries(start: int, count: int, prefix: str = "model.layers.60.mlp.experts.x") -> list[str]:
    """Return lines of tensors of one byte each, every one of another shape as far as numbers go."""
    return [f'"{prefix}.{start + n}":{{"dtype":"U8","shape":[1],"data_offsets":[{n},{n + 1}]}}' for n in range(count)]


def one_header(model: Path) -> None:
    (model / INDEX).unlink()
    (model / SHARDS[1]).unlink()
    header(model / SHARDS[0], entries(0, MAX_TENSORS + 1), MAX_TENSORS + 1)


def many_shards(model: Path) -> None:
    (model / INDEX).unlink()
    for path in model.glob("*.safetensors"):
        path.unlink()
    for n in range(4):
        header(model / f"{n}.safetensors", entries(n * 100_000, 100_000), 100_000)


def short_names(model: Path) -> None:
    """As many as fit into a header, each with its own integers and a shape that no other has."""
    (model / INDEX).unlink()
    rows = (f'"{n:x}":{{"dtype":"U8","shape":[0,{2**40 + n}],"data_offsets":[0,0]}}' for n in range(MAX_HEADER // 75))
    header(model / SHARDS[0], rows, 0)


def spaced(model: Path) -> None:
    """Written so that nothing of it is read the fast way."""
    (model / INDEX).unlink()
    rows = (
        f' "{n:x}" : {{ "\\u0064type" : "U8" , "shape" : [ 0 ] , "data_offsets" : [ 0 , 0 ] }} '
        for n in range(MAX_HEADER // 100)
    )
    header(model / SHARDS[0], rows, 0)


def bytes_of_header(model: Path) -> None:
    header(model / SHARDS[0], entries(0, 1_100_000), 1_100_000)


def of_lists(model: Path) -> None:
    header(model / SHARDS[0], ['"a":[' + "[]," * 12_000_000 + "1]"], 0)


def long_name(model: Path) -> None:
    header(model / SHARDS[0], entries(0, 1, "layers.1." * 10_000), 1)


def index(model: Path, lines: Iterable[str]) -> None:
    (model / INDEX).write_text('{"weight_map": {' + ",".join(lines) + "}}")


def long_index(model: Path) -> None:
    index(model, (f'"model.layers.60.mlp.experts.{n}.down_proj.weight": "{SHARDS[0]}"' for n in range(MAX_TENSORS + 1)))


def index_of_short_names(model: Path) -> None:
    index(model, (f'"{n:x}":"{n:x}.safetensors"' for n in range(MAX_INDEX // 35)))


def index_of_emoji(model: Path) -> None:
    index(model, (f'"{n:x}\U0001f600":"{SHARDS[0]}"' for n in range(MAX_INDEX // 60)))


def index_with_much_beside(model: Path) -> None:
    rest = ",".join(f'"{n:x}":"{SHARDS[0]}"' for n in range(40_000))
    index(model, [f'"{n:x}": "{SHARDS[0]}"' for n in range(1000)])
    text = (model / INDEX).read_text()[:-1]
    (model / INDEX).write_text(text + "".join(f',"x{n}":{{{rest}}}' for n in range(20)) + "}")


def bytes_of_index(model: Path) -> None:
    with (model / INDEX).open("wb") as file:
        file.truncate(1 << 40)


def endless_string(model: Path) -> None:
    (model / INDEX).write_text('{"weight_map": {"' + "x" * 40_000_000)


HOSTILE = {
    "a header of too many tensors": (one_header, TOO_MANY),
    "shards of too many tensors together": (many_shards, TOO_MANY),
    "a header of short names": (short_names, TOO_MANY),
    "a header that is spaced out": (spaced, TOO_MANY),
    "a header of many bytes": (bytes_of_header, "declares a header of"),
    "a header of lists": (of_lists, "has an entry of more than 2,097,152 characters"),
    "a long name": (long_name, "has a name of 90,002 characters; ropetool reads at most 1,024"),
    "an index of too many tensors": (long_index, "lists more than 250,000 tensors"),
    "an index of short names": (index_of_short_names, "lists more than 250,000 tensors"),
    "an index of letters that take four bytes": (index_of_emoji, "lists more than 250,000 tensors"),
    "an index with much beside": (index_with_much_beside, "lists tensor '"),
    "an index of many bytes": (bytes_of_index, "is 1,099,511,627,776 bytes long; ropetool reads at most 48,000,000"),
    "an index that is one string": (endless_string, "has an entry of more than 2,097,152 characters, or a broken one"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_more_than_any_model_has_is_refused_at_little_cost(case: str, model: Path) -> None:
    make, message = HOSTILE[case]
    make(model)
    code, errors = bounded("extend", model, *EXTEND, "-o", model.parent / "out", seconds=BUSY)
    assert (code, errors.count("Error: "), "Traceback" in errors) == (1, 1, False)
    assert message in errors
    assert not (model.parent / "out").exists()


def test_the_largest_model_known_is_below_the_limits() -> None:
    """Kimi K2 Thinking: 60 layers of 384 experts, three matrices each, three tensors a matrix, as compressed-tensors has them."""
    experts = 60 * 384 * 3 * 3
    assert experts == 207_360
    assert 1.2 * experts < MAX_TENSORS
    longest = (
        '"model.layers.60.mlp.experts.383.down_proj.weight_packed":{"dtype":"I32","shape":[7168,256],"data_offsets":'
    )
    assert (len(longest) + len("[4294967296,4294967296]},")) * MAX_TENSORS < MAX_HEADER
    line = f'    "model.layers.60.mlp.experts.383.down_proj.weight_packed": "{"model-00062-of-000062.safetensors"}",\n'
    assert len(line) * MAX_TENSORS < MAX_INDEX


def field(number: int, content: bytes) -> bytes:
    """Return a field of a protobuf message of fewer than 128 bytes."""
    return bytes([number << 3 | 2, len(content)]) + content


MODEL_FILES = {
    "empty pieces": (b"\x0a\x00" * 2**25, "it has more than 524,288 pieces"),
    "fields of no use": (b"\x7a\x00" * 2**25, "it has more than 1,048,576 fields"),
    "fields of the trainer": (field(2, b"\x78\x01" * 60) * 2**19, "it has more than 1,048,576 fields"),
    "fields of a piece": (field(1, b"\x0a\x00" * 60) * 2**19, "it has more than 1,048,576 fields"),
    "pieces": (field(1, b"\x0a\x04abcd\x15\x00\x00\x00\x00\x18\x01") * 2**21, "it has more than 524,288 pieces"),
    "characters": (
        b"\x0a\x00\x1a\x85\x80\x80\x10\x12\x80\x80\x80\x10" + bytes(2**25),
        "its charsmap has 33,554,432 bytes",
    ),
}
READ_MODEL_FILE = (
    "import pathlib; from ropetool.gguf_model.tokenizer import model_file as model; "
    "model.read_model_file(pathlib.Path(sys.argv[1]))"
)


@pytest.mark.parametrize("case", MODEL_FILES)
def test_a_tokenizer_model_of_many_fields_is_refused_at_little_cost(case: str, tmp_path: Path) -> None:
    content, message = MODEL_FILES[case]
    (tmp_path / "tokenizer.model").write_bytes(content)
    code, errors = bounded(tmp_path / "tokenizer.model", program=READ_MODEL_FILE, seconds=BUSY)
    assert code == 1
    assert message in errors.splitlines()[-1]

"""Files that break the format: each way has its own words, none takes memory, nothing else than our errors comes out."""

from __future__ import annotations

import random
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from gguf_files import ARR, BOOL, F32, I32, STR, U8, U32, array, kv, mixed, packed, string, tensor, u32, vocabulary

from ropetool.errors import CorruptFile
from ropetool.files.gguf import Patch, read_header, write_patched

ONE = [tensor("a", [8])]
TWO = [tensor("a", [8]), tensor("b", [8], offset=32)]
HUGE = [2**40, 2**50, 2**61, 2**62, 2**63 - 1]

HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "the file is empty"),
    "magic": (packed(magic=b"GGJT"), r"the header at byte 0 starts with b'GGJT'; a GGUF file starts with b'GGUF'"),
    "zip": (b"PK\x03\x04" + bytes(100), r"starts with b'PK"),
    "three bytes": (b"GGU", "the header at byte 0 is cut off: the file ends at byte 3"),
    "version 0": (packed(version=0), "has version 0; ropetool reads versions 2 and 3"),
    "version 1": (packed(version=1), "has version 1; ropetool reads versions 2 and 3"),
    "version 9": (packed(version=9), "has version 9; ropetool reads versions 2 and 3"),
    "big-endian": (b"GGUF" + struct.pack(">Iqq", 3, 0, 0), "is big-endian .* is 3 with the bytes swapped"),
    "negative keys": (packed(n_keys=-1), "declares -1 keys; ropetool reads 0 to 16384"),
    "negative tensors": (packed(n_tensors=-(2**63)), "declares -9223372036854775808 tensors; ropetool reads 0 to 65536"),
    "key announced": (packed(n_keys=1), "key number 0 at byte 24 is cut off: the file ends at byte 24"),
    "tensor announced": (packed(ONE[:0], n_tensors=1), "tensor number 0 at byte 24 is cut off"),
    "empty key": (packed([u32("", 1)]), "key number 0 at byte 24 has an empty name"),
    "same key": (packed([u32("ab", 1), u32("x", 1), u32("ab", 1)]), "key 'ab' at byte 59 appears a second time"),
    "long key": (packed([u32("k" * 65536, 1)]), "key number 0 at byte 24 has a name of 65536 bytes; .* at most 65535"),
    "value type 13": (packed([kv("k", 13, b"")]), "key 'k' at byte 24 has type 13; types are 0 to 12"),
    "value type -1": (packed([kv("k", -1, b"")]), "key 'k' at byte 24 has type -1"),
    "element type": (packed([array("k", 99, 1)]), "key 'k' at byte 24 has elements of type 99"),
    "nested": (packed([array("k", ARR, 1, struct.pack("<iQ", U8, 0))]), "key 'k' at byte 24 is an array of arrays"),
    "string": (packed([kv("k", STR, struct.pack("<Q", 9) + b"12345678")]), "has a string of 9 bytes, .* ends at byte 53"),
    "array": (packed([array("k", I32, 3, bytes(11))]), "has an array of 3 i32, but the file ends"),
    "strings": (
        packed([array("k", STR, 3, string("a") + string("b") + b"\0")]),
        "has 3 strings, at most 2 complete",
    ),
    "last string": (packed([array("k", STR, 1, struct.pack("<Q", 1))]), "has 1 strings, at most 1 complete"),
    "alignment type": (packed([kv("general.alignment", I32, bytes(4))]), "has type i32; it must be u32"),
    "alignment array": (packed([array("general.alignment", U32, 0)]), "has type arr of u32; it must be u32"),
    "alignment 0": (packed([u32("general.alignment", 0)]), "'general.alignment', .* is 0; an alignment is a power of two"),
    "alignment 48": (packed([u32("general.alignment", 48)]), "is 48; an alignment is a power of two"),
    "name of 64": (packed([], [tensor("n" * 64, [8])]), "tensor number 0 at byte 24 has a name of 64 bytes; .* at most 63"),
    "same name": (packed([], [*ONE, tensor("a", [8], offset=32)], bytes(64)), "tensor 'a' at byte 57 appears a second time"),
    "5 dimensions": (packed([], [tensor("a", [1] * 5)]), "tensor 'a' at byte 24 has 5 dimensions; at most 4"),
    "many dimensions": (packed([], [tensor("a", [1], n_dims=2**32 - 1)]), "has 4294967295 dimensions"),
    "negative length": (packed([], [tensor("a", [8, -1])]), r"has shape \[8, -1\]; each dimension must be at least 0"),
    "too many elements": (packed([], [tensor("a", [2**32, 2**31])]), r"the product below 2\^63"),
    "tensor type": (packed([], [tensor("a", [8], type_=4242)]), "has the unknown tensor type 4242"),
    "removed type": (packed([], [tensor("a", [32], type_=31)]), "has the unknown tensor type 31"),
    "negative type": (packed([], [tensor("a", [32], type_=-1)]), "has the unknown tensor type -1"),
    "rows": (packed([], [tensor("a", [48], type_=8)]), "has rows of 48 elements; Q8_0 stores blocks of 32"),
    "overlap": (
        packed([], [ONE[0], tensor("b", [8], offset=0)], bytes(64)),
        "tensor 'b' at byte 57 overlaps the tensor before it: its offset is 0 instead of 32",
    ),
    "gap": (packed([], [ONE[0], tensor("b", [8], offset=64)], bytes(99)), "leaves a gap .* offset is 64 instead of 32"),
    "late start": (packed([], [tensor("b", [8], offset=32)], bytes(99)), "leaves a gap .* offset is 32 instead of 0"),
    "unaligned": (packed([], [ONE[0], tensor("b", [8], offset=33)], bytes(99)), "leaves a gap .* offset is 33"),
    "huge offset": (packed([], [tensor("b", [8], offset=2**64 - 32)], bytes(99)), "offset is 18446744073709551584"),
    "data cut": (packed([], TWO, bytes(63)), "the data of tensor 'b' ends at byte 160, but the file ends at byte 159"),
    "no data": (packed([], ONE)[:-1], "the data of tensor 'a' ends at byte 96, but the file ends at byte 63"),
}  # fmt: skip
for size in HUGE:
    HOSTILE |= {
        f"{size} keys": (packed(n_keys=size), f"declares {size} keys"),
        f"{size} tensors": (packed(n_tensors=size), f"declares {size} tensors"),
        f"key of {size}": (packed([struct.pack("<Q", size)]), f"key number 0 .* name of {size} bytes, but the file ends"),
        f"string of {size}": (packed([kv("k", STR, struct.pack("<Q", size))]), f"'k' .* string of {size} bytes, but the file ends"),
        f"{size} bytes": (packed([array("k", U8, size)]), f"'k' .* array of {size} u8, but the file ends"),
        f"{size} booleans": (packed([array("k", BOOL, size)]), f"array of {size} bool, but the file ends"),
        f"{size} floats": (packed([array("k", F32, size)]), f"array of {size} f32, but the file ends"),
        f"{size} strings": (packed([array("k", STR, size)]), f"{size} strings, at most 0 complete"),
        f"a string of {size}": (
            packed([array("k", STR, 2, string("a") + struct.pack("<Q", size))]),
            "2 strings, at most 2 complete",
        ),
        f"two strings of {size}": (
            packed([array("k", STR, 2, 2 * struct.pack("<Q", size))]),
            "2 strings, at most 1 complete",
        ),
        f"tensor name of {size}": (
            packed([], [struct.pack("<Q", size)], n_tensors=1),
            f"tensor number 0 .* name of {size} bytes, but the file ends",
        ),
        f"{size} elements": (
            packed([], [tensor("a", [size])]),
            f"the data of tensor 'a' ends at byte {4 * size + 64}, but the file ends at byte 64",
        ),
    }  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_each_fault_has_its_own_words(tmp_path, case):
    content, message = HOSTILE[case]
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    with pytest.raises(CorruptFile, match=message) as caught:
        read_header(path)
    assert caught.value.where == str(path)


def test_the_same_files_without_the_fault_are_read(tmp_path):
    path = tmp_path / "m.gguf"
    for content in (
        packed([u32("ab", 1), u32("x", 1), u32("k" * 65535, 1), u32("general.alignment", 64)]),
        packed([array("k", I32, 3, bytes(12)), array("s", STR, 2, string("a") + string("")), array("e", STR, 0)]),
        packed([], TWO, bytes(64)),
        packed([], [tensor("n" * 63, [64, 1, 2, 1], type_=8)], bytes(136)),
    ):
        path.write_bytes(content)
        read_header(path)


@pytest.mark.parametrize("make", [mixed, vocabulary])
def test_a_file_cut_anywhere_before_the_end_of_its_data_is_refused(tmp_path, make):
    whole = make(tmp_path / "whole.gguf")
    raw = whole.read_bytes()
    header = read_header(whole)
    end = header.data_start + header.tensors[-1].end if header.tensors else header.header_end
    boundaries = {0, 3, 4, 8, 16, 24, header.header_end, header.data_start}
    boundaries |= {header.data_start + at for info in header.tensors for at in (info.offset, info.end)}
    near = {cut + step for cut in boundaries for step in (-1, 0, 1)}
    spread = random.Random(1).sample(range(end), 500)
    path = tmp_path / "cut.gguf"
    for cut in sorted({cut for cut in near | set(spread) if 0 <= cut < end}):
        path.write_bytes(raw[:cut])
        with pytest.raises(CorruptFile):
            read_header(path)
    path.write_bytes(raw[:end])
    assert read_header(path).tensors == header.tensors


def test_mutated_files_are_read_or_refused_and_what_is_read_is_written_back_whole(tmp_path):
    rng = random.Random(2)
    originals = [
        packed(
            [u32("general.alignment", 32), kv("llama.s", STR, string("yarn")), array("k", STR, 3, 3 * string("abc")),
             array("i", I32, 4, bytes(16)), kv("f", F32, bytes(4))], TWO, bytes(64)
        ),
        vocabulary(tmp_path / "v.gguf", tokens=20).read_bytes(),
    ]  # fmt: skip
    path, copy = tmp_path / "m.gguf", tmp_path / "copy.gguf"
    outcomes = {"read": 0, "refused": 0}
    for _ in range(4000):
        raw = bytearray(rng.choice(originals))
        for _ in range(rng.choice([1, 1, 1, 2, 8])):
            raw[rng.randrange(len(raw))] = rng.choice([0, 1, 0xFF, 0x80, rng.randrange(256)])
        path.unlink(missing_ok=True)
        path.write_bytes(raw)
        try:
            header = read_header(path)
            for value in header.values.values():
                value.decode()
        except CorruptFile:
            outcomes["refused"] += 1
            continue
        outcomes["read"] += 1
        write_patched(header, Patch(), copy)
        assert copy.read_bytes() == raw
        copy.unlink()
    assert min(outcomes.values()) > 500, outcomes


# --- memory: sparse files of gigabytes, read one after the other in a fresh process


def sparse(path: Path, head: bytes, size: int) -> None:
    with path.open("wb") as file:
        file.write(head)
        file.truncate(size)


def write_costly_files(folder: Path) -> None:
    """Write files that claim much and are large enough to hold it."""
    gigabytes = 9 * 2**30
    sparse(folder / "bytes", packed([array("k", U8, 2**33)]), gigabytes)
    sparse(folder / "strings", packed([array("k", STR, 2**30)]), gigabytes)
    sparse(folder / "near-strings", packed([array("k", STR, 2**22)]), gigabytes)
    sparse(folder / "text", packed([kv("k", STR, struct.pack("<Q", 2**32))]), gigabytes)
    sparse(folder / "key", packed([struct.pack("<Q", 2**32)]), gigabytes)
    sparse(folder / "tensor", packed([], [tensor("a", [2**31])]), gigabytes)
    sparse(folder / "alignment", packed([u32("general.alignment", 2**31)], ONE), gigabytes)
    keys = [u32(f"key{i}", i) for i in range(2**14)]
    tensors = [tensor(f"tensor{i}", [1], offset=32 * i) for i in range(2**16)]
    (folder / "many").write_bytes(packed(keys, tensors, bytes(32 * 2**16)))


READ_ALL = """
import pathlib, sys
from ropetool.errors import CorruptFile
from ropetool.files.gguf import read_header

for path in sorted(pathlib.Path(sys.argv[1]).iterdir()):
    try:
        read_header(path)
        print(path.name, "read")
    except CorruptFile as error:
        print(path.name, error.message)
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of memory is read from /proc")
def test_no_header_takes_200_mb(tmp_path):
    write_costly_files(tmp_path)
    done = subprocess.run([sys.executable, "-c", READ_ALL, str(tmp_path)], capture_output=True, text=True, check=True)
    *lines, peak = done.stdout.splitlines()
    said = dict(line.split(" ", 1) for line in lines)
    assert {name for name, what in said.items() if what == "read"} == {"alignment", "many", "near-strings", "tensor"}
    assert "does not end within 100663296 bytes" in said["bytes"]
    assert "does not end within 100663296 bytes" in said["strings"]
    assert "does not end within 100663296 bytes" in said["text"]
    assert "has a name of 4294967296 bytes; a key has at most 65535" in said["key"]
    assert int(peak) < 200 * 1024

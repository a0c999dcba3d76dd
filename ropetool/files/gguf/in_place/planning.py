"""The plan of an in-place edit: the way that writes the least, as steps.

A header can become longer than its space. llama.cpp requires the tensors directly after the header, in the order of its
table. So there are three ways:

- The header already has room: padding, or ropetool's filler key.
- A range is inserted.
- The first tensors move to the end of the file, and the header uses their space.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np

from ropetool import names
from ropetool.errors import ConfigError, PlanMismatch
from ropetool.files.gguf.codec import ARRAY_HEAD, Value, encode_text
from ropetool.files.gguf.entries import I32, TensorInfo, padded
from ropetool.files.gguf.header import MAX_HEADER_BYTES, GgufHeader, parse_header
from ropetool.files.gguf.journal import Copy, EditJournal, Insertion, Write
from ropetool.files.gguf.kinds import ValueType
from ropetool.files.gguf.patch import Patch, appended, overwritten, patched_values
from ropetool.files.gguf.writer import Span, encode_head, encode_info, lay_out

NOTHING, OVERWRITE, FILLER, INSERT, MOVE, COPY = "nothing", "overwrite", "filler", "insert", "move", "copy"

ROOM = 32 << 10  # bytes of an inserted range that stay free for later edits
MOST_MOVED = 64 << 20  # bytes of tensors; their space becomes filler, and every program reads the whole header
MOST_BEHIND = 64 << 20  # bytes after the header of a file without tensors, which are rewritten
_PAGE = 4 << 10  # bytes per comparison; a differing page is written
_KEY = len(encode_text(names.GGUF_FILLER)) + I32.size
_SHORTEST_ARRAY = _KEY + ARRAY_HEAD.size + 1  # bytes of a filler that is an array
_SCALAR_LENGTH = _KEY + 1

Read = Callable[[int, int], bytes]  # from a position and a number of bytes


class NoWay(Exception):
    """The edit does not fit in place. The message has the reason."""


@dataclass(frozen=True)
class _Layout:
    """The positions of header and data in the edited file.

    data_start: in bytes.
    infos: the tensor table.
    insertion: the inserted range, or None.
    behind: the size of the first tensors that move to the end, in bytes.
    """

    data_start: int
    infos: bytes
    insertion: Insertion | None = None
    behind: int = 0


def steps(
    header: GgufHeader, patch: Patch, read: Read, *, can_insert: bool, block: int = 4096, room: int = ROOM
) -> EditJournal:
    """Return the journal of the first way that fits. It does not have samples yet.

    can_insert: whether the file system inserts ranges.
    block: the size of its blocks, in bytes.
    room: the number of bytes to reserve for later edits, if a range is inserted.
    Raises: NoWay; ConfigError, PlanMismatch or UnsupportedDtype if the patch does not fit the file.
    """
    if names.GGUF_FILLER in patch.set or names.GGUF_FILLER in patch.remove:
        raise ConfigError(
            "is the space that ropetool reserves for edits in place, not a key of the model", where=names.GGUF_FILLER
        )
    values, header = patched_values(header, patch), _without_dropped(header, patch)
    over, new = overwritten(header, patch), appended(header, patch)
    changed = [(info, data) for info, data in over if read(header.data_start + info.offset, info.nbytes) != data]
    if values == dict(header.values) and not changed and not new and not patch.drop:
        return EditJournal(NOTHING, header.file_size, header.file_size)
    if not header.tensors:
        return _without_tensors(header, patch, read)
    infos = bytes(header.infos) + b"".join(encode_info(info) for info, _ in new)
    if new:
        _check_end(header)
    count = len(header.tensors) + len(new)
    fixed = sum(len(part) for part in encode_head(values, count)) + len(infos)
    layout = next(_layouts(header, values, infos, fixed, can_insert=can_insert, block=block, room=room))
    journal = _journal(header, values, layout, changed, new, read)
    if patch.drop:
        end = header.data_end
        journal = replace(journal, final_size=end + (layout.insertion.nbytes if layout.insertion is not None else 0))
    return _checked(header, values, journal, read)


def _without_dropped(header: GgufHeader, patch: Patch) -> GgufHeader:
    """Return the header without the tensors that the patch removes. Raises: PlanMismatch, NoWay."""
    absent = sorted(patch.drop - {info.name for info in header.tensors})
    if absent:
        raise PlanMismatch(f"does not have a tensor {absent[0]} to remove", where=str(header.path))
    if not patch.drop:
        return header
    staying = header.tensors[: len(header.tensors) - len(patch.drop)]
    last = {info.name for info in header.tensors[len(staying) :]}
    if last != patch.drop or not staying or patch.tensors.keys() - {info.name for info in staying}:
        raise NoWay(f"only the last tensors of a file can be removed, and its last tensor is {header.tensors[-1].name}")
    _check_end(header)
    length = sum(len(encode_info(info)) for info in header.tensors[len(staying) :])
    infos = header.infos[: len(header.infos) - length]
    return replace(header, tensors=staying, infos=infos, header_end=header.header_end - length)


def _layouts(
    header: GgufHeader, values: Mapping[str, Value], infos: bytes, fixed: int, *, can_insert: bool, block: int,
    room: int,
) -> Iterator[_Layout]:  # fmt: skip
    """Yield the possible layouts, the cheapest first. Raises: NoWay after the last."""
    if _fits(header.data_start - fixed, header.alignment):
        yield _Layout(header.data_start, infos)
    need = max(fixed + _SHORTEST_ARRAY - header.data_start, 1)
    if can_insert:
        unit = max(block, header.alignment)
        nbytes = padded(need + room, unit)
        if header.data_start + nbytes <= MAX_HEADER_BYTES:
            at = _unchanged_start(header, values) // unit * unit
            yield _Layout(header.data_start + nbytes, infos, Insertion(at, nbytes))
    yield _moved(header, infos, need)


def _moved(header: GgufHeader, infos: bytes, need: int) -> _Layout:
    """Return the layout in which as many of the first tensors move to the end as the header needs.

    Raises: NoWay.
    """
    _check_end(header)
    first = next((info for info in header.tensors[1:] if info.offset >= need), None)
    if first is None:
        raise NoWay(f"its header needs {need:,} more bytes, and moving its tensors does not free them")
    if first.offset > MOST_MOVED or header.data_start + first.offset > MAX_HEADER_BYTES:
        raise NoWay(
            f"its header needs {need:,} more bytes, and the first tensor, {header.tensors[0].name}, is too large to move: "
            f"{header.tensors[0].nbytes:,} bytes"
        )
    behind = first.offset
    end = padded(header.tensors[-1].end, header.alignment)
    count = header.tensors.index(first)
    stay = [replace(info, offset=info.offset - behind) for info in header.tensors[count:]]
    went = [replace(info, offset=info.offset + end - behind) for info in header.tensors[:count]]
    table = b"".join(map(encode_info, (*stay, *went)))
    return _Layout(header.data_start + behind, table + infos[len(header.infos) :], None, behind)


def _journal(
    header: GgufHeader, values: Mapping[str, Value], layout: _Layout, changed: Sequence[tuple[TensorInfo, bytes]],
    new: Sequence[tuple[TensorInfo, bytes]], read: Read,
) -> EditJournal:  # fmt: skip
    inserted = layout.insertion
    end = header.data_end
    before = read(0, header.data_start + layout.behind)
    old_filler = header.header_end - len(header.infos) - header.filler
    kept = [(old_filler, old_filler + header.filler), (header.data_start, len(before))]
    if inserted is not None:
        before = before[: inserted.at] + bytes(inserted.nbytes) + before[inserted.at :]
        kept = [(inserted.at, inserted.at + inserted.nbytes)]
    image, filler = _image(header, values, layout, len(header.tensors) + len(new), before, kept)
    moved = (inserted.nbytes if inserted is not None else 0) + header.data_start

    def place(info: TensorInfo) -> int:
        went = info.offset < layout.behind
        return end + info.offset if went else moved + info.offset

    writes = list(differing(before, image))
    writes += [Write(place(info), read(header.data_start + info.offset, info.nbytes), data) for info, data in changed]
    shift = (inserted.nbytes if inserted is not None else 0) + layout.behind
    writes += [Write(header.data_start + shift + info.offset, b"", data) for info, data in new]
    size = header.file_size + (inserted.nbytes if inserted is not None else 0)
    if layout.behind or new:
        last = end + shift + (padded(new[-1][0].end, header.alignment) - new[0][0].offset if new else 0)
        size = max(size, last)
    copies = (Copy(header.data_start, end, layout.behind),) if layout.behind else ()
    way = (
        INSERT if inserted is not None else MOVE if layout.behind else FILLER if filler != header.filler else OVERWRITE
    )
    return EditJournal(way, header.file_size, size, inserted, copies, tuple(writes))


def _image(
    header: GgufHeader, values: Mapping[str, Value], layout: _Layout, count: int, before: bytes,
    kept: Sequence[tuple[int, int]],
) -> tuple[bytes, int]:  # fmt: skip
    """Return all bytes before the data, and the number of filler bytes in them.

    kept: ranges that the filler may leave unchanged, because they contain no removed keys.
    """
    fixed = sum(len(part) for part in encode_head(values, count)) + len(layout.infos)
    gap = layout.data_start - fixed
    filler = _filler(gap, header.alignment)
    head = b"".join(encode_head({**values, **filler}, count, header.version))
    image = bytearray(layout.data_start)
    image[: len(head)] = head
    image[len(head) : len(head) + len(layout.infos)] = layout.infos
    end = len(head) + len(layout.infos)
    if (end, layout.data_start) == (header.header_end, header.data_start):
        image[end:] = before[end:]  # the padding of the source, which may not be zero
    count = 0 if not filler else max(gap - _SHORTEST_ARRAY, 0) + 1
    for start, stop in kept:
        start, stop = max(start, len(head) - count), min(stop, len(head))
        if start < stop:
            image[start:stop] = before[start:stop]
    return bytes(image), count


def _fits(gap: int, alignment: int) -> bool:
    """Return whether padding or a filler of this size can fill the gap between the header and the start of data."""
    return 0 <= gap < alignment or gap >= _SHORTEST_ARRAY or _SCALAR_LENGTH <= gap < _SCALAR_LENGTH + alignment


def _filler(gap: int, alignment: int) -> dict[str, Value]:
    if gap < alignment:
        return {}
    if gap < _SHORTEST_ARRAY:
        return {names.GGUF_FILLER: Value.of(ValueType.U8, 0)}
    count = gap - _SHORTEST_ARRAY + 1
    return {names.GGUF_FILLER: Value(ValueType.ARR, ARRAY_HEAD.pack(ValueType.U8, count) + bytes(count))}


def _unchanged_start(header: GgufHeader, values: Mapping[str, Value]) -> int:
    """Return the number of bytes at the start of the file in which every key and value keeps its position.

    A range is inserted after these keys, so that unchanged ones are not written again.
    """
    length = sum(len(part) for part in encode_head({}, 0))
    for (key, old), (new_key, new) in zip(header.values.items(), values.items(), strict=False):
        if key != new_key or len(old.raw) != len(new.raw):
            break
        length += len(encode_text(key)) + I32.size + len(old.raw)
    return length


def differing(before: bytes, after: bytes) -> Iterator[Write]:
    """Yield the differences between two texts of the same length, as whole pages."""
    one, other = (np.frombuffer(text, np.uint8) for text in (before, after))
    pages = range(0, len(before), _PAGE)
    whole = len(before) // _PAGE * _PAGE
    unequal = (one[:whole] != other[:whole]).reshape(-1, _PAGE).any(axis=1).tolist()
    unequal += [before[whole:] != after[whole:]] if whole < len(before) else []
    for differs, group in groupby(zip(unequal, pages, strict=True), key=lambda each: each[0]):
        if differs:
            places = [at for _, at in group]
            span = slice(places[0], places[-1] + _PAGE)
            yield Write(places[0], before[span], after[span])


def _without_tensors(header: GgufHeader, patch: Patch, read: Read) -> EditJournal:
    """Return the steps for a file without tensors, which is rewritten from its first change on."""
    if header.file_size - header.header_end > MOST_BEHIND:
        raise NoWay(f"{header.file_size - header.header_end:,} bytes after its header do not belong to a tensor")
    layout = lay_out(header, patch)
    image = bytearray(layout.size)
    for at, piece in layout.pieces:
        assert not isinstance(piece, str), "no tensor is rewritten"
        data = read(piece.start, piece.end - piece.start) if isinstance(piece, Span) else piece
        image[at : at + len(memoryview(data).cast("B"))] = data
    shared = min(layout.size, header.file_size)
    old, new = read(0, header.file_size), bytes(image)
    writes = [*differing(old[:shared], new[:shared])]
    if len(new) > shared:
        writes.append(Write(shared, b"", new[shared:]))
    return EditJournal(OVERWRITE, header.file_size, layout.size, writes=tuple(writes))


def _check_end(header: GgufHeader) -> None:
    """Raise NoWay if there are bytes after the last tensor."""
    behind = header.file_size - header.data_end
    if behind > 0:
        raise NoWay(f"{behind:,} bytes after its last tensor do not belong to a tensor")


def _checked(header: GgufHeader, values: Mapping[str, Value], journal: EditJournal, read: Read) -> EditJournal:
    """Return the journal after a check that its header has all keys and tensors, and each tensor its own bytes."""
    inserted, moved = journal.insertion, sum(copy.nbytes for copy in journal.copies)
    shift = inserted.nbytes if inserted is not None else 0
    image = bytearray(read(0, header.data_start + moved))
    if inserted is not None:
        image[inserted.at : inserted.at] = bytes(inserted.nbytes)
    for write in journal.writes:
        if write.at < len(image):
            end = min(len(image), write.at + len(write.new))
            image[write.at : end] = write.new[: end - write.at]
    after = parse_header(memoryview(bytes(image)), header.path, journal.final_size)
    assert dict(after.values) == dict(values), "the planned header has other keys"
    assert after.data_start == len(image), "the planned data begins elsewhere"
    for info in header.tensors:
        now = after.tensor(info.name)
        assert now is not None, f"the planned header lacks {info.name}"
        assert (now.shape, now.ggml_type) == (info.shape, info.ggml_type), f"the planned {info.name} differs"
        copied = info.offset < moved
        lies = journal.copies[0].at + info.offset if copied else header.data_start + info.offset + shift
        assert after.data_start + now.offset == lies, f"the planned place of {info.name} is wrong"
    return journal

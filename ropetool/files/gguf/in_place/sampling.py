"""What tells a file later that is going to be edited: digests of samples and of what is copied, and its ranges without data."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from ropetool.files.gguf.in_place.disk import Disk
from ropetool.files.gguf.journal import Journal, Sample

_SAMPLES, _SAMPLE = 64, 4 << 10  # blocks, and bytes of each


def sampled(disk: Disk, journal: Journal) -> Journal:
    """Return a journal with what tells the file later: samples, digests of what is copied, and ranges without data."""
    places = {journal.size * number // _SAMPLES // _SAMPLE * _SAMPLE for number in range(_SAMPLES)}
    places |= {max(journal.size - _SAMPLE, 0), *((journal.insertion.at,) if journal.insertion is not None else ())}
    samples = [_sample(disk, at) for at in sorted(places)]
    copies = [
        replace(copy, sha256=hashlib.sha256(disk.read(copy.start, copy.nbytes)).hexdigest()) for copy in journal.copies
    ]
    return replace(
        journal, samples=tuple(samples), copies=tuple(copies), holes=tuple(disk.holes()) if journal.insertion else ()
    )


def _sample(disk: Disk, at: int) -> Sample:
    data = disk.read(at, _SAMPLE)
    return Sample(at, len(data), hashlib.sha256(data).hexdigest())

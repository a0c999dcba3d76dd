"""Count the evaluations of a model in the cache. Each later one on the same documents has a smaller allowed error."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from ropetool import machine
from ropetool.lab.tuning.judging import ERROR

DIGITS = 32  # hexadecimal digits of a digest


def error_of(model: str, documents: Sequence[bytes], judged: str, notes: list[str]) -> float:
    """Return the error that a judgement may have, and record the judgement.

    The first judgement of a model gets `ERROR`. A later judgement that reads one of its documents gets half of the
    previous error, so the sum is at most twice `ERROR`. The same plan does not count twice.

    model: the fingerprint of the model.
    judged: the identity of the plan and its rows.
    notes: receives a note on earlier judgements.
    """
    mine = _digest(judged.encode())
    read = {_digest(document) for document in documents}
    place = machine.cache() / "tune" / _digest(model.encode())
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with place.open("a+", encoding="ascii", errors="replace") as file:
            file.seek(0)
            lines = [line.split() for line in file]
            known = [line[0] for line in lines if line]
            if mine not in known:
                file.write(" ".join([mine, *sorted(read)]) + "\n")
    except OSError as error:
        notes.append(
            f"ropetool cannot record this evaluation or count earlier ones on these documents: cannot write to {place} "
            f"({error.strerror})"
        )
        return ERROR
    before = lines[: known.index(mine)] if mine in known else lines
    earlier = len({line[0] for line in before if line and read & {*line[1:]}})
    allowed: float = ERROR / 2**earlier
    if earlier:
        times = "1 earlier plan was" if earlier == 1 else f"{earlier} earlier plans were"
        notes.append(
            f"{times} evaluated on the same documents, so the error rate of this evaluation is {100 * allowed:.2g} % instead of "
            f"{100 * ERROR:g} %; pass other documents with --text for {100 * ERROR:g} %"
        )
    return allowed


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:DIGITS]

"""The readers of what ropetool wrote and somebody may have changed."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ropetool.verification.journal import Journal
from torture.mutating import bytes_of, json_of
from torture.readers.base import Reader, Slot
from torture.scenes import EXTEND


def records(folder: Path) -> Iterator[Reader]:
    from ropetool.checkpoint import certificate, fingerprints, provenance
    from ropetool.plans import model_card
    from torture.commands import run

    made = folder / "made"
    run((*EXTEND, "-o", "made", "--copy"), folder).expect(0)
    stated = certificate.Certificate(
        "pass", "quick", 2048, ({"name": "loss", "figure": 1.0, "limit": 2.0, "verdict": "pass", "detail": "x"},), "0" * 64,
        {"torch": "2"}, "ropetool verify made", certificate.now(), fingerprints.of(made), True,
    )  # fmt: skip
    record = made / "ropetool.json"
    data = json.loads(record.read_text())
    seeds = [json.dumps(data).encode(), json.dumps({**data, "certificate": stated.to_json()}).encode()]
    slot = Slot(record)

    def read_record(data: bytes, rng: random.Random) -> None:
        slot(data)
        list(provenance.lineage(made))
        provenance.read(made)
        certificate.read(made)

    yield Reader("record and certificate", seeds, json_of, read_record, [b"pass", b"sampled:", b"gguf", b"export"], 2)

    card = Slot(folder / "card" / "README.md")
    checks = json.loads(seeds[1])["certificate"]

    def read_card(data: bytes, rng: random.Random) -> None:
        text = model_card.read_card(card(data))
        assert text is not None
        again = model_card.with_step(
            text, "Extended.", "ropetool extend x", ["vllm serve x"], base_model="a/b", long=True
        )
        model_card.write_card(card.path, model_card.grafted(model_card.with_verification(again, checks), text))

    cards = [(made / "README.md").read_bytes(), b"---\nlicense: mit\ntags:\n- a\nbase_model: x/y\n---\n# A model\n"]
    yield Reader(
        "model card", cards, bytes_of, read_card, [b"---\n", b"tags:", b"<!-- ropetool", b"base_model: [", b"-->"]
    )

    yield Reader("journal of a verification", [_journal(folder)], bytes_of, _read_journal, [b"SQLite format 3\0"], 0.5)


def _journal(folder: Path) -> bytes:
    """Return the file of a journal with some rows, in the cache that journals of this process are read from."""
    os.environ["ROPETOOL_CACHE"] = str(folder / "cache")
    journal = Journal("torture", resume=False)
    journal.put([bytes([number]) * 32 for number in range(4)], np.arange(12.0).reshape(4, 3))
    journal.close(remove=False)
    return journal.path.read_bytes()


def _read_journal(data: bytes, rng: random.Random) -> None:
    first = Journal("torture", resume=False)
    first.close(remove=False)
    first.path.write_bytes(data)
    opened = Journal("torture", resume=True)
    try:
        for number in range(4):
            found = opened.get(bytes([number]) * 32)
            assert found is None or found.tolist() == [3.0 * number, 3.0 * number + 1, 3.0 * number + 2], (
                f"{found} is not what was put"
            )
        opened.put([b"l" * 32], np.zeros((1, 3)))
        assert opened.rows >= 1
    finally:
        opened.close(remove=True)

"""The readers of what ropetool wrote and somebody may have changed, and of what the hub says."""

from __future__ import annotations

import json
import os
import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from torturing.mutating import bytes_of, json_of
from torturing.readers.base import Read, Reader, Slot, ignore
from torturing.scenes import EXTEND

ANSWER = "answer of the hub"


def records(folder: Path) -> Iterator[Reader]:
    from ropetool import certificate, provenance, publishing
    from torturing.commands import run

    made = folder / "made"
    run((*EXTEND, "-o", "made", "--copy"), folder).expect(0)
    stated = certificate.Certificate(
        "pass", "quick", 2048, ({"name": "loss", "figure": 1.0, "limit": 2.0, "verdict": "pass", "detail": "x"},), "0" * 64,
        {"torch": "2"}, "ropetool verify made", certificate.now(), certificate.fingerprint(made), False,
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
        text = publishing.read_card(card(data))
        assert text is not None
        again = publishing.with_step(
            text, "Extended.", "ropetool extend x", ["vllm serve x"], base_model="a/b", long=True
        )
        publishing.write_card(card.path, publishing.grafted(publishing.with_verification(again, checks), text))

    cards = [(made / "README.md").read_bytes(), b"---\nlicense: mit\ntags:\n- a\nbase_model: x/y\n---\n# A model\n"]
    yield Reader(
        "model card", cards, bytes_of, read_card, [b"---\n", b"tags:", b"<!-- ropetool", b"base_model: [", b"-->"]
    )

    yield Reader(
        "journal of a verification", [_journal(folder)], bytes_of, _read_journal(folder), [b"SQLite format 3\0"], 0.5
    )


def _journal(folder: Path) -> bytes:
    path = folder / "seed.sqlite"
    with closing(sqlite3.connect(path)) as base, base:
        base.execute("create table found (key blob primary key, figures blob)")
        base.execute("insert into found values (?, ?)", (b"k" * 32, bytes(32)))
    return path.read_bytes()


def _read_journal(folder: Path) -> Read:
    import numpy as np

    from ropetool.verification.journal import Journal

    os.environ["ROPETOOL_CACHE"] = str(folder / "cache")
    journal = Journal("torture", resume=True)
    place = journal.path
    journal.close(remove=False)

    def read(data: bytes, rng: random.Random) -> None:
        place.write_bytes(data)
        opened = Journal("torture", resume=True)
        try:
            opened.get(b"k" * 32)
            opened.put([b"l" * 32], np.zeros((1, 4)))
            ignore(opened.rows)
        finally:
            opened.close(remove=True)

    return read


# --- the hub


def hub() -> Iterator[Reader]:
    from ropetool.formats.hub.ids import hub_id

    ids = [b"org/name", b"org/name@main:x.gguf", b"https://huggingface.co/org/name/blob/main/x.gguf"]
    words = [b"@", b":", b"/", b"..", b".gguf", b"https://huggingface.co/", b"resolve", b"tree/main"]

    def read_id(data: bytes, rng: random.Random) -> None:
        hub_id(os.fsdecode(data.replace(b"\0", b"")[:3000]))

    yield Reader("hub id", ids, bytes_of, read_id, words)
    try:
        from huggingface_hub import HfApi, ModelInfo
    except ImportError:
        yield Reader(ANSWER, [], json_of, read_id, skipped="huggingface_hub is not installed")
        return
    from ropetool.formats.hub.ids import HubId
    from ropetool.formats.hub.snapshots import check_checkpoint, files_of, listing, weight_files

    def read_listing(data: bytes, rng: random.Random) -> None:
        # As huggingface_hub does it with the body of an answer; whichever library brought it.
        HfApi.model_info = lambda *_, **__: ModelInfo(**json.loads(data))
        asked = HubId("org/name", "", rng.choice(("", "x.gguf")))
        held = listing(asked)
        ignore(files_of(asked))
        ignore(weight_files(held.sizes))
        check_checkpoint(asked, held)

    siblings = [
        {"rfilename": name, "size": 5, "blobId": "0" * 40} for name in ("config.json", "model.safetensors", "x.gguf")
    ]
    listed = {"id": "org/name", "modelId": "org/name", "sha": "0" * 40, "siblings": siblings, "tags": [], "private": False,
              "lastModified": "2024-01-01T00:00:00.000Z", "cardData": {"license": "mit"}}  # fmt: skip
    yield Reader(
        ANSWER,
        [json.dumps(listed).encode()],
        json_of,
        read_listing,
        [b"config.json", b"../x", b"x.gguf"],
        0.5,
    )

"""What holds for every test: its markers, a cache of its own, and workers that leave each other a processor."""

from __future__ import annotations

import contextlib
import gc
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import slow

# Removes the folder of each line of its input.
REMOVES = """
import shutil, sys
for line in sys.stdin:
    shutil.rmtree(line.removesuffix("\\n"), ignore_errors=True)
"""

if "PYTEST_XDIST_WORKER" in os.environ:  # before torch and llama.cpp read them
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # a thread that waits for another's turn must not take it
    os.environ.setdefault("OMP_THREAD_LIMIT", "1")  # llama.cpp's, one for each processor, would wait for each other


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    long = set()
    for item in items:
        file, _, test = item.nodeid.partition("::")
        name = (item.config.rootpath / file).relative_to(Path(__file__).parent).as_posix()
        for marker in slow.markers(f"{name}::{test}"):
            item.add_marker(marker)
            long.add(file)
    if "PYTEST_XDIST_WORKER" in os.environ:  # short files at the end, so that the workers end together
        items.sort(key=lambda item: item.nodeid.partition("::")[0] not in long)


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep journals and places of sources out of the user's cache and of another worker's, and do not wait for the disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROPETOOL_CACHE", str(tmp_path_factory.mktemp("cache")))
        # Outputs are flushed to the disk before they get their names, which is waiting and nothing else. That it is done,
        # and in which order, formats/test_transaction.py says; what runs in a process of its own does it.
        patch.setattr(os, "fsync", lambda descriptor: None)
        patch.setattr(sqlite3, "connect", _without_waiting(sqlite3.connect))
        yield


def _without_waiting(connect: Any) -> Any:
    """Return `connect` such that SQLite does not flush either, which it does after each figure of a journal."""

    def connected(*given: Any, **options: Any) -> Any:
        base = connect(*given, **options)
        with contextlib.suppress(sqlite3.Error):  # the file is no database, which is for the caller to find
            base.execute("pragma synchronous = off")
        return base

    return connected


@pytest.fixture(scope="session", autouse=True)
def _removed() -> Iterator[None]:
    """Remove the folders of tests in another process: on some disks each takes milliseconds, which are waiting alone."""
    process = subprocess.Popen(
        [sys.executable, "-ISc", REMOVES], stdin=subprocess.PIPE, text=True, start_new_session=True
    )

    def remove(path: Path, ignore_errors: bool) -> None:
        print(path, file=process.stdin, flush=True)

    with process, pytest.MonkeyPatch.context() as patch:
        patch.setattr("_pytest.tmpdir.rmtree", remove, raising=False)
        yield


@pytest.fixture(scope="session", autouse=True)
def _ids() -> Iterator[None]:
    """Tokenize the package's texts once with each tokenizer; tests of tokenizers ask them themselves."""
    from remembering import remember_ids

    with pytest.MonkeyPatch.context() as patch:
        remember_ids(patch)
        yield


@pytest.fixture(scope="module", autouse=True)
def _frozen() -> None:
    """Leave what is loaded out of later collections: torch and transformers hold a million objects."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def short_texts(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the documents of the package be short, for a test that asks for verdicts and not for figures."""
    from verifying import cut_texts

    cut_texts(monkeypatch, tmp_path_factory.mktemp("short") / "texts", 8000)

"""What holds for every test: its markers, a cache of its own, and workers that leave each other a processor."""

from __future__ import annotations

import contextlib
import gc
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from socketserver import BaseServer
from typing import Any

import pytest
import slow

if "PYTEST_XDIST_WORKER" in os.environ:  # before torch and llama.cpp read them
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OMP_THREAD_LIMIT", "1")  # llama.cpp asks for as many as there are processors
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # a thread that waits for another's turn must not take it


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
    """Keep journals and places of sources out of the user's cache and of another worker's, and wait for no disk or server."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROPETOOL_CACHE", str(tmp_path_factory.mktemp("cache")))
        # Outputs are flushed to the disk before they get their names, which is waiting and nothing else. That it is done,
        # and in which order, formats/test_transaction.py says; what runs in a process of its own does it.
        patch.setattr(os, "fsync", lambda descriptor: None)
        # A server of the tests looks for its end twice a second otherwise, and whoever stops it waits for that.
        patch.setattr(BaseServer.serve_forever, "__defaults__", (0.02,))
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
def _ids() -> Iterator[None]:
    """Tokenize the package's texts once with each tokenizer; tests of tokenizers ask them themselves."""
    from verifying import remember_ids

    with pytest.MonkeyPatch.context() as patch:
        remember_ids(patch)
        yield


@pytest.fixture(scope="module", autouse=True)
def _frozen() -> None:
    """Leave what is loaded out of later collections: torch and transformers hold a million objects."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def short_texts(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the documents of the package be short, for a test that asks for verdicts and not for figures."""
    from verifying import cut_texts

    cut_texts(monkeypatch, tmp_path_factory.mktemp("short") / "texts", 8000)


@pytest.fixture
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an export compare the logits of few tokens, for a test that asks what is done and said, and not for figures."""
    from ropetool.verification import short_divergence

    monkeypatch.setattr(short_divergence, "MOST", 512)

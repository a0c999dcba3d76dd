"""What holds for every test: a cache of its own, and workers that leave each other a processor."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

if "PYTEST_XDIST_WORKER" in os.environ:  # before torch and llama.cpp read them
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # a thread that waits for another's turn must not take it


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep journals and places of sources out of the user's cache, and out of another worker's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROPETOOL_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield

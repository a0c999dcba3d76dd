"""The model that the tests of this folder spoil."""

from __future__ import annotations

from pathlib import Path

import configs
import pytest
from models import write_model


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model", configs.config("llama", "v4"))

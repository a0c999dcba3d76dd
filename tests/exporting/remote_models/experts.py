"""Models with experts, of classes that only remote code has."""

from __future__ import annotations

from exporting.remote_models.making import Remote

EXPERTS: dict[str, Remote] = {}

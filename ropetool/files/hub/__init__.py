"""Models on the Hugging Face hub: their names, local copies of their files, and headers without the rest."""

from __future__ import annotations

from pathlib import Path

from ropetool.files.hub.ids import HubId, absolute, beside, blobs, hub_id, name_of, origin

__all__ = ["HubId", "absolute", "beside", "blobs", "hub_id", "local", "name_of", "origin"]


def local(source: str | Path, *, bars: bool = False) -> Path:
    """Return the path of a checkpoint on this disk, after downloading it from the hub if necessary.

    An existing path has priority over a hub id. Any other text is returned as a path. Pickles and code are never
    downloaded.

    bars: show huggingface_hub's progress bars on stderr.
    Raises: HubError, MissingDependency; NotACheckpoint or CheckpointError for a repository without a checkpoint.
    """
    model_id = hub_id(source)
    if model_id is None:
        return Path(source)
    from ropetool.files.hub.snapshots import downloaded  # only for models on the hub

    return downloaded(model_id, bars=bars)

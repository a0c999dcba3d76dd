"""Models on the Hugging Face hub: their names, local copies of their files, and headers without the rest."""

from ropetool.files.hub.ids import HubId, absolute, beside, blobs, hub_id, name_of, origin
from ropetool.files.hub.peeking import Peeked, config_folder, peek_checkpoint, peek_gguf
from ropetool.files.hub.snapshots import local, on_disk

__all__ = [
    "HubId",
    "Peeked",
    "absolute",
    "beside",
    "blobs",
    "config_folder",
    "hub_id",
    "local",
    "name_of",
    "on_disk",
    "origin",
    "peek_checkpoint",
    "peek_gguf",
]

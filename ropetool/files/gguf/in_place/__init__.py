"""GGUF files changed where they lie, at any size: the way that writes least, a journal, and the recovery of what was cut."""

from ropetool.files.gguf.in_place.editing import Edited, edit_in_place, way_in_place
from ropetool.files.gguf.in_place.recovery import Recovered, recover

__all__ = ["Edited", "Recovered", "edit_in_place", "recover", "way_in_place"]

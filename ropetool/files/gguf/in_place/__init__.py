"""In-place edits of GGUF files at any size: the cheapest way, a journal, and recovery after an interruption."""

from ropetool.files.gguf.in_place.editing import Edited, edit_in_place, way_in_place
from ropetool.files.gguf.in_place.recovery import Recovered, recover

__all__ = ["Edited", "Recovered", "edit_in_place", "recover", "way_in_place"]

"""The names of `ropetool.sections` that `answered.py` imports from here."""

from ropetool.sections import BAD, GOOD, NONE, WARN, Cell, Section, Table, row

__all__ = ["BAD", "GOOD", "NONE", "WARN", "Cell", "Section", "Table", "row"]

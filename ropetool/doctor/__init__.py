"""What runtimes really make of files that are out there: rules over many checkpoints, and the repairs that are exact."""

from ropetool.doctor.examining import Diagnosis, Examined, examine
from ropetool.doctor.findings import ERROR, NOTE, WARNING, Finding, Rule

__all__ = ["ERROR", "NOTE", "WARNING", "Diagnosis", "Examined", "Finding", "Rule", "examine"]

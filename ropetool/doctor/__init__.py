"""Find RoPE settings that runtimes misread: rules over many checkpoints, and repairs that keep every table."""

from ropetool.doctor.examining import Diagnosis, Examined, examine
from ropetool.doctor.findings import ERROR, NOTE, WARNING, Finding, Rule

__all__ = ["ERROR", "NOTE", "WARNING", "Diagnosis", "Examined", "Finding", "Rule", "examine"]

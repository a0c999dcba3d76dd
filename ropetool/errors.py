"""The exceptions of ropetool. Each has a message, a place, and often a next step.

RopetoolError                 a problem that the user can fix
  CheckpointError             a problem with files
    NotACheckpoint            no config.json, not a GGUF file, not a directory
    MissingFile               a file that another file names does not exist
    CorruptFile               a file that breaks its own format
    UnsupportedDtype          a tensor type that ropetool does not support
    OutputError               the output exists, does not fit on the disk, or is not writable
    HubError                  the Hub does not have the model, or denies access to it
      HubUnreachable          the Hub does not answer, or ropetool is offline
    ServerError               a server does not answer, or its answer breaks its interface
  ConfigError                 a problem with values
    InvalidRope               a rope value that breaks a rule
    AmbiguousRope             a file with two interpretations, or two styles that disagree
  UnknownName                 a name that is not in a list; the message contains the list
    UnknownFamily, UnknownMethod, UnknownParameter, UnknownRuntime
  LossyExport                 the file or runtime cannot store the requested positions
  PlanMismatch                the source differs from the plan's source
  VerificationFailed          a measurement ran and failed
  MissingDependency           an optional package is missing; the message shows how to install it
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

_OPTION = re.compile(r"(?<![\w-])--([a-z][a-z-]*[a-z])(?: (original|current|[0-9]+[kKmM]?)(?![\w.]))?")
# Options that are arguments of Python functions. All other options belong to other programs, or only to commands.
_SAME = """
against allow-full-attention allow-inexact allow-nan allow-unverified attention-factor bake-dtype baseline budget cache-type check
compare-with config-style converter copy copy-if-needed device dtype factor factors force force-factor full-hash imatrix judge
layer-type lengths limits lm-eval max-regression method methods mode multiplier original-length outtype output pairs plans
presume rearch require resume seed segments shift-safe side space split-max-size suite target-length temperature-scope to
trained-length trials
"""
_ARGUMENTS = {name: name.replace("-", "_") for name in _SAME.split()} | {
    "from": "reading", "for": "for_runtimes", "as": "as_type", "text": "texts", "gain": "gains", "measure": "measures",
    "certificate": "certificate_file",
}  # fmt: skip
MAX_QUOTED = 1900  # characters of a message, which may quote a whole name or value of a file
_COMPARED = 60  # characters of a name; the comparison takes quadratic time


class RopetoolError(Exception):
    """An error that the user can act on.

    where: the file, key or option at fault; may be empty.
    try_: a command or step that works; may be empty.
    notes: notes on actions or results before the error.
    brief: a shorter message for a terminal; may be empty.

    `message` and `where` cut long quotes from a file. `str()` returns the message and the step with the names of Python
    arguments. The command line prints `sentence` and `try_` with the names of options.
    """

    exit_code = 1

    def __init__(self, message: str, *, where: str = "", try_: str = "") -> None:
        super().__init__(message)
        self.message = _cut(message)
        self.where = _cut(where)
        self.try_ = try_
        self.notes: tuple[str, ...] = ()
        self.brief = ""

    def __str__(self) -> str:
        step = [self.try_ if "ropetool " in self.try_ else _as_arguments(self.try_)] if self.try_ else []
        return "\nTry: ".join([_as_arguments(self.sentence), *step])

    @property
    def sentence(self) -> str:
        """Return the place and the message."""
        return f"{self.where}: {self.message}" if self.where else self.message

    def in_brief(self) -> str:
        """Return the place and the shorter message, or `sentence` if the error has no shorter message."""
        return self.sentence if not self.brief else f"{self.where}: {self.brief}" if self.where else self.brief

    def without_folders(self) -> str:
        """Return the message with only the file name of its place, for texts that leave this machine."""
        return f"{os.path.basename(self.where)}: {self.message}" if self.where else self.message


def sentence_of(error: Exception) -> str:
    """Return an error as a phrase within a message, without the next step of a RopetoolError."""
    return error.sentence if isinstance(error, RopetoolError) else str(error)


def _as_arguments(text: str) -> str:
    """Return a text with options as Python arguments: `--from current` becomes `reading="current"`."""

    def argument(match: re.Match[str]) -> str:
        name, value = _ARGUMENTS.get(match[1]), match[2]
        if name is None:
            return match[0]
        return name if value is None else f"{name}={value}" if value.isdigit() else f'{name}="{value}"'

    return _OPTION.sub(argument, text)


def _cut(text: str) -> str:
    return text if len(text) <= MAX_QUOTED else f"{text[:MAX_QUOTED]}..."


class CheckpointError(RopetoolError):
    """Something is wrong with the files of a checkpoint."""


class NotACheckpoint(CheckpointError):
    """The path does not contain a checkpoint."""


class MissingFile(CheckpointError):
    """A file that another file names does not exist."""


class CorruptFile(CheckpointError):
    """A file breaks the rules of its own format."""


class UnsupportedDtype(CheckpointError):
    """A tensor has a type that ropetool does not support."""


class OutputError(CheckpointError):
    """The output cannot be written."""


class HubError(CheckpointError):
    """A model on the Hub does not exist, or the Hub denies access to it."""


class HubUnreachable(HubError):
    """The Hub does not answer, its answer is invalid, or ropetool is offline."""


class ServerError(CheckpointError):
    """A server does not answer, or its answer breaks its interface."""


class ConfigError(RopetoolError):
    """A value in a file or an option breaks a rule."""


class InvalidRope(ConfigError):
    """A rope value is missing, malformed or out of range."""


class AmbiguousRope(ConfigError):
    """The file has two interpretations, and ropetool does not choose one."""


class UnknownName(RopetoolError):
    """A name is not in the list of known names."""

    exit_code = 2


class UnknownFamily(UnknownName):
    """The model_type has no entry in families/."""

    exit_code = 1


class UnknownMethod(UnknownName):
    """No method has this name."""


class UnknownParameter(UnknownName):
    """The method has no parameter of this name, or the value has the wrong type."""


class UnknownRuntime(UnknownName):
    """No runtime has this name, or it cannot read this format."""


class LossyExport(RopetoolError):
    """No encoding can store the requested positions. The message lists the parts and an alternative."""


class PlanMismatch(RopetoolError):
    """The source differs from the plan's source."""


class VerificationFailed(RopetoolError):
    """A verification ran and the result is below its threshold."""

    exit_code = 3


class MissingDependency(RopetoolError):
    """An optional package is required but not installed."""


def lacking(packages: Iterable[str]) -> str:
    """Return a phrase that lists which of these packages are not installed, or an empty text."""
    from importlib.util import find_spec

    absent = [name for name in packages if find_spec(name) is None]
    return f"{' and '.join(absent)} {'is' if len(absent) == 1 else 'are'} not installed" if absent else ""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return " (did you mean yarn?)", to append to a name, or an empty text if no known name is similar."""
    from difflib import get_close_matches

    near = get_close_matches(name[:_COMPARED].lower(), list(known), n=2)
    return f" (did you mean {' or '.join(near)}?)" if near else ""

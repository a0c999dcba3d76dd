"""The exceptions of ropetool: one sentence, a place, a rule and a next step each.

RopetoolError                 anything a user can mend; carries `where` and `try_`
  CheckpointError             the files
    NotACheckpoint            no config.json, no GGUF, not a directory
    MissingFile               a file that another file names is absent
    CorruptFile               a file that breaks its own format
    UnsupportedDtype          a tensor type that is not handled
    OutputError               the output exists, has no room, or may not be written
    HubError                  the hub has no such model, or does not give it
      HubUnreachable          the hub cannot be asked
    ServerError               a server does not answer, or not as its interface says
  ConfigError                 the values
    InvalidRope               a rope value that breaks a rule
    AmbiguousRope             two readings, or two styles that disagree
  UnknownName                 a name that is not in a list; says the list
    UnknownFamily, UnknownMethod, UnknownParameter, UnknownRuntime
  LossyExport                 the file or runtime cannot hold what was asked
  PlanMismatch                the source is not what the plan was made for
  VerificationFailed          a measurement ran and failed
  MissingDependency           an optional package is absent; says how to install it
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

_OPTION = re.compile(r"(?<![\w-])--([a-z][a-z-]*[a-z])(?: (original|current|[0-9]+[kKmM]?)(?![\w.]))?")
# Options that are arguments of the Python functions; every other one belongs to another program, or to commands only.
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
MAX_QUOTED = 1900  # characters of a sentence, which may quote a name or a value of a file in full
_COMPARED = 60  # characters of a name; to compare is quadratic in them


class RopetoolError(Exception):
    """An error that the user can act on.

    where: the file, key or option at fault; may be empty.
    try_: a command or step that works; may be empty.
    notes: notes on other actions or findings before the error.
    brief: a shorter sentence for a terminal; may be empty.

    Long quotes from a file are cut in `message` and `where`. As text it is the sentence and the step, with the names of
    Python arguments. The command line prints `sentence` and `try_`, with the names of options.
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
        """The place and the message."""
        return f"{self.where}: {self.message}" if self.where else self.message

    def in_brief(self) -> str:
        """Return the error with its shorter sentence, if it has one."""
        return self.sentence if not self.brief else f"{self.where}: {self.brief}" if self.where else self.brief

    def without_folders(self) -> str:
        """Return the error with only the file name of its place, for texts that leave this machine."""
        return f"{os.path.basename(self.where)}: {self.message}" if self.where else self.message


def sentence_of(error: Exception) -> str:
    """Return an error as a part of another sentence: without the next step of one of ours."""
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
    """The path holds nothing that ropetool can read."""


class MissingFile(CheckpointError):
    """A file that another file names is absent."""


class CorruptFile(CheckpointError):
    """A file breaks the rules of its own format."""


class UnsupportedDtype(CheckpointError):
    """A tensor has a type that is not handled."""


class OutputError(CheckpointError):
    """The output cannot be written."""


class HubError(CheckpointError):
    """A model on the hub does not exist, or is not given."""


class HubUnreachable(HubError):
    """The hub cannot be asked: offline, no answer, or out of order."""


class ServerError(CheckpointError):
    """A server does not answer, or answers what its interface rules out."""


class ConfigError(RopetoolError):
    """A value in a file or an option breaks a rule."""


class InvalidRope(ConfigError):
    """A rope value is missing, malformed or out of range."""


class AmbiguousRope(ConfigError):
    """The file can be read in two ways and ropetool does not choose."""


class UnknownName(RopetoolError):
    """A name is not in the list of known ones."""

    exit_code = 2


class UnknownFamily(UnknownName):
    """The model_type has no entry in families/."""

    exit_code = 1


class UnknownMethod(UnknownName):
    """No method has this name."""


class UnknownParameter(UnknownName):
    """The method has no parameter of this name, or the value is of the wrong kind."""


class UnknownRuntime(UnknownName):
    """No runtime has this name, or it cannot read this format."""


class LossyExport(RopetoolError):
    """No encoding holds what was asked; says which parts, and what would work."""


class PlanMismatch(RopetoolError):
    """The source is not the one that the plan was made for."""


class VerificationFailed(RopetoolError):
    """A verification ran and the result is below its threshold."""

    exit_code = 3


class MissingDependency(RopetoolError):
    """An optional package is needed and absent."""


def lacking(packages: Iterable[str]) -> str:
    """Return which of the packages are not installed, in words for a check that cannot run; empty where all are."""
    from importlib.util import find_spec

    absent = [name for name in packages if find_spec(name) is None]
    return f"{' and '.join(absent)} {'is' if len(absent) == 1 else 'are'} not installed" if absent else ""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return " (did you mean yarn?)", ready to stand behind the name; empty where no known name is near."""
    from difflib import get_close_matches

    near = get_close_matches(name[:_COMPARED].lower(), list(known), n=2)
    return f" (did you mean {' or '.join(near)}?)" if near else ""

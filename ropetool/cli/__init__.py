"""The command group: commands are loaded when they are called, errors become two lines, exit codes are fixed.

click and the error tree are all that --help needs.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import click

from ropetool import __version__
from ropetool.cli import signals
from ropetool.errors import RopetoolError, did_you_mean
from ropetool.escaping import command, escaped, visible

BUG = 70  # sysexits.h: EX_SOFTWARE
WORDS = 300  # characters of an exception that are shown

# name -> (module, first line of its help, page of docs/); the line is here so that --help loads no command. Without a module,
# the laboratory has registered the command.
COMMANDS = {
    "inspect": ("inspect", "Show the RoPE settings and how each runtime reads them.", "runtimes.md"),
    "doctor": ("doctor", "Find and fix RoPE settings that runtimes misread.", "inspecting.md"),
    "advise": ("advise", "Recommend a method for a context length, with reasons.", "choosing.md"),
    "methods": ("lists", "List the methods, or explain one.", "choosing.md"),
    "families": ("lists", "List the model families, or explain one.", "families.md"),
    "runtimes": ("lists", "List the runtimes, or explain one.", "runtimes.md"),
    "extend": ("extend", "Write a copy of a model with a longer context.", "choosing.md"),
    "bake": ("bake", "Fold scaling factors into the weights.", "bake.md"),
    "apply": ("apply", "Apply a plan written by extend, bake or tune.", "choosing.md"),
    "compare": ("compare", "Measure and rank several methods on one model.", "choosing.md"),
    "check": ("check", "Compare a checkpoint with its record and its source.", "verify.md"),
    "verify": ("verify", "Measure whether an extended model still works.", "verify.md"),
    "tune": (None, "Search for the best RoPE settings of one model.", "choosing.md"),
    "identify": ("identify", "Identify the RoPE table that a running server uses.", "inspecting.md"),
    "restore": ("restore", "Undo the last in-place edit of a GGUF file.", "gguf.md"),
    "export": ("export", "Write a checkpoint as a GGUF file for llama.cpp.", "export.md"),
    "import": ("import_", "Write a GGUF file as a Hugging Face checkpoint.", "export.md"),
    "gguf": ("gguf", "List and set keys of GGUF files, and split or merge them.", "gguf.md"),
    "diff": ("diff", "Compare RoPE tables, settings and weights of two models.", "inspecting.md"),
    "recover": ("recover", "Finish or undo an interrupted in-place edit.", "gguf.md"),
    "demo": ("demo", "Extend, verify and export the embedded checkpoint.", "install.md"),
}

# What commands are for, in the order of the help.
GROUPS = {
    "Inspect": ("inspect", "doctor", "diff", "identify"),
    "Choose": ("advise", "compare", "tune", "methods", "families", "runtimes"),
    "Extend": ("extend", "bake", "apply", "restore", "recover"),
    "Measure": ("check", "verify", "demo"),
    "Convert": ("export", "import", "gguf"),
}


class Commands(click.Group):
    """A group that imports a command's module only when the command is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        (module, _, page), attribute = COMMANDS[cmd_name], f"{cmd_name}_command"
        if module is None:
            from ropetool.registry import addition

            command: click.Command = addition(attribute)
        else:
            command = getattr(importlib.import_module(f"ropetool.cli.{module}"), attribute)
        command.epilog = f"More: docs/{page}"
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] == "help":
            args = [*args[1:], "--help"]
            if len(args) == 1:
                click.echo(ctx.get_help())
                ctx.exit()
        if args[0] not in COMMANDS and not args[0].startswith("-") and not ctx.resilient_parsing:
            raise click.UsageError(f"No such command {args[0]!r}{did_you_mean(args[0], COMMANDS)}.", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, members in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name, COMMANDS[name][1]) for name in members], col_max=30)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="ropetool")
def group() -> None:
    """Extend the context window of language models, and measure the result.

    \b
    ropetool inspect model.gguf --target-length 32k
    ropetool extend model.gguf --target-length 32k
    ropetool verify model-yarn-4x.gguf --baseline model.gguf
    """


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with its code.

    0 done, 1 refused, 2 usage, 3 verification failed, 70 a bug, 130, 143 and 129 ended by SIGINT, SIGTERM and SIGHUP.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    _accept_any_name()
    try:
        with signals.raised():
            code = _outcome(arguments)
    except signals.Ended as ended:  # it came before the command began, or while its outcome was being said
        _say(str(ended))
        code = ended.exit_code
    sys.exit(code)


def _outcome(arguments: list[str]) -> int:
    """Return the exit code of the command line, once everything about it has been said."""
    traceback = bool(os.environ.get("ROPETOOL_TRACEBACK"))
    try:
        try:
            code = group.main(arguments, prog_name="ropetool", standalone_mode=False, obj=arguments)
        except click.exceptions.Abort as error:  # click's word for an interrupt, or for an EOFError
            raise (error.__cause__ or signals.Ended(signal.SIGINT)) from None
    except KeyboardInterrupt as error:
        ended = error if isinstance(error, signals.Ended) else signals.Ended(signal.SIGINT)
        _say(str(ended))
        return ended.exit_code
    except click.ClickException as error:
        if "--json" in arguments:
            _say_json(type(error).__name__, "", error.format_message(), "")
        said = io.StringIO()
        error.show(file=said)
        with _or_nobody_listens("stderr"):
            click.echo(visible(said.getvalue()), nl=False, err=True)
        return error.exit_code
    except RopetoolError as error:
        if traceback:
            raise
        return _refuse(error, arguments)
    except OSError as error:  # the system's word on a file: nothing that a traceback would explain
        if traceback:
            raise
        return _refuse(RopetoolError(error.strerror or str(error), where=str(error.filename or "")), arguments)
    except MemoryError:
        return _refuse(RopetoolError("the machine ran out of memory"), arguments)
    except Exception as error:  # noqa: BLE001  it is not one of ours: a bug, and to be told as one
        if traceback:
            sys.excepthook(type(error), error, error.__traceback__)
        return _confess(error, arguments)
    return code if isinstance(code, int) else 0


def local_source(source: str) -> Path:
    """Return where the source lies on this disk; one on the hub is downloaded, with bars where stderr is a terminal."""
    from ropetool.files.hub import local

    return local(source, bars=is_terminal(sys.stderr))


def config_alone(source: str) -> Path | None:
    """Return where the config of a checkpoint on the hub lies, without its weights; None for any other source."""
    from ropetool.files.hub import config_folder, hub_id

    asked = hub_id(source)
    return None if asked is None else config_folder(asked)


def command_line() -> str:
    """Return the command line that is being carried out, for a shell."""
    return command("ropetool", *click.get_current_context().find_root().obj)


def _accept_any_name() -> None:
    """Let file names that are no UTF-8 be printed, escaped."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _refuse(error: RopetoolError, arguments: list[str]) -> int:
    if "--json" in arguments:
        _say_json(type(error).__name__, error.where, error.message, error.try_)
    _say(f"Error: {error.sentence if '--explain' in arguments else error.in_brief()}", error.where)
    if error.try_:
        _say(f"Try: {error.try_}")
    for note in error.notes:
        _say(f"Note: {note}")
    return error.exit_code


def _confess(error: Exception, arguments: list[str]) -> int:
    """Say that ropetool has a bug, and how to report it."""
    words = escaped(f"{type(error).__name__}: {error}")[:WORDS]
    message = f"a bug in ropetool, not in your files ({words}); please report it with this line and the command line"
    where, try_ = (
        f"ropetool {__version__}",
        f"ROPETOOL_TRACEBACK=1 {command('ropetool', *arguments)}  # prints the traceback",
    )
    if "--json" in arguments:
        _say_json("InternalError", where, message, try_)
    _say(f"Error: {where}: {message}")
    _say(f"Try: {try_}")
    return BUG


def _say(line: str, where: str = "") -> None:
    """Print a line on stderr, on a terminal in lines of its width.

    A place stays whole, to be copied, and so does a next step, which is often a command.
    """
    with _or_nobody_listens("stderr"):
        width = None if line.startswith("Try: ") else _width(sys.stderr)
        click.echo(_in_lines(escaped(line), width, escaped(where)), nl=False, err=True)


def _say_json(kind: str, where: str, message: str, try_: str) -> None:
    with _or_nobody_listens("stdout"):
        click.echo(json.dumps({"error": {"type": kind, "where": where, "message": message, "try": try_}}))


@contextmanager
def _or_nobody_listens(name: str) -> Iterator[None]:
    """Go on where what is said reaches nobody: the exit code still does."""
    try:
        yield
    except OSError:
        setattr(sys, name, None)  # and nothing is left to be written when the interpreter ends


def print_json(data: Any) -> None:
    """Print a result as JSON on stdout, in ASCII: no locale or pipe can garble it."""
    click.echo(json.dumps(data, indent=2, allow_nan=False))


def show(text: str, *, colour: bool = False) -> None:
    """Print lines that are ready for a terminal on stdout; what a terminal would obey in them is shown as an escape.

    colour: the lines have colours of ours, and all else in them is escaped already.
    """
    click.echo(text if colour else visible(text), nl=False)


def in_colour() -> bool:
    """Return whether stdout takes colours: a terminal that knows them, whose user has not set NO_COLOR."""
    return is_terminal(sys.stdout) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def terminal_width() -> int | None:
    """Return how many characters a line of stdout has; None where it is not a terminal: lines are then of any length."""
    return _width(sys.stdout)


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether a standard stream is a terminal. Python has None for one that is closed."""
    return stream is not None and stream.isatty()


def _width(stream: TextIO | None) -> int | None:
    """Return the characters in a line of a terminal, or None for another stream."""
    if not is_terminal(stream):
        return None
    # Python 3.10 gives 0 for a terminal whose size was never set, such as a serial line.
    return shutil.get_terminal_size().columns or 80


def _in_lines(line: str, width: int | None, whole: str = "") -> str:
    """Return a line with its end, wrapped to a width if there is one. whole: a part that stays on one line."""
    if width is None:
        return f"{line}\n"
    from ropetool.report.terminal import UNBROKEN, wrapped

    return wrapped(line.replace(whole, whole.replace(" ", UNBROKEN)) if whole else line, width)


def notes(lines: tuple[str, ...] | list[str]) -> None:
    """Print notes on stderr, above the progress that may be shown there; on a terminal in lines of its width."""
    for line in lines:
        note = _in_lines(f"Note: {escaped(line)}", _width(sys.stderr))
        click.echo(note, nl=False, file=sys.stderr)  # by this name: with err=True click looks behind rich's display

"""The command group. It imports a command when the command runs, prints errors, and sets exit codes.

`--help` imports only click, the errors and the escaping of text.
"""

from __future__ import annotations

import gc
import importlib
import io
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from ropetool import __version__
from ropetool.cli import signals
from ropetool.errors import RopetoolError, did_you_mean
from ropetool.escaping import command, escaped, visible

if TYPE_CHECKING:
    from ropetool.sections import Part

BUG = 70  # sysexits.h: EX_SOFTWARE
WORDS = 300  # the characters of an exception that an error shows

# By name: module, first line of the help, page of docs/. The line is here so that --help does not import the commands.
# Commands without a module are registered by the package `lab`.
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
    "use": (None, "Show which heads and rotary pairs of a model read far.", "measurements.md"),
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

# The groups of commands, in the order of the help.
GROUPS = {
    "Inspect": ("inspect", "doctor", "diff", "identify"),
    "Choose": ("advise", "compare", "tune", "methods", "families", "runtimes"),
    "Extend": ("extend", "bake", "apply", "restore", "recover"),
    "Measure": ("check", "verify", "use", "demo"),
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

    The codes: 0 done, 1 refused, 2 wrong usage, 3 failed verification, 70 a bug; 130, 143 and 129 for SIGINT, SIGTERM
    and SIGHUP.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    _accept_any_name()
    try:
        with signals.raised():
            code = _outcome(arguments)
            if code > signals.FIRST_CODE:
                # A context that was interrupted just before its body is not closed until it is collected.
                gc.collect()
    except KeyboardInterrupt as error:  # it came before the command began, or when it was done
        code = _ended(error)
    sys.exit(code)


def _ended(error: BaseException) -> int:
    """Say that a signal ended the command, and return the exit code."""
    ended = signals.behind(error) or signals.Ended(signal.SIGINT)
    _say(str(ended))
    return ended.exit_code


def _outcome(arguments: list[str]) -> int:
    """Run the command line, print its errors, and return the exit code."""
    traceback = bool(os.environ.get("ROPETOOL_TRACEBACK"))
    try:
        try:
            code = group.main(arguments, prog_name="ropetool", standalone_mode=False, obj=arguments)
        except click.exceptions.Abort as error:  # click raises it for an interrupt and for an EOFError
            raise (error.__cause__ or signals.Ended(signal.SIGINT)) from None
    except KeyboardInterrupt as error:
        return _ended(error)
    except click.ClickException as error:
        if "--json" in arguments:
            _say_json(type(error).__name__, "", error.format_message(), "")
        shown = io.StringIO()
        error.show(file=shown)
        with _even_if_closed("stderr"):
            click.echo(visible(shown.getvalue()), nl=False, err=True)
        return error.exit_code
    except RopetoolError as error:
        if traceback:
            raise
        return _refuse(error, arguments)
    except OSError as error:  # the message of the system names the file, so a traceback would not help
        if traceback:
            raise
        return _refuse(RopetoolError(error.strerror or str(error), where=str(error.filename or "")), arguments)
    except MemoryError:
        return _refuse(RopetoolError("the machine ran out of memory"), arguments)
    except Exception as error:  # noqa: BLE001  every other exception is a bug
        if signals.behind(error) is not None:
            return _ended(error)
        if traceback:
            sys.excepthook(type(error), error, error.__traceback__)
        return _confess(error, arguments)
    return code if isinstance(code, int) else 0


def local_source(source: str) -> Path:
    """Return the path of a source. A source on the hub is downloaded, with progress bars if stderr is a terminal."""
    from ropetool.files.hub import local

    return local(source, bars=is_terminal(sys.stderr))


def config_alone(source: str) -> Path | None:
    """Download the config of a checkpoint on the hub, without weights, and return its folder. None for other sources."""
    from ropetool.files.hub import hub_id

    named = hub_id(source)
    if named is None:
        return None
    from ropetool.files.hub.peeking import config_folder

    return config_folder(named)


def typed_words() -> list[str]:
    """Return the words of the running command line, without the name of the program. Works only in a click command."""
    typed: list[str] = click.get_current_context().find_root().obj
    return typed


def command_line() -> str:
    """Return the running command line, quoted for a shell. Works only in a click command."""
    return command("ropetool", *typed_words())


def print_result(
    as_json: bool,
    data: Callable[[], Any],
    parts: Callable[[], Iterable[Part]],
    more: Iterable[str] = (),
    *,
    width: int | None = None,
) -> None:
    """Print a result for --json, or its parts as text, and then notes.

    data: returns the JSON.
    parts: returns the parts.
    more: the notes.
    width: the characters in a line; None for lines of any length.
    """
    if as_json:
        print_json(data())
        return
    from ropetool.report.terminal import terminal_text

    show(terminal_text(parts(), width))
    notes(more)


def _accept_any_name() -> None:
    """Escape printed file names that are not UTF-8."""
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
    """Print that ropetool has a bug, and how to report it."""
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
    """Print a line on stderr, wrapped to the width of a terminal.

    where: a part that stays on one line, so that users can copy it. A next step is not wrapped either, because it is
    often a command.
    """
    with _even_if_closed("stderr"):
        width = None if line.startswith("Try: ") else _width(sys.stderr)
        click.echo(_in_lines(escaped(line), width, escaped(where)), nl=False, err=True)


def _say_json(name: str, where: str, message: str, try_: str) -> None:
    with _even_if_closed("stdout"):
        click.echo(json.dumps({"error": {"type": name, "where": where, "message": message, "try": try_}}))


@contextmanager
def _even_if_closed(name: str) -> Iterator[None]:
    """Continue if a stream is closed, because the exit code still has a reader."""
    try:
        yield
    except OSError:
        setattr(sys, name, None)  # so that the interpreter does not flush it when it ends


def print_json(data: Any) -> None:
    """Print a result as JSON on stdout, in ASCII, which every locale and pipe transmits unchanged."""
    click.echo(json.dumps(data, indent=2, allow_nan=False))


def show(text: str, *, colour: bool = False) -> None:
    """Print lines on stdout, with control characters escaped.

    colour: the lines contain our colours, and everything else in them is escaped already.
    """
    click.echo(text if colour else visible(text), nl=False)


def in_colour() -> bool:
    """Return whether stdout is a terminal with colours, and NO_COLOR is not set."""
    return is_terminal(sys.stdout) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def terminal_width() -> int | None:
    """Return the characters in a line of stdout. None if stdout is not a terminal: lines may then have any length."""
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


def notes(lines: Iterable[str]) -> None:
    """Print notes on stderr, above a progress bar, wrapped to the width of a terminal."""
    for line in lines:
        note = _in_lines(f"Note: {escaped(line)}", _width(sys.stderr))
        click.echo(note, nl=False, file=sys.stderr)  # by this name, because err=True would bypass the display of rich

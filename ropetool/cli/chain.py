"""--verify and --export of `ropetool extend`, which do what the commands `verify` and `export` do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ropetool.cli import command_line, notes, show
from ropetool.cli.options import ResultOptions
from ropetool.errors import ConfigError, OutputError
from ropetool.escaping import command

if TYPE_CHECKING:
    from ropetool.checkpoint.opening import Checkpoint
    from ropetool.cli.options import PlanOptions
    from ropetool.verification.results import VerifyResult


@dataclass(frozen=True)
class ChainOptions:
    """The options of `extend` for what follows the output.

    verify: verify the output.
    suite, grade: of the verification; None for the defaults.
    export: the GGUF file to write, None for no file.
    allow_unverified: export without a verification.
    """

    verify: bool
    suite: str | None
    grade: str | None
    export: str | None
    allow_unverified: bool


@dataclass(frozen=True)
class Chain:
    """What follows the output of `extend`.

    suite, grade: of the verification; a suite of None verifies nothing.
    export: the GGUF file to write, None for no file.
    force, sidecars: as in `OutputOptions`.
    """

    suite: str | None
    grade: str | None
    export: Path | None
    force: bool
    sidecars: bool

    @classmethod
    def of(cls, options: ChainOptions, output: PlanOptions) -> Chain:
        """Return what the options request. An export includes a verification unless --allow-unverified is passed.

        Raises: click.UsageError for options that exclude each other.
        """
        export, waived = options.export, options.allow_unverified
        verified = options.verify or (export is not None and not waived)
        if output.dry_run and (verified or export is not None):
            raise click.UsageError("--verify and --export need an output, which --dry-run does not write")
        if waived and (options.verify or export is None):
            raise click.UsageError("--allow-unverified requires --export, and excludes --verify")
        if options.suite is not None and not verified:
            raise click.UsageError("--suite requires --verify or --export")
        if options.grade is not None and not verified:
            raise click.UsageError("--grade requires --verify or --export")
        suite = (options.suite or "quick") if verified else None
        return cls(suite, options.grade, None if export is None else Path(export), output.force, output.sidecars)

    def check_source(self, source: Checkpoint) -> None:
        """Raise ConfigError for an export of a GGUF file."""
        if self.export is not None and source.format == "gguf":
            raise ConfigError(
                "the source is a GGUF file, so the output is one too: there is nothing to export",
                where=f"--export {self.export}", try_="leave out --export, and name the output with -o",
            )  # fmt: skip

    def check_place(self, source: Path, target: Path) -> None:
        """Raise OutputError for a GGUF file that cannot be written, before the output is written."""
        if self.export is None:
            return
        from ropetool.files.gguf.splitting import SplitLimits
        from ropetool.gguf_export import files

        where, file, output = f"--export {self.export}", self.export.resolve(), target.resolve()
        if output == file or output in file.parents:
            raise OutputError(f"is inside the output, {target}", where=where, try_="pass another FILE")
        try:
            notes(files.check(self.export, source, SplitLimits(), force=self.force))
        except OutputError as error:
            raise OutputError(
                error.message, where=where, try_=error.try_.replace("another -o", "another FILE")
            ) from None

    def run(self, output: Path, as_json: bool) -> tuple[int, dict[str, Any]]:
        """Verify and export. Return the exit code, and what --json prints of both."""
        if self.export is not None:
            from ropetool.gguf_export import check_export

            check_export(output, self.export, force=self.force, sidecars=self.sidecars)  # a verification may take hours
        results: dict[str, Any] = {}
        code = 0
        if self.suite is not None:
            from ropetool.report.verdict import verify_json

            result = _verified(output, self.suite, self.grade, as_json)
            code, results["verification"] = result.exit_code, verify_json(result)
        if self.export is not None and code == 0:
            results["export"] = self._exported(output, self.export, as_json)
        elif self.export is not None:
            results["export"] = None
            notes([f"{self.export} was not written, because the output did not pass its verification"])
        return code, results

    def _exported(self, output: Path, file: Path, as_json: bool) -> dict[str, Any]:
        from ropetool.cli.export import exported
        from ropetool.gguf_export.options import ExportOptions
        from ropetool.report.exported import exported_parts, written_json
        from ropetool.report.terminal import terminal_text

        options = ExportOptions(
            force=self.force, allow_unverified=self.suite is None, sidecars=self.sidecars, command=command_line()
        )
        written = exported(output, file, options)
        if not as_json:
            show(f"\n{terminal_text(exported_parts(written))}")
            notes(written.notes)
        return written_json(written)


def _verified(output: Path, suite: str, grade: str | None, as_json: bool) -> VerifyResult:
    """Return the result of a verification. Without --json, print it as `ropetool verify` does."""
    from ropetool.cli.verify import measured, run_verify
    from ropetool.verification.gate import Limits
    from ropetool.verification.options import VerifyOptions
    from ropetool.verification.readback.terms import Terms

    words = ["verify", str(output), "--suite", suite, *(["--grade", grade] if grade is not None else [])]
    again = f"`{command('ropetool', *words, '--resume')}`"
    options = VerifyOptions(suite=suite, limits=Limits.at_grade(grade), terms=Terms())
    if as_json:
        return measured(output, options, None, ResultOptions(as_json=True), again=again, words=words)
    click.echo()
    return run_verify(output, options, again=again, words=words)

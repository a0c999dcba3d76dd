"""--verify and --export of `ropetool extend`, which do what the commands `verify` and `export` do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ropetool.cli import command_line, notes, show
from ropetool.cli.options import check_output_path, refuse
from ropetool.errors import ConfigError, OutputError
from ropetool.escaping import command

if TYPE_CHECKING:
    from ropetool.checkpoint.opening import Checkpoint
    from ropetool.verification.results import VerifyResult

FOLLOWING = ("verify", "export")


@dataclass(frozen=True)
class Chain:
    """The options of `extend` that verify and export the output.

    verify: verify the output.
    suite, grade: the suite and the grade of the verification; None for the defaults.
    export: the GGUF file to write, None for no file.
    allow_unverified: export without a verification.
    dry_run, force, sidecars: as in `PlanOptions`.
    """

    verify: bool
    suite: str | None
    grade: str | None
    export: str | None
    allow_unverified: bool
    dry_run: bool
    force: bool
    sidecars: bool

    @property
    def verified(self) -> bool:
        """Whether a verification follows. An export includes one unless --allow-unverified is passed."""
        return self.verify or (self.export is not None and not self.allow_unverified)

    def check(self, *, measured: bool) -> None:
        """Raise click.UsageError for options that exclude each other. Works only in a click command.

        measured: --method auto uses the grade too.
        """
        if self.dry_run:
            refuse(dict.fromkeys(FOLLOWING, "--verify and --export need an output, which --dry-run does not write"))
        if self.allow_unverified and (self.verify or self.export is None):
            raise click.UsageError("--allow-unverified requires --export, and excludes --verify")
        if not self.verified:
            unused = ("suite",) if measured else ("suite", "grade")
            refuse(dict.fromkeys(unused, "{} requires --verify or --export"))

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

        self._check_outside(Path(self.export), target)
        with self._named():
            notes(files.check(Path(self.export), source, SplitLimits(), force=self.force))

    def check_path(self, source: str, output: str | None) -> None:
        """Raise OutputError for a GGUF file that cannot be written, before the source is read.

        source: as the user wrote it.
        output: the path of the output. None for the default, which the plan determines.
        """
        if self.export is None:
            return
        file = Path(self.export)
        if output is not None:
            self._check_outside(file, Path(output))
        elif not file.parent.exists() and file.parent.name.startswith(Path(source).name.partition("-")[0]):
            return  # the folder may be the default output
        with self._named():
            check_output_path(self.export, source, force=self.force, directory=False)

    def _check_outside(self, file: Path, target: Path) -> None:
        """Raise OutputError for a file inside the output."""
        output = target.resolve()
        if output == file.resolve() or output in file.resolve().parents:
            raise OutputError(
                f"is inside the output, {target}", where=f"--export {self.export}", try_="pass another FILE"
            )

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Name the option in an error about its file."""
        try:
            yield
        except OutputError as error:
            raise OutputError(
                error.message, where=f"--export {self.export}", try_=error.try_.replace("another -o", "another FILE")
            ) from None

    def run(self, output: Path, as_json: bool) -> tuple[int, dict[str, Any]]:
        """Verify and export. Return the exit code, and what --json prints of both."""
        if self.export is not None:
            from ropetool.gguf_export import check_export

            # before the verification, which may take hours
            check_export(output, Path(self.export), force=self.force, sidecars=self.sidecars)
        results: dict[str, Any] = {}
        code = 0
        if self.verified:
            from ropetool.report.verdict import verify_json

            result = self._verification(output, as_json)
            code, results["verification"] = result.exit_code, verify_json(result)
        if self.export is not None and code == 0:
            results["export"] = self._exported(output, Path(self.export), as_json)
        elif self.export is not None:
            results["export"] = None
            notes([f"{self.export} was not written, because the output did not pass its verification"])
        return code, results

    def _verification(self, output: Path, as_json: bool) -> VerifyResult:
        """Return the result of a verification. Without --json, print it as `ropetool verify` does."""
        from ropetool.cli.runs import ResultOptions, measured, run_verify
        from ropetool.verification.gate import Limits
        from ropetool.verification.options import VerifyOptions
        from ropetool.verification.readback.terms import Terms

        suite, grade = self.suite or "quick", self.grade
        line = ["verify", str(output), "--suite", suite, *(["--grade", grade] if grade is not None else [])]
        again = f"`{command('ropetool', *line, '--resume')}`"
        options = VerifyOptions(suite=suite, limits=Limits.at_grade(grade), terms=Terms(), command=command_line())
        if as_json:
            return measured(output, options, None, ResultOptions(as_json=True), again=again, line=line)
        click.echo()
        return run_verify(output, options, again=again, line=line)

    def _exported(self, output: Path, file: Path, as_json: bool) -> dict[str, Any]:
        from ropetool.cli.export import exported
        from ropetool.gguf_export.options import ExportOptions
        from ropetool.report.exported import exported_parts, written_json
        from ropetool.report.terminal import terminal_text

        options = ExportOptions(
            force=self.force, allow_unverified=self.allow_unverified, sidecars=self.sidecars, command=command_line()
        )
        written = exported(output, file, options)
        if not as_json:
            show(f"\n{terminal_text(exported_parts(written))}")
            notes(written.notes)
        return written_json(written)

"""--verify and --export: what follows the output of `ropetool extend`, by the same commands."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ropetool.cli import notes, show
from ropetool.errors import ConfigError, OutputError
from ropetool.escaping import command

if TYPE_CHECKING:
    from ropetool.checkpoint.opening import Checkpoint
    from ropetool.verification.results import VerifyResult


@dataclass(frozen=True)
class Chain:
    """What follows the output: a verification by this suite for this grade, an export to this file, or neither."""

    suite: str | None
    grade: str | None
    export: Path | None
    force: bool
    sidecars: bool

    @classmethod
    def of(cls, options: dict[str, Any], dry_run: bool) -> Chain:
        """Return what the options ask for; to export is to verify first, unless that is waived."""
        export, waived = options["export"], options["allow_unverified"]
        verified = options["verify"] or (export is not None and not waived)
        if dry_run and (verified or export is not None):
            raise click.UsageError("--verify and --export need an output, which --dry-run does not write")
        if waived and (options["verify"] or export is None):
            raise click.UsageError("--allow-unverified requires --export, and excludes --verify")
        if options["suite"] is not None and not verified:
            raise click.UsageError("--suite requires --verify or --export")
        if options["grade"] is not None and not verified:
            raise click.UsageError("--grade requires --verify or --export")
        suite = (options["suite"] or "quick") if verified else None
        return cls(
            suite, options["grade"], Path(export) if export is not None else None, options["force"], options["sidecars"]
        )

    def check_source(self, source: Checkpoint) -> None:
        """Refuse to export what is a GGUF file already."""
        if self.export is not None and source.format == "gguf":
            raise ConfigError(
                "the source is a GGUF file, so the output is one too: there is nothing to export",
                where=f"--export {self.export}", try_="leave out --export, and name the output with -o",
            )  # fmt: skip

    def check_place(self, source: Path, target: Path) -> None:
        """Refuse a file that may not be written, before the output is."""
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
        """Return the exit code, and what --json prints of the verification and the export."""
        if self.export is not None:
            from ropetool.gguf_export import check_export

            check_export(output, self.export, force=self.force, sidecars=self.sidecars)  # a verification may take hours
        found: dict[str, Any] = {}
        code = 0
        if self.suite is not None:
            from ropetool.report.verdict import verify_json

            result = _verified(output, self.suite, self.grade, as_json)
            code, found["verification"] = result.exit_code, verify_json(result)
        if self.export is not None and code == 0:
            found["export"] = self._exported(output, self.export, as_json)
        elif self.export is not None:
            found["export"] = None
            notes([f"{self.export} was not written, because the output did not pass its verification"])
        return code, found

    def _exported(self, output: Path, file: Path, as_json: bool) -> dict[str, Any]:
        from ropetool.cli.export import exported
        from ropetool.report.exported import exported_text, written_json

        written = exported(
            output, file, force=self.force, allow_unverified=self.suite is None, sidecars=self.sidecars
        )  # fmt: skip
        if not as_json:
            show(f"\n{exported_text(written)}")
            notes(written.notes)
        return written_json(written)


def _verified(output: Path, suite: str, grade: str | None, as_json: bool) -> VerifyResult:
    """Return the result of a verification, shown as `ropetool verify` shows it."""
    from ropetool.cli.verify import measured, run_verify

    words = ["verify", str(output), "--suite", suite, *(["--grade", grade] if grade is not None else [])]
    again = f"`{command('ropetool', *words, '--resume')}`"
    if as_json:
        return measured(output, quiet=True, suite=suite, grade=grade, again=again, words=words)
    click.echo()
    return run_verify(output, suite=suite, grade=grade, again=again, words=words)

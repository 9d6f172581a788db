"""`bitbench report`: the report of a study from its records, or one of the forms that such records are published in."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bitbench.cli.kernels import BASELINES, RECORDS_FILE
from bitbench.cli.renamed import listed, parser_of
from bitbench.report.forms.choices import OLD_NAMES, Form

if TYPE_CHECKING:
    from bitbench.core.recorded.kernel import KernelSummary


def report(
    folder: Annotated[Path, typer.Argument(help="a folder that bitbench filled", metavar="STUDY_DIR")],
    *,
    form: Annotated[
        Form | None,
        typer.Option(
            "--format",
            parser=parser_of(Form, OLD_NAMES),
            metavar=listed(Form),
            help="write this form [default: index.html and report.md, and tables on the screen]",
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="where to write it [default: the screen]")
    ] = None,
) -> None:
    """Write the report of a study from its records.

    Of a folder that `bitbench kernels` filled, its table and figure. With --format: one of the forms in which such
    records are published, or the records as data.
    """
    from bitbench.ground.errors import StoreError

    if form is None and output is not None:
        raise StoreError("--output needs --format; without it the report is written to STUDY_DIR/report")
    if form is None:
        _report(folder)
        return
    own = {Form.KERNEL_MD: _kernel_table, Form.PROFILE_MD: _profiles, Form.HTML: _page, Form.JSON: _json}
    text = own[form](folder) if form in own else _study_form(folder, form)
    if output is None:
        typer.echo(text, nl=False)
        return
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(text, encoding="utf-8", newline="\n")
    typer.echo(f"{form.value}: {output}")


def _report(folder: Path) -> None:
    from rich.console import Console

    from bitbench.lab.study import Lab
    from bitbench.report.document.terminal import render
    from bitbench.store.folder import StudyFolder

    if (folder / RECORDS_FILE).is_file() and not StudyFolder(folder).study_file.is_file():
        _kernel_report(folder)
        return
    lab, console, study = Lab(), Console(), StudyFolder.existing(folder)
    summary = lab.summary(study)
    path = lab.report(study, summary)
    render(summary, console)
    console.print(f"report: {path.with_name('index.html')}", highlight=False, soft_wrap=True)


def _study_form(path: Path, form: Form) -> str:
    from bitbench.lab.study import Lab
    from bitbench.report.forms.registry import STUDY_FORMS
    from bitbench.store.folder import StudyFolder

    folder = StudyFolder.existing(path)
    return STUDY_FORMS[form](Lab().summary(folder), folder.read())


def _json(path: Path) -> str:
    from bitbench.lab.report import report_document
    from bitbench.lab.study import Lab
    from bitbench.report.forms.tidy import json_text
    from bitbench.store.folder import StudyFolder

    lab, folder = Lab(), StudyFolder.existing(path)
    summary, records = lab.summary(folder), folder.read()
    return json_text(summary, records.trials, report_document(folder, records.lock, summary, lab.home))


def _page(path: Path) -> str:
    """The page is made by the report itself, with its figures; this is a copy of it."""
    from bitbench.lab.study import Lab
    from bitbench.store.folder import StudyFolder

    page = Lab().report(StudyFolder.existing(path)).with_name("index.html")
    return page.read_text(encoding="utf-8")


def _kernel_report(folder: Path) -> None:
    from rich.console import Console

    from bitbench.report.document.terminal import render
    from bitbench.report.sections.kernels import write_kernels

    render(write_kernels(_kernel_summary(folder / RECORDS_FILE), folder), Console())
    typer.echo(f"\ntable and figure: {folder}")


def _kernel_table(folder: Path) -> str:
    from bitbench.core.recorded.published import PublishedKernels
    from bitbench.ground.errors import StoreError
    from bitbench.report.document.markdown import markdown
    from bitbench.report.forms.published import published_kernel_document
    from bitbench.report.sections.kernels import kernel_document
    from bitbench.store.published import read_published

    if (published := read_published(folder, PublishedKernels)) is not None:
        return markdown(published_kernel_document(published))
    found = [path for path in (folder / RECORDS_FILE, folder / "kernels" / RECORDS_FILE) if path.is_file()]
    if not found:
        raise StoreError(
            f"{folder} has no kernel records ({RECORDS_FILE}); `bitbench kernels --into {folder}` makes them"
        )
    return markdown(kernel_document(_kernel_summary(found[0])))


def _kernel_summary(path: Path) -> "KernelSummary":
    from pydantic import ValidationError

    from bitbench.core.recorded.kernel import KernelRun
    from bitbench.ground.errors import StoreError
    from bitbench.statistics.kernels import summarize_kernels

    try:
        run = KernelRun.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise StoreError(f"{path} cannot be read as kernel records: {error.errors()[0]['msg']}") from error
    cases = {timing.case for timing in run.timings}
    return summarize_kernels(run, [name for name in BASELINES.split(",") if name in cases])


def _profiles(folder: Path) -> str:
    from bitbench.core.recorded.published import PublishedProfile
    from bitbench.ground.errors import StoreError
    from bitbench.report.document.markdown import markdown
    from bitbench.report.forms.published import published_profile_document
    from bitbench.report.sections.profile import profile_document
    from bitbench.store.folder import StudyFolder
    from bitbench.store.published import read_published

    if (published := read_published(folder, PublishedProfile)) is not None:
        return markdown(published_profile_document(published))
    profiles = StudyFolder(folder).profiles()
    if not profiles:
        raise StoreError(f"{folder} has no operator profile; `bitbench profile MODEL --into {folder}` takes some")
    return markdown(profile_document(profiles))

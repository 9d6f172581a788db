"""`bitbench quick`: a first answer about what is here, without a question."""

from pathlib import Path
from typing import Annotated

import typer


def quick(
    into: Annotated[
        Path | None, typer.Option("--into", metavar="DIR", help="Results folder [default: quick-DATE].")
    ] = None,
) -> None:
    """Measure a local server or the installed engines at once.

    Looks for an OpenAI-compatible server on the usual ports of 127.0.0.1 and measures it with one and with eight
    streams; without one, compares the installed engines on a downloaded model. Takes about two minutes, asks nothing,
    and fills a study folder.
    """
    from bitbench.cli.load_display import LoadDisplay
    from bitbench.cli.outcome import end_with_outcome, write_outcome
    from bitbench.cli.progress import RunDisplay
    from bitbench.cli.terminal import Terminal
    from bitbench.loadgen.workers import LoadWorkers
    from bitbench.measure.quick import engine_study, find_servers, new_folder, prepare_server
    from bitbench.measure.study import Lab
    from bitbench.reports.answers.quick import quick_document
    from bitbench.reports.document.terminal import render_whole

    lab, console, place = Lab(), Terminal(), into or new_folder()
    server, *others = find_servers() or (None,)
    if server is None:
        study = engine_study(lab.home, lab.device)
        with RunDisplay(console) as run_display:
            folder = lab.run(study, place, run_display)
        end_with_outcome(lab, folder, console, allow_inconclusive=True)
    with LoadWorkers() as client:
        prepared = prepare_server(server, client, place)
        with LoadDisplay(console, prepared) as display:
            folder = lab.load(prepared, display, client)
    reported = write_outcome(lab, folder)
    render_whole(quick_document(reported.summary), console)
    console.print(f"report: {reported.page}", soft_wrap=True)
    if others:
        console.print(f"not measured: {', '.join(other.url for other in others)}; use `bitbench load URL`")
    raise typer.Exit(reported.exit_code(allow_inconclusive=True))

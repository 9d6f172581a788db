"""`bitbench run`: a study, from its file to its report."""

from contextlib import nullcontext
from typing import Annotated

import typer

from bitbench.cli.options import AllowInconclusive, InsecureCluster, OnDevice, StudyFile, device_option, seconds_option
from bitbench.cli.outcome import end_with_outcome
from bitbench.cli.progress import RunDisplay
from bitbench.cli.terminal import Terminal
from bitbench.measure import runner
from bitbench.measure.offers import executor_at, folder_at, watched
from bitbench.measure.workplace import Workplace
from bitbench.study.study_file import StudySource


def run(
    study: StudyFile,
    *,
    into: Annotated[
        str | None,
        typer.Option(
            "--into", metavar="DIR", help="Results folder, or s3://BUCKET/STUDY [default: ./NAME of the study]."
        ),
    ] = None,
    device: OnDevice = None,
    budget: Annotated[
        str | None, typer.Option(metavar="TIME", help="Wall time to spend, such as 10m; overrides the study's own.")
    ] = None,
    key_from: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Variable whose value an endpoint may get as its API key."),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Serve a page on 127.0.0.1 that shows progress and what is decided.")
    ] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of that page [default: any free one].")] = 0,
    on: Annotated[
        str | None,
        typer.Option(metavar="WHERE", help="Machines to run blocks on: local:N, ssh://HOST,HOST or ray://HEAD:PORT."),
    ] = None,
    insecure_cluster: InsecureCluster = False,
    allow_inconclusive: AllowInconclusive = False,
) -> None:
    """Run a study, or resume an interrupted one, and report.

    Trials that are recorded are not run again. With a budget, starts and rounds are planned from it, configs that
    are already decided are dropped, and the study ends early when everything is decided. The report is
    DIR/report/index.html. A study is code: `bitbench plan` shows what one from elsewhere would start, send and write.
    Exit code 1: a point misses an objective of the study. 2: inconclusive. 3: no point has a result.
    """
    at, console = Workplace(asked_device=device_option(device)), Terminal()
    place = None if into is None else folder_at(into, at.home)
    budget_s = None if budget is None else seconds_option(budget, "--budget")
    executor = None if on is None else executor_at(on, without_token=insecure_cluster)
    source = StudySource.of(study)
    with RunDisplay(console) as display:
        page = watched(at.home, place, display, port=port, on_url=display.say_url) if watch else nullcontext(display)
        with page as observer:
            folder = runner.measure_study(
                source, place, observer, at, budget_s=budget_s, on=executor, key_from=key_from or ()
            )
    end_with_outcome(folder, at.home, console, allow_inconclusive=allow_inconclusive)

"""`bitbench run`: a study, from its file to its report."""

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from bitbench.cli.options import AllowInconclusive, InsecureCluster, OnDevice, StudyFile, device_option, seconds_option
from bitbench.cli.outcome import end_with_outcome
from bitbench.cli.plan import confirm_plan_uses
from bitbench.cli.progress import RunDisplay
from bitbench.cli.terminal import Terminal
from bitbench.measure import runner
from bitbench.measure.offers import executor_at, watched
from bitbench.measure.trust import trust_in
from bitbench.measure.workplace import Workplace
from bitbench.records.folder import StudyFolder
from bitbench.study.study_file import StudySource


def run(
    study: StudyFile,
    *,
    into: Annotated[
        Path | None, typer.Option("--into", metavar="DIR", help="Results folder [default: ./NAME of the study].")
    ] = None,
    device: OnDevice = None,
    budget: Annotated[
        str | None, typer.Option(metavar="TIME", help="Wall time to spend, such as 10m; overrides the study's own.")
    ] = None,
    trust: Annotated[
        bool, typer.Option("--trust", help="Allow the URLs, keys, files and arguments that `bitbench plan` shows.")
    ] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Serve a page on 127.0.0.1 that shows progress and what is decided.")
    ] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of that page [default: any free one].")] = 0,
    on: Annotated[
        str | None,
        typer.Option(metavar="WHERE", help="Machines to run blocks on: local:N, ssh://HOST,HOST or ray://HEAD:PORT."),
    ] = None,
    insecure_cluster: InsecureCluster = False,
    mirror: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Copy records to s3://BUCKET/PATH after each group, and resume from there."),
    ] = None,
    allow_inconclusive: AllowInconclusive = False,
) -> None:
    """Run a study, or resume an interrupted one, and report.

    Trials that are recorded are not run again. With a budget, starts and rounds are planned from it, configs that
    are already decided are dropped, and the study ends early when everything is decided. The report is
    DIR/report/index.html. It asks before contacting other hosts, or running code that the file names. Exit
    code 1: a point misses an objective of the study. 2: inconclusive. 3: no point has a result.
    """
    at, console = Workplace(asked_device=device_option(device)), Terminal()
    place = None if into is None else StudyFolder(into)
    budget_s = None if budget is None else seconds_option(budget, "--budget")
    executor = None if on is None else executor_at(on, without_token=insecure_cluster)
    source = StudySource.of(study)
    confirm_plan_uses(trust_in(source, at.home), console, trusts=trust)
    with RunDisplay(console) as display:
        page = watched(at.home, place, display, port=port, on_url=display.say_url) if watch else nullcontext(display)
        with page as observer:
            folder = runner.measure_study(source, place, observer, at, budget_s=budget_s, on=executor, mirror=mirror)
    end_with_outcome(folder, at.home, console, allow_inconclusive=allow_inconclusive)

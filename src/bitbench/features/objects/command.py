"""`bitbench pull`: a study from an object store as a folder of this machine."""

from pathlib import Path
from typing import Annotated

import typer

from bitbench.cli.terminal import Terminal
from bitbench.features.objects.remote_folder import pull_remote_study
from bitbench.reports.document.words import plural


def pull(
    url: Annotated[str, typer.Argument(help="The study: s3://BUCKET/STUDY.", metavar="URL")],
    folder: Annotated[Path | None, typer.Argument(help="The folder to fill [default: ./STUDY].", metavar="DIR")] = None,
) -> None:
    """Copy a study from an object store to a folder."""
    found = pull_remote_study(url, folder)
    trials = plural(len(found.trials()), "trial")
    Terminal().print(f"Wrote {found.path} ({trials}). `bitbench report {found.path}` shows them.", soft_wrap=True)

"""Writers of a study in an object store that are killed around one of their requests, again and again."""

import os
import random
import signal
import threading
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from bitbench.features.objects.remote_folder import RemoteFolder, pull_remote_study
from bitbench.features.objects.store import ObjectStore
from bitbench.records.folder import StudyFolder
from tests.gallery import TWINS

TRIALS = 40  # of a study
MOST_REQUESTS = 16  # of a writer before it dies: six open the study, two write a trial
LONGEST_REQUEST_S = 0.02  # it dies before the request arrives, in the middle, or after the answer


def kill_writers(place: str, homes: Path, variables: dict[str, str], kills: int, rng: random.Random) -> int:
    """Returns how many studies were written, the last one undisturbed. Each is checked."""
    processes = get_context("forkserver")
    processes.set_forkserver_preload([__name__])
    killed, studies = 0, 0
    while True:
        # Every other time without the copy of the time before, as if on another machine.
        home = homes / rng.choice(["one", "two"])
        dies = (rng.randint(1, MOST_REQUESTS), rng.uniform(0, LONGEST_REQUEST_S)) if killed < kills else None
        process = processes.Process(target=write_study, args=(f"{place}/{studies}", home, variables, dies))
        process.start()
        process.join()
        if process.exitcode == -signal.SIGKILL:
            killed += 1
            continue
        assert process.exitcode == 0
        check(f"{place}/{studies}", homes / f"pulled{studies}")
        studies += 1
        if killed == kills:
            return studies


def write_study(url: str, home: Path, variables: dict[str, str], dies: tuple[int, float] | None) -> None:
    """Continue it to its end, or die: so long after so many requests."""
    os.environ.update(variables)
    if dies is not None:
        _die(*dies)
    source, folder = StudyFolder(TWINS).read(), RemoteFolder(url, home)
    with folder.writing() as writer:
        if folder.lock() is None:
            writer.write_study("name: twins\n")
            writer.write_lock(source.lock)
        instance, _ = writer.new_instance()
        for trial in source.trials[len(folder.trials()) : TRIALS]:
            written = trial.model_copy(update={"instance_id": instance})
            writer.append_trial(written, source.requests_of(trial, None))


def _die(requests: int, after_s: float) -> None:
    import obstore

    put, left = obstore.put, [requests]

    def counted(*arguments: Any, **options: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            threading.Timer(after_s, os.kill, (os.getpid(), signal.SIGKILL)).start()
        return put(*arguments, **options)

    obstore.put = counted


def check(url: str, into: Path) -> None:
    """Nothing is lost or doubled, and rows are those of their trial."""
    source, folder = StudyFolder(TWINS).read(), pull_remote_study(url, into)
    found = folder.trials()
    assert [one.id for one in found] == [f"t{number:05d}" for number in range(1, TRIALS + 1)]
    for kept, wanted in zip(found, source.trials, strict=False):
        assert kept.started_at == wanted.started_at
        assert folder.requests_of(kept).equals(source.requests_of(wanted, None))
    instances = [one.instance_id for one in found]
    assert instances == sorted(instances)  # no start has the number of an earlier one
    assert len(ObjectStore(url).list("trials")) == TRIALS

"""The actor that measures blocks on a node of a Ray cluster, or on one of its GPUs. It decides only
which configs fit into its memory, and writes nothing: results go to the driver one by one."""

import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Thread

import ray

from bitbench.engines.left_over import end_left_over
from bitbench.features.fleet.pace import TimedBlock
from bitbench.loadgen.workers import LoadWorkers
from bitbench.machine.workplace import Workplace
from bitbench.planning.plan import ready_plan
from bitbench.planning.variants import VariantStore
from bitbench.records.lock import Lock
from bitbench.records.quality import QualityMaterial
from bitbench.records.trial import InstanceRecord, TrialRecord
from bitbench.running.group import Draft, run_group
from bitbench.running.offers import LogObserver
from bitbench.running.progress import BlockTask, Progress, Recorded
from bitbench.running.quality import QualityKit
from bitbench.running.runner import make_residence, resolve_run, run_context, run_kit_maker
from bitbench.running.trial import RunContext, TrialDraft
from bitbench.study.environment import Device
from bitbench.study.plan import Config
from bitbench.study.study import Study
from bitbench.study.study_file import StudySource, format_study
from bitbench.util.errors import StoreError
from bitbench.util.files import SafeFolder, read_bytes

LEFT_S = 60.0  # a driver that is silent for so long is gone, or gave the block to another node


@dataclass(frozen=True)
class BlockOrder:
    """A block, or the rest of one, as the driver decided it."""

    task: BlockTask
    seconds: float | None  # of a budget
    quality: tuple[Config, ...]
    materials: dict[str, QualityMaterial]  # by the name of a model
    # All trials of this block, all failed ones, and the one with the highest memory of each config.
    history: tuple[TrialRecord, ...]
    repeatable: frozenset[str]


@dataclass(frozen=True)
class BlockEnd:
    """The last result of a block."""

    seconds: float


Result = tuple[Draft | BlockEnd, dict[str, bytes]]  # with new content of instances' logs


class BlockHost:
    """An actor. Ray calls `prepare` and `run` in one thread, and `sign` in another."""

    def __init__(self, study: Study, folder: Path, device: Device | None) -> None:
        # Ray sets it to 1, and a CPU engine would compute on one core.
        os.environ.pop("OMP_NUM_THREADS", None)
        end_left_over()
        self._heard = time.monotonic()
        Thread(target=self._end_when_left, daemon=True).start()
        self._study = study
        self._folder = folder
        self._workplace = Workplace(asked_device=device)
        self._store = VariantStore(self._workplace.home, folder)
        self._load = LoadWorkers()

    @ray.method(concurrency_group="signs")  # type: ignore[untyped-decorator, unused-ignore]
    def sign(self) -> None:
        """Note that the driver is alive, and show that this actor is."""
        self._heard = time.monotonic()

    def _end_when_left(self) -> None:
        """End this process and so its engines when the driver is silent, even after a pause of the
        process itself. Its block was given to another node."""
        while time.monotonic() - self._heard < LEFT_S:
            time.sleep(1.0)
        os._exit(1)

    def prepare(self) -> Lock:
        """Return the resolved study, which shows whether this node is set up like the others."""
        observer = LogObserver()
        source = StudySource(self._study, format_study(self._study), self._folder)
        self._plan = ready_plan(source, self._store, self._workplace, observer)
        self._load.__enter__()
        self._context = run_context(
            self._plan,
            self._store,
            self._folder,
            self._workplace,
            load=self._load,
            observer=observer,
        )
        return resolve_run(self._plan, self._folder, self._workplace.host(), self._workplace.home)

    @ray.method(num_returns="streaming")  # type: ignore[untyped-decorator, unused-ignore]
    def run(self, order: BlockOrder) -> Iterator[Result]:
        """Yield the results of a block as they come, and then its duration."""
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="bitbench-block-") as folder:
            logs = _Logs(Path(folder))
            for draft in self._drafts(order, logs):
                yield draft, logs.read_gained(draft)
        yield BlockEnd(time.monotonic() - began), {}

    def _drafts(self, order: BlockOrder, logs: "_Logs") -> Iterator[Draft]:
        """Yield the results of a block, then the quality results."""
        run = self._make_context(order)
        progress = Progress(run.plan, order.repeatable)
        residence = make_residence(run.plan, self._workplace)
        timed = TimedBlock(order.task, order.seconds)

        def add(record: Recorded) -> None:
            progress.add([record])
            if isinstance(record, TrialRecord):
                residence.add(record)
                timed.add(record)
            progress.begin(timed.task)

        progress.begin(timed.task)
        for trial in order.history:
            add(trial)
        while (
            group := progress.next_group(order.task.block, residence)
            or progress.find_next_quality()
        ):
            results = 0
            for draft in run_group(group, run, progress, logs.new_instance):
                record = draft if isinstance(draft, InstanceRecord) else draft.record
                add(record)
                results += record is not draft
                yield _include_rows(draft)
            if results == 0:
                raise StoreError(f"{group.name} left no result")

    def _make_context(self, order: BlockOrder) -> RunContext:
        plan = self._plan.model_copy(update={"quality": order.quality})
        kits: dict[str, QualityKit] = {}
        if plan.study.quality is not None and order.quality:
            maker = run_kit_maker(plan.study, self._store, self._folder, self._workplace.home)
            for variant in {plan.variant(config.variant) for config in order.quality}:
                material = order.materials[variant.model_name]
                kits[variant.model] = maker.make_kit(material, variant.model, plan.study.quality)
        return replace(self._context, plan=plan, quality=kits)


def _include_rows(draft: Draft) -> Draft:
    if isinstance(draft, TrialDraft) and draft.rows is not None:
        return replace(draft, rows=draft.rows.load_parts())
    return draft


class _Logs:
    """The logs of instances on this node, until the driver has them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files = SafeFolder(folder)
        self._read: dict[str, int] = {}  # bytes, by instance

    def new_instance(self) -> tuple[str, Path]:
        """Return the id and the empty log of a new instance."""
        name = f"i{len(self._read) + 1:04d}"
        self._read[name] = 0
        return name, self._files.create(f"{name}.log")

    def read_gained(self, draft: Draft) -> dict[str, bytes]:
        """Return the new content of each log that grew. The log of a new instance is always in
        it."""
        new_content: dict[str, bytes] = {}
        for name, sent_bytes in self._read.items():
            content = read_bytes(self._folder / f"{name}.log")[sent_bytes:]
            if content or (isinstance(draft, InstanceRecord) and draft.id == name):
                new_content[name] = content
                self._read[name] = sent_bytes + len(content)
        return new_content

"""The jobs of a node program: a block of a study on this machine, or one part of a trial's requests.

Rows stay here until they are asked for.
"""

import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from pydantic import ValidationError

from bitbench import __version__
from bitbench.analysis.ranking import baselines_of
from bitbench.features.fleet.channel import Message, channel_message
from bitbench.features.fleet.orders import (
    LOAD_ORDER_FORMAT,
    MATERIALS,
    ORDER_FORMAT,
    BlockOrder,
    LoadOrder,
    PartReport,
    fleet_order_differences,
    pack_fleet_order_result,
)
from bitbench.features.fleet.serving import Node
from bitbench.loadgen.inputs import hash_input_files
from bitbench.loadgen.workers import LoadWorkers, WorkerTask, decode_task_frame
from bitbench.measure.budget import StudyPace
from bitbench.measure.group import Draft, run_group
from bitbench.measure.offers import LogObserver
from bitbench.measure.plan import ready_plan
from bitbench.measure.progress import Progress
from bitbench.measure.runner import resolve_run, run_context, run_kit_maker, run_pace
from bitbench.measure.trial import RunContext
from bitbench.measure.variants import VariantStore
from bitbench.measure.workplace import Workplace
from bitbench.records.quality import QualityMaterial, QualityRecord
from bitbench.records.trial import InstanceRecord
from bitbench.study.plan import Config, Group, Point
from bitbench.study.study_file import StudySource, study_file_text
from bitbench.util.errors import FleetError, StoreError
from bitbench.util.files import SafeFolder, open_to_read, read_bytes


class BlockJob:
    def __init__(self, order: BlockOrder, materials: dict[str, QualityMaterial]) -> None:
        self._order, self._materials = order, materials

    @property
    def id(self) -> str:
        return self._order.id

    @classmethod
    def read(cls, asked: Message) -> "BlockJob":
        """Raises FleetError."""
        try:
            materials = MATERIALS.validate_json(asked.parts[0]) if asked.parts else {}
            return cls(BlockOrder.model_validate_json(asked.header.record), materials)
        except ValidationError as error:
            said = f"it does not understand the order; is its bitbench ({__version__}) the driver's? {error}"
            raise FleetError(said) from error

    def results(self, node: Node) -> Iterator[Message]:
        work = _Work(self._order, self._materials, node)
        node.say_started()
        with tempfile.TemporaryDirectory(prefix="bitbench-node-") as place, LoadWorkers() as load:
            logs = _Logs(Path(place))
            node.wait_until_asked(0)
            for seq, draft in enumerate(work.drafts(load, logs)):
                yield pack_fleet_order_result(draft, self.id, seq, logs.gained())


class _Work:
    """A block on this machine: what the order says, with what is here."""

    def __init__(self, order: BlockOrder, materials: dict[str, QualityMaterial], node: Node) -> None:
        if order.format != ORDER_FORMAT:
            raise FleetError(f"it reads orders of format {ORDER_FORMAT}, not {order.format}; install the same bitbench")
        self._order, self._materials = order, materials
        self._at, self._observer = Workplace(), _Activity(node)
        self._folder = Path(order.folder)
        source = StudySource(order.plan.study, study_file_text(order.plan.study), self._folder)
        self._store = VariantStore(self._at.home, self._folder)
        found = ready_plan(source, self._store, self._at, self._observer)
        resolved = resolve_run(found, self._folder, self._at.host(), self._at.home)
        if changes := fleet_order_differences(order, resolved, found):
            raise FleetError(f"it is not set up like the driver ({'; '.join(changes)})")
        here = {variant.name: variant for variant in found.variants}
        own = tuple(here[variant.name] for variant in order.plan.variants)
        self._plan = order.plan.model_copy(update={"variants": own, "quality": order.quality})

    def drafts(self, load: LoadWorkers, logs: "_Logs") -> Iterator[Draft]:
        run = self._context(load)
        pace = _OrderPace(self._order, run_pace(self._plan, self._at))
        progress = Progress(
            self._plan, pace, baselines_of(self._plan), first_block=self._order.block, excused=self._order.excused
        )
        for trial in self._order.history:
            progress.add([trial])
            pace.memory.add(trial)
        while (group := progress.next_group()) is not None and group.block == self._order.block:
            self._observer.group_started(group, None)
            results = 0
            for draft in run_group(group, run, progress, logs.new_instance):
                yield draft  # it is on disk once the next one is asked for
                record = draft if isinstance(draft, InstanceRecord) else draft.record
                progress.add([record])
                if not isinstance(record, QualityRecord):
                    pace.memory.add(record)
                results += not isinstance(draft, InstanceRecord)
            if results == 0 and progress.next_group() == group:
                raise StoreError(f"{group.name} left no trial; see the logs in {logs.place}")

    def _context(self, load: LoadWorkers) -> RunContext:
        study = self._plan.study
        run = run_context(self._plan, self._store, self._folder, self._at, load=load, observer=self._observer)
        if study.quality is None:
            return run
        maker = run_kit_maker(study, self._store, self._folder, self._at.home)
        asked = {self._plan.variant(config.variant) for config in self._order.quality}
        kits = {
            variant.model: maker.kit_of(self._materials[variant.model_name], variant.model, study.quality)
            for variant in asked
        }
        return replace(run, quality=kits)


class _OrderPace:
    """A `measure.progress.Pace`: the driver decided, but for who fits into the memory of this machine."""

    def __init__(self, order: BlockOrder, memory: StudyPace) -> None:
        self._order, self._points, self.memory = order, order.points, memory

    def rounds(self, block: int) -> int:
        return self._order.rounds if block == self._order.block else 0

    def is_open(self, point: Point, block: int) -> bool:  # noqa: ARG002
        return point in self._points

    def basis(self, block: int) -> int:
        return block

    def fit_together(self, configs: Iterable[Config]) -> bool:
        return self.memory.fit_together(configs)


class _Logs:
    """Of instances that run here, until the driver has them."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self._files = SafeFolder(place)
        self._read: dict[str, int] = {}  # bytes, by instance

    def new_instance(self) -> tuple[str, Path]:
        name = f"i{len(self._read) + 1:04d}"
        self._read[name] = 0
        return name, self._files.create(f"{name}.log")

    def gained(self) -> dict[str, bytes]:
        found = {name: read_bytes(self.place / f"{name}.log")[already:] for name, already in self._read.items()}
        for name, content in found.items():
            self._read[name] += len(content)
        return {name: content for name, content in found.items() if content}


class _Activity(LogObserver):
    """Keeps what is going on, for whoever asks."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def group_started(self, group: Group, remaining_s: float | None) -> None:  # noqa: ARG002
        self._node.activity = f"starting {group.name}"

    def trial_started(self, point: Point, index: int, *, warmup: bool) -> None:
        self._node.activity = f"{point.name}, {'warm-up' if warmup else f'trial {index + 1}'}"

    def quality_running(self, config: Config, step: str) -> None:
        self._node.activity = f"{config.name}: quality, {step}"

    def note(self, message: str) -> None:
        self._node.activity = message


PIECE_BYTES = 8 * 2**20  # of a file of rows on its way: a sign of life fits between two pieces
_ROWS = "rows.parquet"


@dataclass(frozen=True)
class LoadPart:
    order: LoadOrder
    task: WorkerTask

    @property
    def id(self) -> str:
        return self.order.id

    @classmethod
    def read(cls, asked: Message) -> "LoadPart":
        """Raises FleetError, which repeats nothing of what was sent: a key is in it."""
        try:
            return cls(LoadOrder.model_validate_json(asked.header.record), decode_task_frame(asked.parts[0]))
        except (ValidationError, IndexError):
            said = f"it does not understand the order; is its bitbench ({__version__}) the driver's?"
            raise FleetError(said) from None

    def require_same(self) -> None:
        """Raises FleetError where this machine would send something else than the others think."""
        order, workload = self.order, self.task.job.workload
        here = {"orders": str(LOAD_ORDER_FORMAT), "bitbench": __version__, "numpy": np.__version__}
        there = {"orders": str(order.format), "bitbench": order.bitbench, "numpy": order.numpy}
        differing = [f"{name} {here[name]} instead of {there[name]}" for name in here if here[name] != there[name]]
        try:
            files = hash_input_files([workload], self.task.job.folder)
        except OSError as error:
            raise FleetError(f"{error.filename} cannot be read there: {error.strerror}") from None
        differing += [f"another {name}" for name in order.files if files.get(name) != order.files[name]]
        if differing:
            raise FleetError(f"it is not set up like the driver ({'; '.join(differing)})")

    def results(self, node: Node) -> Iterator[Message]:
        """Its report, then its rows piece by piece, each when it is asked for."""
        self.require_same()
        task = self.task

        def choose_zero() -> float:
            node.say_started()
            return node.wait_for_zero()

        tell = node.tell if task.report else None
        result = node.load.run(task.job, part=task.part, choose_zero=choose_zero, on_snapshots=tell)
        with tempfile.TemporaryDirectory(prefix="bitbench-load-") as place:
            with SafeFolder(Path(place)).replacing(_ROWS, 0o600) as file:
                pq.write_table(result.requests, file, compression="zstd", write_page_checksum=True)
            report = PartReport.of(result)
            del result
            yield channel_message("draft", draft="load", order=self.id, seq=0, record=report.model_dump_json())
            with open_to_read(Path(place) / _ROWS) as file:
                seq = 1
                while piece := file.read(PIECE_BYTES):
                    yield channel_message("draft", piece, draft="rows", order=self.id, seq=seq)
                    seq += 1

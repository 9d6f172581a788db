"""The node program: `python -m bitbench.lab.node [SLOT]`, a driver on stdin and stdout, one order at a time.

An order is a block of a study, which needs the study's environments and models on this machine, or a part of the
requests of a trial. Results go to the driver one by one, each when it is asked for. It ends, with its engines and load
workers, when the driver is gone, or was silent for a minute.
"""

import contextlib
import os
import queue
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Protocol

from pydantic import ValidationError

from bitbench import __version__
from bitbench.core.cell import Cell, Contender, Group, Purpose
from bitbench.core.order import ORDER_FORMAT, Order
from bitbench.core.recorded.quality import QualityMaterial
from bitbench.core.recorded.trial import InstanceRecord
from bitbench.fleet.channel import LARGEST_FRAME_BYTES
from bitbench.fleet.machine_lock import MachineBusy, MachineLock
from bitbench.fleet.messages import SILENCE_S, Message, decode, encode, message
from bitbench.ground import machine_faults
from bitbench.ground.errors import BitbenchError, FleetError
from bitbench.ground.frames import read_frame, write_frame
from bitbench.ground.safe_files import SafeFolder, read_bytes
from bitbench.lab.deliveries import MATERIALS, pack
from bitbench.lab.executor import BlockWork
from bitbench.lab.group import Draft
from bitbench.lab.load_part import LoadPart, PartProgress
from bitbench.lab.observer import LogObserver
from bitbench.lab.orders import differences
from bitbench.lab.pace import StudyPace
from bitbench.lab.quality import QualityDraft
from bitbench.lab.source import StudySource
from bitbench.lab.study import Lab
from bitbench.lab.trial import TrialDraft
from bitbench.lab.variants import Workshop
from bitbench.load.progress import Snapshot
from bitbench.load.workers import LoadWorkers
from bitbench.planning.schedule import Progress
from bitbench.planning.write_study import study_text
from bitbench.statistics.standing import baseline_of

SLOT_VARIABLE = "BITBENCH_MACHINE_SLOT"  # where several simulated machines are one
END_S = 20.0  # to end an engine and the load client; what is left then ends with this process
_KILLED_FIRST = "/proc/self/oom_score_adj"
# What a cluster's worker processes carry, and a program that measures must not.
_FOREIGN = ("RAY_", "OMP_NUM_THREADS", "PYTHONUNBUFFERED")


def main() -> None:
    requests, results = os.fdopen(os.dup(0), "rb", buffering=0), os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), 0)  # no child may read what is meant for this program
    os.dup2(2, 1)  # whatever prints must not write into the results
    for name in [name for name in os.environ if name.startswith(_FOREIGN)]:
        del os.environ[name]
    with contextlib.suppress(OSError):  # a cluster may have made its workers the first to be killed
        os.write(os.open(_KILLED_FIRST, os.O_WRONLY | os.O_CLOEXEC), b"0")
    slot = "".join(sys.argv[1:2]) or os.environ.get(SLOT_VARIABLE, "")
    Node(requests, results, slot).serve()


class NodeJob(Protocol):
    """What an order asks for."""

    @property
    def id(self) -> str: ...

    def results(self, node: "Node") -> Iterator[Message]:
        """Drafts, each made when it is asked for. Everything that can be refused happens before `say_started`."""


class Node:
    """The main thread works; another one listens, and answers at once whatever is going on."""

    def __init__(self, requests: IO[bytes], results: IO[bytes], slot: str) -> None:
        self._requests, self._results, self._slot = requests, results, slot
        self._sending = threading.Lock()
        self._jobs: queue.SimpleQueue[NodeJob] = queue.SimpleQueue()
        self._state = threading.Condition()
        self._order = ""  # the id of that under way, or of the last one
        self._started = False
        self._is_idle = True
        self._asked = -1  # the number of the newest result that was asked for
        self._offered: Message | None = None  # the newest result, until the one after it is asked for
        self._zero_ns: int | None = None  # of the load under way, once it is known
        self.load = LoadWorkers()  # started when a load is ordered
        self._heard_at = time.monotonic()  # when the driver was
        self.activity = "idle"

    def serve(self) -> None:
        threading.Thread(target=self._listen, daemon=True).start()
        threading.Thread(target=self._watch, daemon=True).start()
        with contextlib.ExitStack() as stack:
            stack.push(self.load)
            try:
                while True:
                    self._work(self._jobs.get())
            except KeyboardInterrupt:
                return

    def _listen(self) -> None:
        try:
            is_wanted = True
            while is_wanted:
                frame = read_frame(self._requests, LARGEST_FRAME_BYTES)
                at_ns = time.monotonic_ns()
                self._heard_at = at_ns / 1e9
                is_wanted = self._answer(decode(frame), at_ns)
        except (EOFError, OSError, ValueError, FleetError):
            pass  # the driver is gone, or no driver
        self._end()

    def _watch(self) -> None:
        """Beside the listener, which cannot answer, and hears nothing more, where a cut cable keeps a result from
        leaving."""
        while (patience_s := self._heard_at + SILENCE_S - time.monotonic()) > 0:
            time.sleep(patience_s)
        self._end()

    def _end(self) -> None:
        patience = threading.Timer(END_S, os._exit, (1,))
        patience.daemon = True
        patience.start()
        os.kill(os.getpid(), signal.SIGINT)  # the way by which a study is stopped by hand

    def _answer(self, asked: Message, at_ns: int) -> bool:
        """`at_ns`: when it was asked. False: it is told to end."""
        header = asked.header
        if header.kind == "hello":
            self._send(message("hello", bitbench=__version__, host=Lab().host()))
        elif header.kind == "ping":
            self._send(message("pong", order=self._order, said=self.activity))
        elif header.kind == "clock":
            self._send(message("clock", seq=header.seq, clock_ns=(at_ns, time.monotonic_ns())))
        elif header.kind == "go":
            self._go(header.order, header.clock_ns)
        elif header.kind == "start":
            self._begin(asked)
        elif header.kind == "next":
            self._next(header.order, header.seq)
        return header.kind != "stop"

    def _begin(self, asked: Message) -> None:
        with self._state:
            if self._order == asked.header.order:
                if self._started:
                    self._send(message("started", order=self._order))
                return
            if not self._is_idle:
                self._refuse(asked.header.order, f"it works on order {self._order}", is_passing=True)
                return
            try:
                job = LoadPart.read(asked) if asked.header.work == "load" else BlockJob.read(asked)
            except FleetError as error:
                self._refuse(asked.header.order, str(error))
                return
            self._order, self._started, self._is_idle = job.id, False, False
            self._asked, self._offered, self._zero_ns = -1, None, None
        self._jobs.put(job)

    def _next(self, order: str, seq: int) -> None:
        with self._state:
            if order != self._order:
                return
            if self._offered is not None and self._offered.header.seq == seq:
                self._send(self._offered)
            elif seq == self._asked + 1:
                self._asked, self._offered = seq, None
                self._state.notify_all()

    def _go(self, order: str, clock_ns: Sequence[int]) -> None:
        with self._state:
            if order == self._order and clock_ns:
                self._zero_ns = clock_ns[0]
                self._state.notify_all()

    def _work(self, job: NodeJob) -> None:
        seq = 0
        self.activity = "preparing"
        try:
            with MachineLock(self._slot):
                for one in job.results(self):
                    self._offer(one)
                    seq += 1
            self._offer(message("end", order=job.id, seq=seq))
        except Exception as error:
            if self._started:
                self._offer(message("failed", order=job.id, seq=seq, said=_sentence(error)))
            else:
                busy = isinstance(error, MachineBusy)
                said = "another block or load runs on it" if busy else _sentence(error)
                self._end_order(message("refused", order=job.id, said=said, is_passing=busy))

    def say_started(self) -> None:
        """All is well, and prepared."""
        with self._state:
            self._started = True
            self._send(message("started", order=self._order))

    def wait_for_zero(self) -> float:
        """On this machine's clock, in seconds."""
        with self._state:
            self._state.wait_for(lambda: self._zero_ns is not None)
            assert self._zero_ns is not None
            return self._zero_ns / 1e9

    def tell(self, snapshots: Sequence[Snapshot]) -> None:
        told = PartProgress(workers=tuple(snapshots))
        self._send(message("progress", order=self._order, record=told.model_dump_json()))

    def _offer(self, result: Message) -> None:
        """Send a result that was asked for, and wait until the next is."""
        self.wait_until_asked(result.header.seq)
        if result.header.kind != "draft":
            self._end_order(result)
            return
        with self._state:
            self._offered = result
            self._send(result)
            self._state.wait_for(lambda: self._asked > result.header.seq)

    def _end_order(self, last: Message) -> None:
        with self._state:
            self._is_idle, self.activity = True, "idle"
            self._offered = last
            if last.header.kind == "refused":
                self._order = ""  # it may be given again
            self._send(last)

    def wait_until_asked(self, seq: int) -> None:
        with self._state:
            self._state.wait_for(lambda: self._asked >= seq)

    def _refuse(self, order: str, why: str, *, is_passing: bool = False) -> None:
        self._send(message("refused", order=order, said=why, is_passing=is_passing))

    def _send(self, one: Message) -> None:
        with self._sending, contextlib.suppress(OSError):  # the listener sees that the driver is gone
            write_frame(self._results, encode(one))


class BlockJob:
    def __init__(self, order: Order, materials: dict[str, QualityMaterial]) -> None:
        self._order, self._materials = order, materials

    @property
    def id(self) -> str:
        return self._order.id

    @classmethod
    def read(cls, asked: Message) -> "BlockJob":
        """Raises FleetError."""
        try:
            materials = MATERIALS.validate_json(asked.parts[0]) if asked.parts else {}
            return cls(Order.model_validate_json(asked.header.record), materials)
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
                yield pack(draft, self.id, seq, logs.gained())


class _Work:
    """A block on this machine: what the order says, with what is here."""

    def __init__(self, order: Order, materials: dict[str, QualityMaterial], node: Node) -> None:
        if order.format != ORDER_FORMAT:
            raise FleetError(f"it reads orders of format {ORDER_FORMAT}, not {order.format}; install the same bitbench")
        self._order, self._materials = order, materials
        self._lab, self._observer = Lab(), _Activity(node)
        folder = Path(order.folder)
        self._source = StudySource(order.plan.study, study_text(order.plan.study), folder)
        self._workshop = Workshop(self._lab.home, folder)
        found = self._lab.ready_plan(self._source, self._workshop, self._observer)
        resolved = self._lab.runner.resolve(found, folder, self._lab.host())
        if changes := differences(order, resolved, found):
            raise FleetError(f"it is not set up like the driver ({'; '.join(changes)})")
        here = {variant.name: variant for variant in found.variants}
        own = tuple(here[variant.name] for variant in order.plan.variants)
        self._plan = order.plan.model_copy(update={"variants": own, "quality": order.quality})

    def drafts(self, load: LoadWorkers, logs: "_Logs") -> Iterator[Draft]:
        bench = self._lab.runner.bench(self._plan.study, load, self._workshop, self._source.folder)
        quality = self._plan.study.quality
        if quality is not None:
            maker = self._lab.runner.kit_maker(bench, self._workshop)
            models = {self._plan.variant(one.variant) for one in self._order.quality}
            kits = {one.model: maker.kit_of(self._materials[one.model_name], one.model, quality) for one in models}
            bench = replace(bench, quality=kits)
        pace = _OrderPace(self._order, self._lab.runner.pace(self._plan, bench.engines))
        progress = Progress(
            self._plan, pace, baseline_of(self._plan), first_block=self._order.block, excused=self._order.excused
        )
        for trial in self._order.history:
            progress.add([trial])
            pace.memory.add(trial)
        work = BlockWork(self._plan, bench, progress, self._observer, logs.new_instance, logs.place)
        for draft in work.drafts(self._order.block):
            yield draft
            record = draft.record if isinstance(draft, TrialDraft | QualityDraft) else draft
            progress.add([record])
            if isinstance(draft, TrialDraft | InstanceRecord):
                pace.memory.add(draft.record if isinstance(draft, TrialDraft) else draft)


class _OrderPace:
    """A `planning.schedule.Pace`: the driver decided, but for who fits into the memory of this machine."""

    def __init__(self, order: Order, memory: StudyPace) -> None:
        self._order, self._cells, self.memory = order, order.cells, memory

    def rounds(self, block: int) -> int:
        return self._order.rounds if block == self._order.block else 0

    def is_open(self, cell: Cell, block: int) -> bool:  # noqa: ARG002
        return cell in self._cells

    def purpose(self, block: int) -> Purpose:  # noqa: ARG002
        return self._order.purpose

    def basis(self, block: int) -> int:
        return block

    def fit_together(self, contenders: Iterable[Contender]) -> bool:
        return self.memory.fit_together(contenders)


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

    def trial_started(self, cell: Cell, index: int, *, warmup: bool) -> None:
        self._node.activity = f"{cell.name}, {'warm-up' if warmup else f'trial {index + 1}'}"

    def quality_running(self, contender: Contender, step: str) -> None:
        self._node.activity = f"{contender.name}: quality, {step}"

    def note(self, message: str) -> None:
        self._node.activity = message


def _sentence(error: Exception) -> str:
    if isinstance(error, BitbenchError):
        return str(error)
    traceback.print_exception(error)
    if isinstance(error, OSError) and (fault := machine_faults.explain(error)) is not None:
        return fault
    return f"unexpected {type(error).__name__}: {error}"


if __name__ == "__main__":
    main()

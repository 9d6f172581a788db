"""Node programs in this process that answer at once, with requests that took milliseconds; and what they may change of
each message before it leaves."""

from collections import Counter, deque
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from time import monotonic_ns
from zlib import crc32

import pyarrow as pa
import pyarrow.parquet as pq

from bitbench import __version__
from bitbench.analysis.objectives import judge_objectives
from bitbench.analysis.trial import metrics_of_trial
from bitbench.features.fleet.channel import (
    ChannelClosed,
    Message,
    Seat,
    channel_message,
    decode_channel_message,
    encode_channel_message,
)
from bitbench.features.fleet.orders import MATERIALS, BlockOrder, PartReport, pack_fleet_order_result
from bitbench.loadgen.client import WHOLE, WorkerPart
from bitbench.loadgen.health import client_health
from bitbench.loadgen.progress import LatencySketch, Snapshot
from bitbench.loadgen.requests import plan_requests
from bitbench.loadgen.workers import WorkerTask, decode_task_frame
from bitbench.measure.group import Draft
from bitbench.measure.quality import QualityDraft
from bitbench.measure.trial import TrialDraft
from bitbench.ports import Endpoint, LoadJob, LoadResult, Vocabulary
from bitbench.quality.measure import _score_table
from bitbench.records.lock import Accelerator, HostFacts
from bitbench.records.quality import (
    Answer,
    ConversationRecord,
    CorpusFacts,
    Prompt,
    QualityMaterial,
    QualityRecord,
    Script,
    TurnAnswer,
    TurnPrompt,
)
from bitbench.records.trial import InstanceFacts, InstanceRecord, Memory, Outcome, TrialRecord, WorkerHealth
from bitbench.study.plan import Config, Point
from bitbench.util.errors import FleetError
from tests.unit.synthetic import request_rows

HOST = HostFacts(
    cpu_model="X",
    cpu_flags=("avx2",),
    cores=4,
    threads=8,
    memory_bytes=64 * 2**30,
    accelerators=(Accelerator(name="G", memory_bytes=2**34, capability="8.9", power_limit_w=300.0),),
)
DURATION_S = 0.02
HEALTH = client_health(
    [WorkerHealth(send_lateness_p99_s=1e-5, loop_lag_p99_s=1e-5, cpu_share=0.1, kernel_times=True, clock_step_s=-1e-6)]
)
MATERIAL = QualityMaterial(
    facts=CorpusFacts(description="made up", text_hash="t", windows_hash="w", windows=2, window_tokens=4, room=8),
    windows=((1, 2, 3, 4), (5, 6, 7, 8)),
    prompts=(Prompt(text="why?", tokens=(1, 2)), Prompt(text="go on", tokens=(5,))),
    scripts=(Script(name="s", task="t", turns=(TurnPrompt(kept=0, tokens=(1,)), TurnPrompt(kept=1, tokens=(2,)))),),
    end_tokens=(0,),
)
Lie = Callable[[Message], bytes | None]  # a frame to send instead; None: the message as it is


class ScriptedNode:
    """A `fleet.channel.Channel` to a node program whose results are made at once. `lie` is asked about each message
    until it gave so many `lies`."""

    def __init__(self, on_arrival: Callable[[], None], lie: Lie = lambda _: None, lies: int = 1) -> None:
        self._on_arrival, self._lie, self._lies = on_arrival, lie, lies
        self._sent: deque[bytes] = deque()
        self._results: list[Message] = []
        self._task: WorkerTask | None = None
        self._empty, self._has_lied = 0, False

    def send(self, one: Message) -> None:
        header = one.header
        if header.kind == "hello":
            self._say(channel_message("hello", bitbench=__version__, host=HOST))
        elif header.kind == "ping":
            self._say(channel_message("pong", said="working"))
        elif header.kind == "clock":
            self._say(channel_message("clock", seq=header.seq, clock_ns=(monotonic_ns(), monotonic_ns())))
        elif header.kind == "start":
            self._begin(one)
            self._say(channel_message("started", order=header.order))
        elif header.kind == "go":
            self._say(channel_message("progress", order=header.order, record=progress_of(self._task)))
        elif header.kind == "next":
            result = self._results[header.seq]
            named = result.header.model_copy(update={"order": header.order, "seq": header.seq})
            self._say(Message(named, result.parts))

    def _begin(self, one: Message) -> None:
        if one.header.work == "load":
            self._task = decode_task_frame(one.parts[0])
            self._results = load_results(self._task)
        else:
            self._results = block_results(
                BlockOrder.model_validate_json(one.header.record), MATERIALS.validate_json(one.parts[0])
            )

    def _say(self, one: Message) -> None:
        frame = self._lie(one) if self._lies else None
        self._lies -= frame is not None
        self._has_lied = self._has_lied or frame is not None
        self._sent.append(encode_channel_message(one) if frame is None else frame)
        self._on_arrival()

    def receive(self) -> Message | None:
        if not self._sent:
            self._empty += 1
            if self._has_lied and self._empty > 200:  # what it said was swallowed: it would be waited for
                raise ChannelClosed("it says nothing more")
            return None
        try:
            found = decode_channel_message(self._sent.popleft())
        except FleetError as error:  # as the channels do
            self._sent.clear()
            raise ChannelClosed(str(error)) from None
        self._empty = 0 if found.header.kind != "pong" else self._empty
        return found

    def close(self) -> None: ...


def seat(name: str, lie: Lie = lambda _: None, lies: int = 1) -> Seat:
    return Seat(name, name, lambda on_arrival: ScriptedNode(on_arrival, lie, lies))


def block_results(order: BlockOrder, materials: dict[str, QualityMaterial]) -> list[Message]:
    """Of an order: what a node program would send, one after the other."""
    made = [*_drafts(order, materials)]
    logs = [{draft.id: b"a line\n"} if isinstance(draft, InstanceRecord) else {} for draft in made]
    drafts = [
        pack_fleet_order_result(draft, order.id, seq, gained)
        for seq, (draft, gained) in enumerate(zip(made, logs, strict=True))
    ]
    return [*drafts, channel_message("end", order=order.id)]


def _drafts(order: BlockOrder, materials: dict[str, QualityMaterial]) -> Iterator[Draft]:
    before = [trial for trial in order.history if trial.block == order.block and trial.kind == "measured"]
    indices, counted = Counter(one.point for one in before), Counter(one.point for one in before if one.counts)
    instances = {config: f"i{place:04d}" for place, config in enumerate(order.plan.configs, start=1)}
    for config, name in instances.items():
        yield _instance(config, name, order.block)
        for point in order.plan.points:
            if point.config == config and order.rounds:
                yield _trial(order, point, name, indices[point], None)
    for number in range(order.rounds):
        for point in order.plan.points:
            if counted[point] <= number:
                yield _trial(order, point, instances[point.config], indices[point], number)
                indices[point] += 1
    for config in order.quality:
        yield _quality(order, config, instances[config], next(iter(materials.values())))


def _instance(config: Config, name: str, block: int) -> InstanceRecord:
    return InstanceRecord(
        id=name,
        config=config,
        block=block,
        started_at=_now(),
        ready_s=DURATION_S,
        outcome=Outcome.OK,
        facts=InstanceFacts(engine_version="1.0", versions={"null": "1.0"}, command=("null", "--x"), notes=("n",)),
        memory=Memory(resident_bytes=2**20, peak_bytes=2**21),
        log_file=f"logs/{name}.log",
    )


def _trial(order: BlockOrder, point: Point, instance: str, index: int, number: int | None) -> TrialDraft:
    """`number`: of its round; None for a warm-up."""
    study, kind = order.plan.study, "warmup" if number is None else "measured"
    workload = next(one for one in study.workloads if one.name == point.workload)
    asked = workload.warm_up if kind == "warmup" else workload
    seed = (study.seed, crc32(workload.name.encode()), order.block, index, int(kind == "warmup"))
    rows = rows_of(LoadJob(Endpoint("http://h:1", "m"), asked, Vocabulary(100), seed, 1.0, 1.0), speed=1.0 + index)
    return TrialDraft(
        TrialRecord.model_validate(
            {
                "id": "",
                "kind": kind,
                "point": point,
                "block": order.block,
                "index": index,
                "round": number,
                "residents": 1,
                "instance_id": instance,
                "started_at": _now(),
                "duration_s": DURATION_S,
                "outcome": Outcome.OK,
                "metrics": metrics_of_trial(rows, study.objectives),
                "objectives": judge_objectives(rows, study.objectives),
                "client": HEALTH,
                "requests": rows.num_rows,
                "memory": Memory(peak_bytes=2**21),
                "engine_metrics": {"queue_s": 0.1, "raw": {"a": -1.0}},
            }
        ),
        rows,
    )


def _quality(order: BlockOrder, config: Config, instance: str, material: QualityMaterial) -> QualityDraft:
    quality = order.plan.study.quality
    assert quality is not None
    places = [[{token: -1.0, 9: -0.5} for token in window[1:]] for window in material.windows]
    scores = _score_table(dict(enumerate(material.windows)), places, quality.top_tokens)
    answers = tuple(Answer(prompt=one.text, text="so", tokens=(3, 4)) for one in material.prompts)
    told = tuple(
        ConversationRecord(name=one.name, task=one.task, turns=len(one.turns), answers=(TurnAnswer(text="{}"),) * 2)
        for one in material.scripts
    )
    record = QualityRecord(
        id="",
        config=config,
        instance_id=instance,
        started_at=_now(),
        duration_s=DURATION_S,
        outcome=Outcome.OK,
        corpus=material.facts,
        top_tokens=quality.top_tokens,
        tokens=scores.num_rows,
        answers=answers,
        conversations=told,
    )
    return QualityDraft(record, scores)


def rows_of(job: LoadJob, part: WorkerPart = WHOLE, speed: float = 1.0) -> pa.Table:
    """Every request when it is due, or at once; with a token each 50 µs, or as much quicker."""
    found = []
    for request in plan_requests(job, part.owns):
        begin = request.at_s or 0.0
        chunks = [begin + 0.001 + 5e-5 / speed * place for place in range(request.asked_output_tokens or 1)]
        tokens = {"input_tokens": request.asked_input_tokens or 7, "output_tokens": len(chunks)}
        asked = {
            "asked_input_tokens": request.asked_input_tokens,
            "asked_output_tokens": request.asked_output_tokens,
        }
        times = {"planned_s": begin, "scheduled_s": request.at_s, "sent_s": begin + 1e-5, "end_s": chunks[-1] + 1e-5}
        found.append({"request": request.number, **times, "chunk_s": chunks, **asked, **tokens})
    return request_rows(*found)


def load_results(task: WorkerTask) -> list[Message]:
    rows = rows_of(task.job, task.part)
    report = PartReport.of(LoadResult(rows, HEALTH, "", DURATION_S))
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, compression="zstd", write_page_checksum=True)
    file = sink.getvalue().to_pybytes()
    pieces = [channel_message("draft", file[:1000], draft="rows"), channel_message("draft", file[1000:], draft="rows")]
    return [channel_message("draft", draft="load", record=report.model_dump_json()), *pieces, channel_message("end")]


def progress_of(task: WorkerTask | None) -> str:
    sketch = LatencySketch()
    sketch.add(0.01)
    counts = {"requests": 5, "sent": 1, "running": 0, "succeeded": 1, "failed": 0, "chunks": 3}
    told = Snapshot(elapsed_s=0.0, ttft=sketch.counts(), itl=sketch.counts(), health=HEALTH, **counts)
    return f'{{"workers":[{told.model_dump_json()}]}}' if task else "{}"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")

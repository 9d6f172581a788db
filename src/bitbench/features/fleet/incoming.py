"""What a machine of a fleet says, checked in this one place before anything is done with it.

It is read as strictly as a folder that somebody sent, has to belong to what was asked for, and is held against what
this machine knows itself: the plan, its own clock, and request rows against the figures that were made from them.
Whatever fails is RunLost with a sentence: the block is repeated elsewhere, and the study continues. docs/fleet.md says
what cannot be checked.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bitbench.analysis.trial import check_trial_figures
from bitbench.features.fleet.channel import Message, RunLost
from bitbench.features.fleet.orders import SKETCHED, BlockOrder, PartProgress, PartReport
from bitbench.loadgen.client import WorkerPart
from bitbench.loadgen.progress import Snapshot
from bitbench.loadgen.requests import Slot, request_slots
from bitbench.loadgen.verdict import CLOCK_STEP_S, load_verdict, moved_metrics
from bitbench.measure.group import MOST_ROUNDS, Draft
from bitbench.measure.progress import CLIENT_BOUND_REPEATS, DISTURBED_REPEATS
from bitbench.measure.quality import QualityDraft
from bitbench.measure.trial import TrialDraft, has_metrics, trial_draft_figures, trial_seed
from bitbench.ports import Endpoint, LoadJob, LoadResult, Vocabulary
from bitbench.quality.measure import windows_again
from bitbench.records.lock import HostFacts
from bitbench.records.quality import QUALITY_FORMAT, SCORE_COLUMNS, Condition, QualityMaterial, QualityRecord
from bitbench.records.request_rows import RequestRows
from bitbench.records.strict_reader import LARGEST_WHOLE_NUMBER, cause_of_damage, checked_record, parse_rows_strictly
from bitbench.records.tables import REQUEST_COLUMNS, REQUEST_STATUSES
from bitbench.records.trial import (
    NOT_THE_ENGINES,
    RECORD_FORMAT,
    InstanceRecord,
    Outcome,
    TrialMetrics,
    TrialRecord,
    WorkerHealth,
)
from bitbench.study.base import Json
from bitbench.study.plan import Config, Point
from bitbench.study.workload import MOST_REQUESTS, Trace, Workload, longest_length, shortest_length
from bitbench.util.http.response import AnswerLimits
from bitbench.util.text import quote

# Two clocks that run: crystals differ by a ten-thousandth, those of virtual machines by more; and a moment of delay.
CLOCK_SHARE, CLOCK_S = 0.01, 0.1
CLOCKS_APART = timedelta(days=1)  # of wall clocks: a machine that nobody set its clock on is not a liar yet
EPSILON_S = 2 * CLOCK_STEP_S  # a wall clock that was set by less goes unnoticed, and moves the kernel's times
MOST_CLOCK_NS = 2**61  # of uptime: 73 years
LONGEST_TEXT = 100_000  # characters in a record
LARGEST_LOG_BYTES = 2**28  # of an instance; what comes after is not kept
# Values that may be below zero: by the names of their fields, and whatever is below them.
SIGNED = frozenset({"growth", "clock_step_s", "raw", "value", "temperature_c"})
_TIMES = tuple(column.name for column in REQUEST_COLUMNS if column.arrow_type == "float64")
_NEVER_NULL = ("request", "planned_s", "end_s", "status", "chunk_s")
_COUNTS = ("asked_input_tokens", "asked_output_tokens", "input_tokens", "output_tokens", "cached_tokens",
           "timed_tokens")  # fmt: skip
_IN_ORDER = (
    ("planned_s", "sent_s"),
    ("sent_s", "first_token_s"),
    ("first_token_s", "first_answer_s"),
    ("first_answer_s", "last_token_s"),
    ("first_token_s", "last_token_s"),
    ("last_token_s", "end_s"),
    ("sent_s", "end_s"),
)


def clock_for_incoming_s() -> float:
    """This machine's, for how long others took; it goes on while this one sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def incoming_host_facts(hello: Message) -> HostFacts:
    with _refusing("facts about itself"):
        if hello.header.host is None:
            raise ValueError("there are none")
        facts = checked_record(hello.header.host.model_dump_json().encode(), HostFacts, 0)
        _check_values(facts.model_dump(mode="json"))
        for accelerator in facts.accelerators:
            accelerator.compute_capability  # noqa: B018 - raises ValueError
        return facts


class BlockResults:
    """Those of one order, in the sequence in which they come."""

    def __init__(self, order: BlockOrder, materials: Mapping[str, QualityMaterial]) -> None:
        """`materials`: what is asked about quality, by the name of a model."""
        self._order, self._materials = order, materials
        self._workloads = {workload.name: workload for workload in order.plan.study.workloads}
        before = [trial for trial in order.history if trial.block == order.block and trial.kind == "measured"]
        self._trials = Counter(trial.point for trial in before)
        self._known: dict[Point, list[TrialMetrics]] = defaultdict(
            list
        )  # of trials; by these a client's delay is judged
        for trial in before:
            if trial.outcome is not Outcome.LOST:
                self._known[trial.point].append(trial.metrics)
        self._warm: dict[tuple[str, str], TrialMetrics] = {}  # of the last warm-up of an instance on a workload
        self._warm_ups: Counter[tuple[str, str]] = Counter()  # of an instance on a workload
        self._rounds = 1 + max((trial.round for trial in before if trial.round is not None), default=-1)
        self._instances: dict[str, Config] = {}  # by the ids that the machine gave them
        self._log_bytes: Counter[str] = Counter()
        self._scored: set[tuple[Config, Condition]] = set()
        self._results = 0
        # Each point has its rounds and what is repeated of them, the baseline beside every other config, and each of
        # these results may have a start and rounds of warm-up of its own.
        plan, repeats = order.plan, CLIENT_BOUND_REPEATS + DISTURBED_REPEATS + 2
        self._most = 8 + (3 + MOST_ROUNDS) * len(plan.configs) * (1 + len(plan.points)) * (order.rounds + repeats)

    def take(self, delivered: Message, took_s: float) -> tuple[Draft, dict[str, bytes]]:
        """A result, and what logs gained, by the machine's names of its instances. `took_s`: since it was asked for.
        Raises RunLost."""
        header, parts = delivered.header, delivered.parts
        with _refusing(f"a result ({header.draft or 'of no kind'})"):
            _must(len(parts) == header.has_rows + len(header.logs), "parts of it are missing")
            _must(header.seq < self._most, f"it is number {header.seq:,} of a block that cannot have so many")
            rows = parts[0] if header.has_rows else None
            draft = self._draft(header.draft, header.record.encode(), rows, _allowed(took_s))
            logs = dict(zip(header.logs, parts[header.has_rows :], strict=True))
            started = {draft.id} if isinstance(draft, InstanceRecord) else set()
            _must(logs.keys() <= self._instances.keys() | started, "it has the log of an engine that was not started")
        self._note(draft)
        return draft, {name: self._kept(name, gained) for name, gained in logs.items()}

    def end(self) -> None:
        """Raises RunLost."""
        if not self._results:
            raise RunLost("it ended the block with no result")

    def _draft(self, kind: str | None, record: bytes, rows: bytes | None, within_s: float) -> Draft:
        if kind == "instance":
            _must(rows is None, "it has rows")
            return self._instance(checked_record(record, InstanceRecord, RECORD_FORMAT), within_s)
        if kind == "trial":
            return self._trial(checked_record(record, TrialRecord, RECORD_FORMAT), rows, within_s)
        _must(kind == "quality", "it is of another order")
        return self._quality(checked_record(record, QualityRecord, QUALITY_FORMAT), rows, within_s)

    def _note(self, draft: Draft) -> None:
        """For what comes after it."""
        if isinstance(draft, InstanceRecord):
            self._instances[draft.id] = draft.config
            return
        self._results += 1
        if isinstance(draft, QualityDraft):
            if draft.scores is not None:
                self._scored.add((draft.record.config, draft.record.condition))
        elif draft.record.kind == "warmup":
            self._warm_ups[draft.record.instance_id, draft.record.point.workload] += 1
            self._warm[draft.record.instance_id, draft.record.point.workload] = draft.record.metrics
        else:
            self._trials[draft.record.point] += 1
            self._known[draft.record.point].append(draft.record.metrics)
            self._rounds = max(self._rounds, 1 + (-1 if draft.record.round is None else draft.record.round))

    def _kept(self, name: str, gained: bytes) -> bytes:
        kept = gained[: max(0, LARGEST_LOG_BYTES - self._log_bytes[name])]
        self._log_bytes[name] += len(kept)
        return kept

    def _instance(self, record: InstanceRecord, within_s: float) -> InstanceRecord:
        self._check(record, record.block, record.ready_s, within_s)
        _must(record.config in self._order.plan.configs, f"{record.config.name} is not in the study")
        _must(record.id not in self._instances, f"{record.id} was started before")
        _must((record.ready_s is None) == (record.outcome is not Outcome.OK), "ready_s does not fit its outcome")
        return record

    def _trial(self, record: TrialRecord, content: bytes | None, within_s: float) -> TrialDraft:
        order, point = self._order, record.point
        self._check(record, record.block, record.duration_s, within_s)
        _must(point in order.plan.points, f"{point.name} is not in the study")
        _must(self._instances.get(record.instance_id) == point.config, "it is of an engine that was not started")
        _must(record.index == self._trials[point], f"its index is {record.index}, not {self._trials[point]}")
        _must(record.round is None or record.round <= self._rounds, f"its round is {record.round}")
        _must(record.turn == 0 or (record.turn == 1 and record.round is not None), f"its turn is {record.turn}")
        _must(not record.sketched and not (record.client and record.client.nodes), "it is of several machines")
        is_ok = record.outcome is Outcome.OK
        _must(is_ok or record.kind == "measured", "it is a warm-up that failed")
        if content is None:
            figures = record.metrics, record.objectives, record.requests, record.failed_requests
            _must(not is_ok and figures == (TrialMetrics(), None, 0, 0), "it has figures without rows")
            _must(not record.uncertain, "it has uncertain metrics without rows")
            return TrialDraft(record)
        return self._with_rows(record, content)

    def _with_rows(self, record: TrialRecord, content: bytes) -> TrialDraft:
        """With its rows, and the figures that are made of them here."""
        study, workload = self._order.plan.study, self._workloads[record.point.workload]
        client, duration_s = record.client, record.duration_s
        if client is None or duration_s is None:
            raise ValueError("its client or its duration is missing")
        rows = parse_rows_strictly(content, REQUEST_COLUMNS, *_most_requests(workload))
        _check_requests(rows, duration_s, client)
        is_ok = record.outcome is Outcome.OK
        if is_ok:
            _must(rows.num_rows > 0, "it has no request")
            asked = workload.warm_up if record.kind == "warmup" else workload
            number = self._warm_ups[record.instance_id, workload.name]
            place = {"block": record.block, "index": record.index, "warm_up_round": number}
            seed = trial_seed(study, workload, record.kind, **place)
            nowhere, no_words, folder = Endpoint("", ""), Vocabulary(1), Path(self._order.folder)
            _check_plan(rows, asked, request_slots(LoadJob(nowhere, asked, no_words, seed, 0.0, 0.0, folder)))
            warm = self._warm.get((record.instance_id, workload.name))
            known = [*([warm] if warm else []), *self._known[record.point]]
            verdict = load_verdict(rows, asked, client, study.measure.metric, known)
            moved = () if record.kind == "warmup" else tuple(moved_metrics(rows, asked, client, known))
            _must(record.uncertain == moved, "its uncertain metrics are not those of its rows")
            is_excused = record.kind == "warmup" and verdict is not None and verdict.outcome in NOT_THE_ENGINES
            _must(verdict is None or is_excused, f"it does not count by its rows: {verdict and verdict.cause}")
        has_figures = has_metrics(record.outcome, rows, client)
        found = record.model_copy(update=trial_draft_figures(rows, study, record.energy_j, has_metrics=has_figures))
        _, different = check_trial_figures(record.model_dump(mode="json"), found.model_dump(mode="json"))
        _must(not different, f"its figures are not those of its rows ({''.join(different[:1])})")
        return TrialDraft(found, rows)

    def _quality(self, record: QualityRecord, content: bytes | None, within_s: float) -> QualityDraft:
        self._check(record, self._order.block, record.duration_s, within_s)
        _must(record.config in self._order.quality, f"the quality of {record.config.name} was not asked for")
        _must(self._instances.get(record.instance_id) == record.config, "it is of an engine that was not started")
        _must((record.config, record.condition) not in self._scored, "it came before")
        _must((record.outcome is Outcome.OK) == (content is not None), "its rows do not fit its outcome")
        return QualityDraft(record, None if content is None else self._scores(record, content))

    def _scores(self, record: QualityRecord, content: bytes) -> pa.Table:
        plan = self._order.plan
        material = self._materials[plan.variant(record.config.variant).model_name]
        quality = plan.study.quality
        assert quality is not None  # it was asked for
        windows = material.windows if record.condition is Condition.ALONE else material.short_windows
        is_again = record.condition is Condition.RESTARTED
        places = [
            (number, position, token)
            for number in (windows_again(len(windows)) if is_again else range(len(windows)))
            for position, token in enumerate(windows[number][1:], start=1)
        ]
        rows = parse_rows_strictly(content, SCORE_COLUMNS, len(places), len(places) * (4 + 2 * quality.top_tokens))
        found = zip(*(rows[name].to_pylist() for name in ("window", "position", "token")), strict=True)
        _must([*found] == places, "its rows are not of the text that was asked for")
        _must(rows["logprob"].null_count == 0, "a log-probability is missing")
        lengths = [pc.list_value_length(rows[name]) for name in ("top_tokens", "top_logprobs")]
        _must(lengths[0].equals(lengths[1]) and lengths[0].null_count == 0, "its likeliest tokens do not fit together")
        _must(record.tokens == rows.num_rows and record.corpus == material.facts, "it is of another text")
        _must(record.top_tokens == quality.top_tokens, "it has others than the likeliest tokens that were asked for")
        if record.condition is Condition.ALONE:
            asked = [prompt.text for prompt in material.prompts]
            answered = [answer.prompt for answer in record.answers]
            _must(answered == asked, "its answers are to other prompts")
            scripts = [(script.name, script.task, len(script.turns)) for script in material.scripts]
            told = [(conversation.name, conversation.task, conversation.turns) for conversation in record.conversations]
            _must(told == scripts, "its conversations are others than those that were asked for")
            questions = [(question.task, question.name) for question in material.questions]
            said = [(answer.task, answer.question) for answer in record.task_answers[: len(questions)]]
            _must(said == questions, "its answers to tasks are to other questions")
        return rows

    def _check(
        self, record: InstanceRecord | TrialRecord | QualityRecord, block: int, took_s: float | None, within_s: float
    ) -> None:
        """What holds for every record."""
        is_warmup = isinstance(record, TrialRecord) and record.kind == "warmup"  # its figures are used nowhere
        _check_values(record.model_dump(mode="json", exclude={"metrics"} if is_warmup else None))
        _must(record.format in (RECORD_FORMAT, QUALITY_FORMAT), f"its format is {record.format}")
        _must(block == self._order.block, f"it is of block {block + 1}, not of {self._order.name}")
        _must(record.outcome is not Outcome.LOST, "only a driver says that a machine was lost")
        _must((record.outcome is Outcome.OK) == (record.cause is None), "its cause does not fit its outcome")
        _must(took_s is None or took_s <= within_s, f"it took {took_s} s, but came within {within_s:.1f} s")
        if record.started_at is None:
            raise ValueError("it does not say when it started")
        started_at = datetime.fromisoformat(record.started_at)
        is_near = started_at.tzinfo is not None and abs(started_at - datetime.now(UTC)) <= CLOCKS_APART
        _must(is_near, f"started_at is {record.started_at}, more than a day from the clock here")


def incoming_clock_reading(answer: Message, sent_ns: int, arrived_ns: int) -> tuple[int, int]:
    """When its clock says that it was asked and answered; ours says when the question left and the answer came."""
    with _refusing("a reading of its clock"):
        asked_ns, answered_ns = answer.header.clock_ns if len(answer.header.clock_ns) == 2 else (0, -1)
        _must(max(abs(asked_ns), abs(answered_ns)) < MOST_CLOCK_NS, "it is too far from any that runs")
        most_ns = (arrived_ns - sent_ns) * (1 + CLOCK_SHARE)
        _must(0 <= answered_ns - asked_ns <= most_ns, "it took longer to answer than the answer took to come")
        return asked_ns, answered_ns


def incoming_load_progress(delivered: Message, since_zero_s: float) -> tuple[Snapshot, ...]:
    with _refusing("progress of its load"):
        told = checked_record(delivered.header.record.encode(), PartProgress, 0)
        _check_values(told.model_dump(mode="json"))
        elapsed_s = max((worker.elapsed_s for worker in told.workers), default=0.0)
        _must(elapsed_s <= _allowed(since_zero_s), f"it goes on for {elapsed_s} s already")
        return told.workers


def incoming_part_report(delivered: Message, since_zero_s: float) -> PartReport:
    with _refusing("a report of its requests"):
        report = checked_record(delivered.header.record.encode(), PartReport, 0)
        _check_values(report.model_dump(mode="json"))
        _must(report.sketches.keys() == set(SKETCHED), "it sketches other times")
        _must(bool(report.health.workers) and not report.health.nodes, "its client did not work")
        _must(report.duration_s <= _allowed(since_zero_s), f"it took {report.duration_s} s, which have not passed")
        return report


def incoming_part_rows(content: bytes, report: PartReport, job: LoadJob, part: WorkerPart) -> LoadResult:
    """The rows of a machine that has `part` of a load."""
    with _refusing("request rows"):
        rows = parse_rows_strictly(content, REQUEST_COLUMNS, *_most_requests(job.workload))
        _must(rows.num_rows == report.requests, f"there are {rows.num_rows:,} of {report.requests:,}")
        _check_requests(rows, report.duration_s, report.health)
        slots = request_slots(job)
        _check_plan(rows, job.workload, slots)
        numbers = rows["request"].to_pylist()
        _must(all(part.owns(number, slots[number].stream) for number in numbers), "some are another machine's")
        result = LoadResult(rows, report.health, "", report.duration_s)
        _must(PartReport.of(result).sketches == report.sketches, "its sketches are not those of its rows")
        return result


def _allowed(passed_s: float) -> float:
    return passed_s * (1 + CLOCK_SHARE) + CLOCK_S


def _most_requests(workload: Workload) -> tuple[int, int]:
    """Rows of a trial, and values in all of their columns: no more chunks than events are read."""
    rows, events = (
        workload.request_count or MOST_REQUESTS,
        AnswerLimits.of(longest_length(workload.output_tokens), 0).events,
    )
    return rows, rows * (len(REQUEST_COLUMNS) + events)


def _check_requests(rows: pa.Table, duration_s: float, client: WorkerHealth) -> None:
    """What holds for the rows of every client, whatever became of its requests."""
    _must(not any(rows[name].null_count for name in _NEVER_NULL), "some have gaps")
    numbers = rows["request"].to_numpy()
    _must(bool((np.diff(numbers, prepend=-1) > 0).all()), "they are not in their order")
    _must(set(pc.unique(rows["status"]).to_pylist()) <= set(REQUEST_STATUSES), "one has a status that is none")
    _must(all(_all(pc.greater_equal(rows[name], 0)) for name in _COUNTS), "one has less than no tokens")
    chunks = pc.list_flatten(rows["chunk_s"])
    times = {**{name: rows[name] for name in _TIMES}, "chunk_s": chunks}
    _must(chunks.null_count == 0 and all(_all(pc.is_finite(column)) for column in times.values()), "a time is none")
    if abs(client.clock_step_s) > CLOCK_STEP_S:
        return  # no trial with a clock that was set meanwhile counts
    for name, column in times.items():
        inside = pc.and_(pc.greater_equal(column, -EPSILON_S), pc.less_equal(column, duration_s + EPSILON_S))
        _must(_all(inside), f"{name} is not within the {duration_s} s that it took")
    ok = rows.filter(pc.equal(rows["status"], "ok"))
    _must(not any(ok[name].null_count for name in ("sent_s", "input_tokens", "output_tokens")), "one has gaps")
    for first, second in _IN_ORDER:
        _must(_all(pc.less_equal(ok[first], pc.add(ok[second], EPSILON_S))), f"{second} is before {first}")
    _must(_all(pc.less_equal(ok["timed_tokens"], ok["output_tokens"])), "one times more tokens than it has")
    found = RequestRows(ok)
    _must(bool((found.itl >= -EPSILON_S).all()), "its chunks are not in their order")
    lengths = np.asarray(pc.list_value_length(ok["chunk_s"]).to_numpy(), dtype=np.int64)
    arrived, ends, has_some = np.asarray(pc.list_flatten(ok["chunk_s"]).to_numpy()), np.cumsum(lengths), lengths > 0
    for name, places in (("first_token_s", ends - lengths), ("last_token_s", ends - 1)):
        stated = found.column(name)
        is_same = np.array_equal(has_some, ~np.isnan(stated))
        _must(is_same and np.array_equal(stated[has_some], arrived[places[has_some]]), f"{name} is no chunk's")


def _check_plan(rows: pa.Table, asked: Workload, slots: Sequence[Slot]) -> None:
    """Whether these requests are some of the plan, which every machine draws alike."""
    numbers = rows["request"].to_numpy()
    _must(numbers.size == 0 or int(numbers[-1]) < len(slots), "there are more requests than were planned")
    due = np.array([np.nan if slots[number].at_s is None else slots[number].at_s for number in numbers], dtype=float)
    scheduled = RequestRows(rows).column("scheduled_s")
    is_due = np.allclose(scheduled, due, rtol=0.0, atol=EPSILON_S, equal_nan=True)
    planned = RequestRows(rows).planned[~np.isnan(due)]
    _must(is_due and np.array_equal(planned, scheduled[~np.isnan(due)]), "they were planned for other times")
    is_traced = isinstance(asked.arrival, Trace)
    bounds = {
        "asked_input_tokens": (1 if is_traced else shortest_length(asked.input_tokens), asked.context_tokens)
        if asked.text is None
        else None,
        "asked_output_tokens": (
            1 if is_traced else shortest_length(asked.output_tokens),
            longest_length(asked.output_tokens),
        )
        if asked.output_forced
        else None,
    }
    for name, within in bounds.items():
        column = rows[name]
        if within is None:
            _must(column.null_count == rows.num_rows, f"{name} was left to the server")
        else:
            inside = pc.and_(pc.greater_equal(column, within[0]), pc.less_equal(column, within[1]))
            _must(column.null_count == 0 and _all(inside), f"{name} is not what was asked for")


def _all(mask: pa.ChunkedArray) -> bool:
    """Of what is not null."""
    return bool(pc.all(mask, min_count=0).as_py())


def _check_values(value: Json, name: str = "") -> None:
    """Numbers are finite, also those that came as texts; most of them cannot be negative, and no text is endless."""
    if isinstance(value, dict):
        for key, part in value.items():
            _check_values(part, name if name in SIGNED else key)
    elif isinstance(value, list):
        for part in value:
            _check_values(part, name)
    elif isinstance(value, str):
        _must(len(value) <= LONGEST_TEXT, f"{name} has {len(value):,} characters")
    elif isinstance(value, int | float):
        is_possible = abs(value) <= LARGEST_WHOLE_NUMBER and (value >= 0 or name in SIGNED)
        _must(is_possible, f"{name} is {str(value)[:20]}")


def _must(is_so: bool, otherwise: str) -> None:
    if not is_so:
        raise ValueError(otherwise)


@contextmanager
def _refusing(what: str) -> Iterator[None]:
    """Raises RunLost for what is not as it must be."""
    try:
        yield
    except ValueError as error:
        raise RunLost(f"it sent {what} that cannot be right: {quote(cause_of_damage(error), '')}") from error

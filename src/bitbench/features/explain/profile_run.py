"""Take operator profiles of a config, in prefill and in decode, in an instance of its own.

The engine's own profiler is switched on after a warm-up. The same work runs with the profiler off
just before and just after, which gives the profiler's cost. The client measures the step times,
so the profiler cannot distort them. Prompts wait in line for prefill, so each step begins when the
previous step ends.
"""

import dataclasses
import json
import tempfile
import zlib
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

from bitbench.analysis.roofline import load_operator_groups
from bitbench.features.explain.asked import ProfileSpec
from bitbench.features.explain.trace import (
    StepShape,
    compute_decode_seconds,
    compute_prefill_seconds,
    divide_traced_steps,
    list_steps,
    read_trace,
)
from bitbench.ports import Endpoint, Instance, InstanceFailed, Load
from bitbench.records.folder import Writer
from bitbench.records.profile import OperatorProfile, Phase, StepTimes
from bitbench.records.trial import InstanceFacts
from bitbench.running.trial import RunContext, load_job
from bitbench.study.plan import Config
from bitbench.study.workload import Workload
from bitbench.util.errors import ProfileError
from bitbench.util.http.connection import BadAnswer, PlainConnection
from bitbench.util.http.response import PLAIN_BYTES
from bitbench.util.text import quote

_START_LIMIT_S = 60.0
# Writing a trace took vLLM half a second per decode step of a small model on a busy core.
_STOP_LIMIT_S = 600.0


def start_profile_run_recording(endpoint: Endpoint, name: str) -> None:
    """Start the engine's profiler. The name of its trace file will begin with `name`."""
    _send_post_request(endpoint, "/start_profile", {"profile_prefix": name}, _START_LIMIT_S)


def stop_profile_run_recording(endpoint: Endpoint, name: str, folder: Path) -> Path:
    """Stop the profiler, wait for the trace, and return the path of the first rank's trace.

    Raise ProfileError if the engine wrote no trace.
    """
    _send_post_request(endpoint, "/stop_profile", {}, _STOP_LIMIT_S)
    traces = sorted(folder.glob(f"{name}*.json.gz"))
    if not traces:
        raise ProfileError(
            f"the engine's profiler wrote no trace {name} to {folder}; see the engine's log"
        )
    return traces[0]


def _send_post_request(endpoint: Endpoint, path: str, body: dict[str, str], limit_s: float) -> None:
    key = endpoint.api_key
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    try:
        with PlainConnection(endpoint.url, limit_s=limit_s, limit_bytes=PLAIN_BYTES) as connection:
            answer = connection.ask("POST", path, headers, json.dumps(body).encode())
    except (OSError, BadAnswer) as error:
        raise ProfileError(
            f"the engine did not answer {path} ({quote(str(error), key)}); see its log"
        ) from None
    if answer.status != HTTPStatus.OK:
        raise ProfileError(
            f"the engine answered {path} with {answer.status}: {quote(answer.body, key)}"
        )


# Full batches that count. Two more begin the line of prompts, and one ends it.
PREFILL_STEPS = 6


@dataclasses.dataclass(frozen=True)
class ProfileRun:
    """A run of the operator profiles of one config at one batch size."""

    config: Config
    batch: int
    context: RunContext
    instance_id: str
    log_file: Path

    def run(self) -> Iterator[tuple[OperatorProfile, Path]]:
        """Yield the profiles of prefill and decode, each with its trace file.

        The trace is in a temporary folder: move it before the run ends. Raise ProfileError.
        """
        with tempfile.TemporaryDirectory(prefix="bitbench-profile-") as folder:
            instance = self._start(Path(folder))
            try:
                yield from self._iter_profiles(instance, Path(folder))
            finally:
                instance.stop()

    @property
    def _spec(self) -> ProfileSpec:
        return self.context.plan.study.section(ProfileSpec) or ProfileSpec()

    def _start(self, folder: Path) -> Instance:
        return self.context.start(
            self.config,
            self.log_file,
            occasion="profile",
            # No more than a batch at once, so that waiting prompts run batch by batch.
            loads=(Load(self.batch, self._spec.input_tokens + self._spec.output_tokens),),
            trace_folder=folder,
        )

    def _iter_profiles(
        self, instance: Instance, folder: Path
    ) -> Iterator[tuple[OperatorProfile, Path]]:
        try:
            endpoint = instance.wait_ready(self.context.plan.study.limits.start)
        except InstanceFailed as failed:
            raise ProfileError(
                f"{self.config.name} did not start: {failed.failure.cause}"
            ) from None
        endpoint = dataclasses.replace(endpoint, batch_size=self.batch)
        facts = instance.facts()
        self._note("warming up")
        for number in range(3):
            self._decode(endpoint, number)
        start_profile_run_recording(endpoint, "warm-up")  # its first call is slow
        self._measure_steps(Phase.PREFILL, endpoint, 3)
        stop_profile_run_recording(endpoint, "warm-up", folder)
        for phase in Phase:
            self._note(f"profiling {phase.value}")
            before = self._measure_steps(phase, endpoint, 4)
            start_profile_run_recording(endpoint, phase.value)
            profiled = self._measure_steps(phase, endpoint, 5)
            trace = stop_profile_run_recording(endpoint, phase.value, folder)
            off = StepTimes(seconds=before + self._measure_steps(phase, endpoint, 6))
            yield self._profile(phase, StepTimes(seconds=profiled), off, trace, facts), trace

    def _measure_steps(self, phase: Phase, endpoint: Endpoint, number: int) -> tuple[float, ...]:
        if phase is Phase.PREFILL:
            line = self._send(endpoint, (PREFILL_STEPS + 3) * self.batch, 1, number)
            return compute_prefill_seconds([times[0] for times in line], self.batch)
        return compute_decode_seconds(self._decode(endpoint, number))

    def _profile(
        self,
        phase: Phase,
        profiled: StepTimes,
        unprofiled: StepTimes,
        path: Path,
        facts: InstanceFacts,
    ) -> OperatorProfile:
        """Return the profile from the engine's trace and the client's step times."""
        spec = self._spec
        trace = read_trace(path)
        steps = list_steps(trace, StepShape(phase, self.batch, spec.input_tokens))
        operators, groups = divide_traced_steps(trace, steps, load_operator_groups())
        half_answer = spec.output_tokens // 2
        answered = 0 if phase is Phase.PREFILL else half_answer
        return OperatorProfile(
            id="",
            config=self.config,
            instance_id=self.instance_id,
            facts=facts,
            phase=phase,
            batch=self.batch,
            context_tokens=spec.input_tokens + answered,
            steps=len(steps),
            profiled=profiled,
            unprofiled=unprofiled,
            operators=tuple(operators),
            groups=tuple(groups),
        )

    def _decode(self, endpoint: Endpoint, number: int) -> list[list[float]]:
        return self._send(endpoint, self.batch, self._spec.output_tokens, number)

    def _send(
        self, endpoint: Endpoint, count: int, output_tokens: int, number: int
    ) -> list[list[float]]:
        """Send requests and return when the tokens of each stream arrived at the client."""
        study = self.context.plan.study
        workload = Workload(
            name="profile",
            concurrency=count,
            input_tokens=self._spec.input_tokens,
            output_tokens=output_tokens,
        )
        job = load_job(
            endpoint,
            workload,
            seed=(study.seed, zlib.crc32(b"profile"), self.batch, number),
            limits=study.limits,
            vocabulary=self.context.get_vocabulary(self.config),
        )
        rows = self.context.load.run(job).requests.to_pylist()
        for row in rows:
            if row["status"] != "ok" or len(row["chunk_s"]) != output_tokens:
                cause = row["error"] or f"{len(row['chunk_s'])} chunks for {output_tokens} tokens"
                raise ProfileError(f"{self.config.name}: a request failed while profiling: {cause}")
        return [row["chunk_s"] for row in rows]

    def _note(self, activity: str) -> None:
        self.context.observer.note(f"profile of {self.config.name}, batch {self.batch}: {activity}")


def run_profiles(context: RunContext, writer: Writer) -> None:
    """Take every profile that the study requests and its folder lacks.

    A profile that fails becomes a warning. The next run tries it again.
    """
    plan = context.plan
    observer = context.observer
    spec = plan.study.section(ProfileSpec)
    if spec is None:
        return
    profiles = writer.folder.profiles()
    existing = {(profile.config, profile.batch, profile.phase) for profile in profiles}
    # A config that is measured for quality only has no speed to explain.
    timed = {point.config for point in plan.points}
    for config in plan.configs:
        if timed and config not in timed:
            continue
        engine = context.get_engine(config)
        if not engine.can_profile:
            observer.warn(
                f"{engine.name} has no profiler that bitbench supports; {config.name} gets no "
                "operator profile"
            )
            continue
        for batch in spec.batch:
            if all((config, batch, phase) in existing for phase in Phase):
                continue
            instance_id, log_file = writer.new_instance()
            run = ProfileRun(config, batch, context, instance_id, log_file)
            try:
                for profile, trace in run.run():
                    writer.add_profile(profile, trace)
            except ProfileError as error:
                observer.warn(f"no operator profile of {config.name} at batch {batch}: {error}")

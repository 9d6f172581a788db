"""A study folder of any size, made without running anything: what a large report is measured with."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bitbench.records.folder import StudyFolder
from bitbench.records.trial import InstanceFacts, Memory
from bitbench.study.study import Count, Measure
from bitbench.study.workload import Workload
from tests.support.synthetic import (
    SCHEMA,
    make_instance,
    make_lock,
    make_plan,
    make_trial,
    speed_metrics,
)

CHUNKS = 4  # of each request: enough to be columns that a report must not read


def big_study(
    path: Path, *, configs: int, workloads: int, trials: int, rows_per_trial: int
) -> StudyFolder:
    """`trials` per point, over four instances; all trials of a point share one file of rows."""
    shapes = [
        Workload(name=f"c{2**number}", concurrency=2**number, input_tokens=128, output_tokens=64)
        for number in range(workloads)
    ]
    per_instance = trials // 4
    measure = Measure(starts=Count(min=4, max=4), trials=Count(min=per_instance, max=per_instance))
    plan = make_plan([f"engine-{number:02}" for number in range(configs)], shapes, measure)
    rng = np.random.default_rng(3)
    folder = StudyFolder(path)
    with folder.open_writer() as writer:
        writer.write_study("bitbench: 1\nname: made-up\nengines: [null]\nworkloads: [base]\n")
        writer.write_lock(make_lock(plan))
    lines = []
    for number, point in enumerate(plan.points):
        workload = plan.study.workload(point.workload)
        speed = 40.0 * (1 + int(point.config.engine[7:]) // 2) * workload.concurrency**0.8
        requests_file = f"requests/point{number}.parquet" if rows_per_trial else None
        if requests_file is not None:
            pq.write_table(
                _rows(rows_per_trial, speed, rng), path / requests_file, compression="zstd"
            )
        for index in range(trials):
            metrics = speed_metrics(workload, speed * float(np.exp(0.03 * rng.normal())))
            record = make_trial(
                point,
                index // per_instance,
                index % per_instance,
                id=f"t{len(lines) + 1:05d}",
                metrics=metrics,
                memory=Memory(
                    resident_bytes=2**30, peak_bytes=2**30 + 2**26 * int(point.config.engine[7:])
                ),
                requests=rows_per_trial,
                requests_file=requests_file,
            )
            lines.append(record.model_dump_json())
    (path / "trials.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    facts = InstanceFacts(engine_version="1.0", kernels=("some kernel",))
    starts = [make_instance(one, block, facts=facts) for one in plan.configs for block in range(4)]
    (path / "instances.jsonl").write_text(
        "\n".join(one.model_dump_json() for one in starts) + "\n", encoding="utf-8"
    )
    return folder


def _rows(count: int, speed: float, rng: np.random.Generator) -> pa.Table:
    planned = np.arange(count) * 0.01
    first = planned + rng.lognormal(-3, 0.4, count)
    gaps = rng.lognormal(np.log(1 / speed), 0.2, (count, CHUNKS))
    chunks = first[:, None] + np.cumsum(gaps, axis=1)
    offsets = pa.array(np.arange(count + 1, dtype=np.int32) * CHUNKS)
    number = pa.array(np.arange(count, dtype=np.int32))
    tokens_in, tokens_out = (
        pa.array(np.full(count, 128, np.int32)),
        pa.array(np.full(count, 64, np.int32)),
    )
    columns = {
        "request": number,
        "planned_s": planned,
        "scheduled_s": planned,
        "sent_s": planned,
        "first_token_s": first,
        "first_answer_s": first,
        "last_token_s": chunks[:, -1],
        "end_s": chunks[:, -1],
        "chunk_s": pa.ListArray.from_arrays(offsets, pa.array(chunks.ravel())),
        "asked_input_tokens": tokens_in,
        "asked_output_tokens": tokens_out,
        "input_tokens": tokens_in,
        "output_tokens": tokens_out,
        "timed_tokens": pa.array(np.full(count, 63, np.int32)),
        "status": pa.array(["ok"] * count),
        "http_status": pa.array(np.full(count, 200, np.int16)),
        "error": pa.nulls(count, pa.string()),
    }
    return pa.table(columns, schema=SCHEMA)

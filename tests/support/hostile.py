"""A study in which everything that is not ours to choose is hostile."""

from bitbench.analysis.results.summary import StudySummary
from bitbench.records.lock import Lock
from bitbench.records.trial import InstanceFacts, InstanceRecord, Memory, Outcome, TrialRecord
from bitbench.study.plan import Config, ImportedFile, ImportSource, Plan, Point, Refusal
from bitbench.study.study import EngineSetup
from bitbench.study.workload import Workload
from tests.support.synthetic import (
    make_instance,
    make_lock,
    make_plan,
    make_trial,
    speed_metrics,
    summarize,
)

HOSTILE = {
    "script": "<script>window.hacked=1</script>",
    "end of a script": "</script><script>window.hacked=1</script>",
    "image": '<img src=x onerror="window.hacked=1">',
    "attribute": '" onmouseover="window.hacked=1" x=\'',
    "comment and section": "]]> --> <!--",
    "pipes": "a|b||c\\|",
    "code": "`code` ``more`` ```",
    "lines": "two\nlines\r\n# heading\n\n- item\u2028end",
    "right to left": "right\u202eto left\u2066\u200f",
    "markdown": "*bold* _it_ [link](javascript:alert(1)) ![x](http://example.com/y.png)",
    "colour": "\x1b[31mred\x1b[0m\x07\x00",
    "fence": "```\nfence",
    "expression": "datum['x'] == \"y\"; {{ 7 * 7 }} ${7*7} {% raw %}",
    "rst": ".. raw:: html\n\n   <b>x</b>\n|sub| :role:`x`",
    "formula": '=HYPERLINK("http://example.com")',
    "long": "x" * 10_000,
    "wide": "漢字" * 400,
    "empty": "",
}


def hostile_study(
    name: str,
) -> tuple[StudySummary, list[TrialRecord], list[InstanceRecord], Lock]:
    """Two configs with results, one that failed, one refused; workloads under load and of two lengths."""
    workloads = [
        Workload(
            name=f"w{concurrency}-{length}",
            concurrency=concurrency,
            input_tokens=length,
            output_tokens=8,
        )
        for concurrency, length in ((1, 16), (2, 16), (1, 64))
    ]
    plan = make_plan(["a"], workloads, description=name)
    configs = [Config(variant=name, engine="a"), Config(variant=f"m/{name}", engine=name)]
    points = tuple(
        Point(config=one, workload=workload.name) for one in configs for workload in workloads
    )
    failed = Point(config=Config(variant=f"{name}2", engine="a"), workload=workloads[0].name)
    engines = tuple(
        EngineSetup(name=own, engine=own, args={name: name}, env={name: name})
        for own in ("a", name)
    )
    plan = Plan(
        study=plan.study.model_copy(update={"engines": engines}),
        variants=(),
        points=(*points, failed),
        refusals=(Refusal(point=failed, reason=name),),
        imported_from=ImportSource(
            tool=name, files=(ImportedFile(name=name, sha256="ab" * 32),), notes=(name,)
        ),
    )
    trials = [
        make_trial(
            point,
            block,
            index,
            id=f"{name}{block}{index}",
            instance_id=name,
            metrics=speed_metrics(
                plan.study.workload(point.workload), 100.0 * (1 + number) + block + 10 * index
            ),
            memory=Memory(peak_bytes=2**30 * (1 + number)),
        )
        for number, point in enumerate(points)
        for block in range(2)
        for index in range(2)
    ]
    trials.append(
        make_trial(
            failed, 0, 1, id=name, outcome=Outcome.CRASHED, cause=name, log_lines=(name, name)
        )
    )
    facts = InstanceFacts(engine_version=name, kernels=(name,), command=(name,), notes=(name,))
    instances = [make_instance(one, 0, id=name or "i", facts=facts, cause=name) for one in configs]
    lock = {
        "host": {"cpu_model": name, "os": name, "accelerators": [{"name": name}]},
        "environments": {name: {name: name}},
        "bitbench": name,
        "created_at": name,
    }
    return summarize(plan, trials, instances), trials, instances, make_lock(plan, lock)

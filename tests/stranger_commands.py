"""Every command that writes, in this process and without what takes long: engines, measurements, drawing."""

import os
from collections.abc import Callable
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from unittest.mock import patch

from typer.testing import CliRunner

from bitbench.cli.app import app
from bitbench.engines import processes
from bitbench.machine.workplace import Workplace
from bitbench.quantize import backends
from bitbench.quantize.backends import Maker
from bitbench.records.folder import StudyFolder
from bitbench.records.profile import ProfileGroup
from bitbench.reports import files
from bitbench.reports.charts import svg
from bitbench.running.quality_study import QualityOptions, measure_quality_study
from bitbench.study.recipe import Backend
from bitbench.study.workload import BUILT_IN_WORKLOADS
from bitbench.util.errors import BitbenchError
from tests.features.explain.explain_records import profile
from tests.features.interop.test_import_tools import DATA
from tests.features.kernels.test_kernels import a_run
from tests.strangers import Command
from tests.support.quantize_stand_in import StandIn, pretend_environment, write_model
from tests.support.synthetic import (
    demo_study,
    make_lock,
    make_plan,
    make_trial,
    request_parts,
    speed_metrics,
)
from tests.unit.test_environments import FakeUv
from tests.unit.test_model_cost import ROOF
from tests.unit.test_quality import MATERIAL
from tests.unit.test_report_quality import quality_study

WORKLOAD = BUILT_IN_WORKLOADS["interactive"]
RECIPE = "name: mine\nsteps: [{step: quantize, weight_bits: 8}]\n"
# Drawing takes seconds, and writes nothing.
DRAWING = ((files, "render_svg"), (svg, "render_svg"))


def command(name: str, prepare: Callable[[Path], None], run: Callable[[Path], None]) -> Command:
    """With the place's own home, and stand-ins around it."""

    def inside(action: Callable[[Path], None]) -> Callable[[Path], None]:
        def act(place: Path) -> None:
            with ExitStack() as around:
                around.enter_context(patch.dict(os.environ, {"BITBENCH_HOME": str(place / "home")}))
                maker = Maker("quantize", ("llmcompressor",), StandIn().compress)
                around.enter_context(patch.dict(backends.MAKERS, {Backend.LLMCOMPRESSOR: maker}))
                for module, drawn in DRAWING:
                    around.enter_context(patch.object(module, drawn, lambda *_, **__: "<svg/>"))
                action(place)

        return act

    return Command(name, inside(prepare), inside(run))


def cli(*arguments: object) -> None:
    """`bitbench ARGUMENTS`, whose refusals are raised."""
    CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)


def nothing(place: Path) -> None:
    pass


def a_study(place: Path) -> None:
    """As small as one can be that has figures."""
    plan = make_plan(["steady", "quick"], [WORKLOAD])
    with StudyFolder(place / "study").open_writer() as writer:
        writer.write_study("name: small\n")
        writer.write_lock(make_lock(plan))
        for point, block, index in product(plan.points, range(2), range(2)):
            writer.append_trial(
                make_trial(point, block, index, metrics=speed_metrics(WORKLOAD, 100.0 + index)),
                None,
            )


def a_whole_study(place: Path) -> None:
    """With a record of every kind that a run can leave, and what a kill may leave of the next trial."""
    write_records(place)
    (place / "study" / "requests" / "t99999.parquet").write_bytes(b"half")
    with (place / "study" / "trials.jsonl").open("a") as lines:
        lines.write("{")


def write_records(place: Path) -> None:
    """Whatever a Writer can write, as `run`, `load`, `quality`, `profile` and `explain` do."""
    plan, _, instances, lock = demo_study()
    (place / "trace.json.gz").write_bytes(b"trace")
    with StudyFolder(place / "study").open_writer() as writer:
        writer.write_study("name: demo\n")
        writer.write_lock(lock)
        _, log_file = writer.new_instance()
        processes.launch_logged_process(
            ["echo", "ready"], env={"PATH": os.defpath}, log_file=log_file
        ).stop()
        writer.append_instance(instances[0])
        writer.append_trial(
            make_trial(plan.points[0], 0, 0), request_parts({"planned_s": 0.0, "chunk_s": [1.0]})
        )
        writer.write_material("org/model", MATERIAL)
        for record, scores in quality_study()[1]:
            writer.append_quality(record, scores)
        writer.add_profile(
            profile(plan.configs[0], {ProfileGroup.ATTENTION: 1.0}), place / "trace.json.gz"
        )
        writer.write_roof(ROOF)


def quality_command(place: Path) -> None:
    options = QualityOptions(model="smollm2-135m", recipes=("w8a16",))
    with patch("bitbench.running.quality_study.measure_study"):
        measure_quality_study(Workplace(place / "home"), options, place / "study", None)  # type: ignore[arg-type]


def kernels_command(place: Path) -> None:
    """`bitbench kernels`, without the measurement."""
    with (
        patch("bitbench.features.kernels.bench.environment_python", return_value=Path("python")),
        patch("bitbench.features.kernels.bench.runner.run_kernels", return_value=a_run()),
    ):
        cli("kernels", "--quick", "--into", place / "study")


def a_model(place: Path) -> None:
    pretend_environment(place / "home")
    write_model(place / "tiny")
    (place / "mine.yaml").write_text(RECIPE)


def a_variant(place: Path) -> None:
    a_model(place)
    quantize(place)


def quantize(place: Path) -> None:
    cli("quantize", place / "tiny", "-r", place / "mine.yaml")


def quantize_in_vain(place: Path) -> None:
    stand_in = StandIn()
    stand_in.cannot_make = {"mine"}
    with patch.dict(
        backends.MAKERS,
        {Backend.LLMCOMPRESSOR: Maker("quantize", ("llmcompressor",), stand_in.compress)},
    ):
        try:
            quantize(place)
        except BitbenchError:
            return
    raise AssertionError("it was to fail")


def create_environment(place: Path) -> None:
    tools = place.parent / "tools"
    tools.mkdir(exist_ok=True)
    FakeUv(tools)
    with patch.dict(os.environ, {"PATH": f"{tools}:/usr/bin:/bin"}):
        cli("env", "create", "transformers")


def report(place: Path) -> None:
    cli("report", place / "study")


def a_reported_study(place: Path) -> None:
    a_study(place)
    report(place)


def report_table(place: Path) -> None:
    cli("report", place / "study", "--format", "csv", "-o", place / "study" / "a" / "table.csv")


def report_page(place: Path) -> None:
    cli("report", place / "study", "--format", "html", "-o", place / "page.html")


def import_runs(place: Path) -> None:
    cli("import", DATA / "vllm-serve-1.json", "--from", "vllm", "--into", place / "study")


COMMANDS = (
    command("run", nothing, write_records),
    command("run, resumed", a_whole_study, write_records),
    command("report", a_study, report),
    command("report, repeated", a_reported_study, report),
    command("report --output", a_study, report_table),
    command("report --format html", a_study, report_page),
    command("kernels", nothing, kernels_command),
    command("quality", nothing, quality_command),
    command("import", nothing, import_runs),
    command("init", nothing, lambda place: cli("init", place / "study" / "study.yaml")),
    command("quantize", a_model, quantize),
    command("quantize, failing", a_model, quantize_in_vain),
    command("variant rm", a_variant, lambda _: cli("variant", "rm", "tiny")),
    command("env create", nothing, create_environment),
)

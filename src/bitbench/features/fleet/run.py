"""`bitbench run --on`: a study on several machines, whose driver is this process."""

from collections.abc import Mapping
from contextlib import closing
from functools import partial

from bitbench.engines.registry import engines_of
from bitbench.features.fleet.address import roster_of
from bitbench.features.fleet.channel import Roster
from bitbench.features.fleet.driver import StudyDriver
from bitbench.features.fleet.machines import Fleet
from bitbench.features.fleet.view import FleetStatus
from bitbench.measure.offers import Executor
from bitbench.measure.runner import StudyRun
from bitbench.ports import Engine
from bitbench.records.host import HostFacts
from bitbench.study.plan import Plan
from bitbench.util.errors import NotComparableError, UsageError


def executor_at(where: str, *, without_token: bool) -> Executor:
    return partial(run_on, roster_of(where, without_token=without_token))


def run_on(roster: Roster, study: StudyRun) -> None:
    """Drive it, and measure nothing here; the study is resolved as on every machine."""
    refuse_what_one_machine_does(study.plan, engines_of(study.plan.study))
    with study.folder.writing() as writer, closing(Fleet(roster, writer, study.observer)) as fleet:
        hosts = fleet.hosts()
        refuse_other_classes(hosts)
        lock = study.begin(writer, hosts=hosts)
        study.quality_kits(writer)
        schedule = study.schedule(at_once=lambda: fleet.size)
        StudyDriver(
            lock,
            folder=str(study.source.folder.resolve()),
            writer=writer,
            observer=study.observer,
            fleet=fleet,
            schedule=schedule,
            on_change=FleetStatus(study.folder, fleet, schedule).update,
        ).run()


def refuse_what_one_machine_does(plan: Plan, engines: Mapping[str, Engine]) -> None:
    for setup in plan.study.engines:
        engine = engines[setup.engine]
        if engine.environment is None and not engine.can_freeze(setup):
            raise UsageError(f"{setup.name} runs elsewhere, and several machines would load it at once; leave --on out")
    if plan.study.measure.budget is not None:
        raise UsageError("a budget plans the time of one machine; with --on say `starts` and `trials` instead")
    for section in plan.study.sections.values():
        if section.on_one_machine is not None:
            raise UsageError(section.on_one_machine)


def refuse_other_classes(hosts: Mapping[str, HostFacts]) -> None:
    """Raises NotComparableError where machines differ: their figures would be averaged as if they were one's."""
    first, *others = hosts
    for other in others:
        if names := hosts[first].differences(hosts[other]):
            told = "; ".join(f"{name}: {hosts[first].shown(name)} and {hosts[other].shown(name)}" for name in names)
            raise NotComparableError(
                f"{first} and {other} are machines of different classes ({told}); give machines of one class, and the "
                "others in a study of their own"
            )

"""Several machines: the blocks of a study on each, or the requests of a load from each."""

from bitbench.feature import Command, Feature, ReportPart, ReportPlace

_SCHEMES = ("local", "ray", "ssh")

FEATURE = Feature(
    name="fleet",
    commands=(Command("fleet", ".command:fleet", "Show machines, what each runs, progress and the time left."),),
    report_parts=(
        ReportPart(
            "machines",
            ReportPlace.CONDITIONS,
            type=".computing:MachineFactor",
            compute=".computing:summarize_fleet_speeds",
            section=".words:machines_section",
        ),
        ReportPart(
            "load_nodes",
            ReportPlace.CONDITIONS,
            type=".computing:LoadNodes",
            compute=".computing:summarize_load_nodes",
            section=".words:load_nodes_section",
        ),
    ),
    offers={
        "executors": dict.fromkeys(_SCHEMES, ".driver:fleet_executor"),
        "load_clients": dict.fromkeys(_SCHEMES, ".load_fleet:load_fleet_client"),
    },
)

"""Studies and loads on several machines: each node of a Ray cluster runs blocks or sends
requests."""

from bitbench.feature import Feature, ReportPart, ReportPlace

FEATURE = Feature(
    name="fleet",
    report_parts=(
        ReportPart(
            "machines",
            ReportPlace.CONDITIONS,
            type=".computing:MachineFactor",
            compute=".computing:summarize_fleet_speeds",
            section=".words:machines_section",
        ),
    ),
    offers={
        "executors": dict.fromkeys(("ray", "gpus"), ".driver:ray_executor"),
        "load_clients": {"ray": ".load:ray_load_client"},
    },
)

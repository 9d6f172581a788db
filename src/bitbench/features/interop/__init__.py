"""The import of other tools' results, and the export in the forms that others publish."""

from bitbench.feature import Command, Feature, Panel, ReportPart, ReportPlace

FEATURE = Feature(
    name="interop",
    commands=(
        Command(
            "import",
            ".command:import_results",
            "Turn other tools' results into a study folder.",
            Panel.SHARE,
        ),
    ),
    report_parts=(
        ReportPart(
            "imported",
            ReportPlace.ANSWER,
            type="bitbench.study.plan:ImportSource",
            compute=".words:imported_section_source",
            section=".words:imported_section",
        ),
    ),
    offers={
        "formats": {
            "markdown-runs": ".forms:markdown_runs",
            "rst-by-length": ".forms:rst_by_length",
            "markdown-backends": ".forms:markdown_backends",
        }
    },
)

"""Results of other tools become studies, and studies take the forms in which others publish theirs."""

from bitbench.feature import Command, Feature, Panel, ReportPart, ReportPlace

FEATURE = Feature(
    name="interop",
    commands=(
        Command("import", ".command:import_results", "Turn other tools' results into a study folder.", Panel.SHARE),
    ),
    report_parts=(
        ReportPart(
            "imported",
            ReportPlace.ANSWER,
            type="bitbench.study.imported:ImportSource",
            compute=".words:import_source",
            section=".words:imported_section",
        ),
    ),
    offers={
        "formats": {
            "vendor-md": ".vendor_md:vendor_markdown",
            "vendor-rst": ".vendor_rst:vendor_rst",
            "backend-md": ".backend_md:backend_markdown",
            "latex": ".latex:latex",
        }
    },
)

"""The feature that explains a variant's speed from operator profiles and rooflines."""

from bitbench.feature import Command, Feature, Panel, ReportPart, ReportPlace

FEATURE = Feature(
    name="explain",
    commands=(
        Command(
            "explain",
            ".command:explain",
            "Explain a variant's speed: expected and measured gain.",
            Panel.DECIDE,
            answer=".types:Explanation",
        ),
    ),
    study_keys={"profile": ".asked:ProfileSpec"},
    report_parts=(
        ReportPart(
            "profile",
            ReportPlace.CAUSES,
            type=".types:Profiles",
            compute=".computing:summarize_profiles",
            section=".profile_words:profile_section",
        ),
        ReportPart(
            "roofline",
            ReportPlace.CAUSES,
            type=".types:Roofline",
            compute=".computing:explain_roofline",
            section=".sentences:roofline_section",
        ),
    ),
    offers={
        "after_trials": {"profile": ".profile_run:run_profiles"},
        "formats": {"markdown-profile": ".profile_words:profile_markdown"},
        "python": {"Explanation": ".types:Explanation", "explain": ".explanation:explain"},
    },
)

"""Search settings for the best under limits, and confirm it in a fresh study."""

from bitbench.feature import Command, Feature, Panel

FEATURE = Feature(
    name="tune",
    commands=(
        Command(
            "tune",
            ".command:tune",
            "Search for the best settings, and confirm them.",
            Panel.QUANTIZE,
            answer=".types:Tuning",
            resumes=True,
        ),
    ),
    study_keys={"tune": ".types:Tune"},
    offers={"python": {"tune": ".api:tune", "Tuning": ".types:Tuning"}},
)

"""The key `profile` of a study file."""

from pydantic import Field, field_validator

from bitbench.study.study import StudySection


class ProfileSpec(StudySection):
    """The batch sizes and lengths at which the operators of each config are profiled."""

    description = "where the time of a step goes, operator by operator; in starts of its own"
    may_change = True
    on_one_machine = (
        "profiles are taken on one machine; leave `profile` out of a study that runs with --on"
    )

    batch: tuple[int, ...] = Field(
        default=(1,), min_length=1, description="sequences at once; a number or several"
    )
    input_tokens: int = Field(default=128, ge=1, description="length of a prompt")
    output_tokens: int = Field(
        default=32, ge=4, description="length of an answer: so many decode steps are profiled"
    )

    @field_validator("batch", mode="before")
    @classmethod
    def _wrap_single(cls, value: object) -> object:
        is_number = isinstance(value, int) and not isinstance(value, bool)
        return [value] if is_number else value

    @field_validator("batch")
    @classmethod
    def _are_sizes(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if min(value) < 1 or len(set(value)) < len(value):
            raise ValueError("batch sizes are different numbers from 1")
        return value

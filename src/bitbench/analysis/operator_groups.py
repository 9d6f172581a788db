"""Which group an operator belongs to, as data: patterns in `operator_groups.yaml`, the first that fits decides."""

import re
from functools import cache
from pathlib import Path

from pydantic import Field

from bitbench.records.profile import ProfileGroup
from bitbench.study.base import Spec
from bitbench.util import yaml_file

_FILE = Path(__file__).with_name("operator_groups.yaml")


class Rule(Spec):
    group: ProfileGroup
    names: tuple[str, ...] = Field(description="regular expressions for the whole name")
    owns: bool = Field(default=False, description="what such an operator calls belongs to its group, whatever it is")


class GroupTable(Spec):
    rules: tuple[Rule, ...]

    def group_of(self, name: str) -> tuple[ProfileGroup, bool]:
        """The group, and whether the operators that it calls go with it."""
        return _group_of(self, name)


@cache
def _patterns(table: GroupTable) -> tuple[tuple[re.Pattern[str], Rule], ...]:
    return tuple((re.compile("|".join(f"(?:{name})" for name in rule.names)), rule) for rule in table.rules)


@cache
def _group_of(table: GroupTable, name: str) -> tuple[ProfileGroup, bool]:
    for pattern, rule in _patterns(table):
        if pattern.fullmatch(name):
            return rule.group, rule.owns
    return ProfileGroup.OTHER, False


@cache
def built_in_table() -> GroupTable:
    text = _FILE.read_text(encoding="utf-8")
    return yaml_file.parse(text, GroupTable, name=_FILE.name, outline="`rules:` and a list", error=ValueError)

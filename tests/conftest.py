"""Which tests share a process where they run on all cores: those of a file, and those that need the same study."""

import pytest


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        shares_the_study = "recipes_study" in getattr(item, "fixturenames", ())
        item.add_marker(pytest.mark.xdist_group("recipes_study" if shares_the_study else item.path.name))

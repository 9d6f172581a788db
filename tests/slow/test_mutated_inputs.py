"""Every reader of others' files under 100,000 mutations, and the reports of what is imported under 1,000."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.hostile_inputs import DATA, INPUTS, TOOLS, is_read
from tests.unit.mutations import mutations
from tests.unit.test_hostile_inputs import assert_reported

pytestmark = pytest.mark.shares

EXAMPLES = 100_000
REPORTS = 1_000
whole = settings(
    max_examples=EXAMPLES // len(INPUTS), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("kind", INPUTS)
@whole
@given(data=st.data())
def test_a_mutated_file_is_read_or_refused_in_a_sentence(kind: str, data: st.DataObject) -> None:
    is_read(kind, data.draw(mutations(INPUTS[kind].honest)))


@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("kind", TOOLS)
@settings(whole, max_examples=REPORTS // len(TOOLS))
@given(data=st.data())
def test_what_is_imported_can_be_reported(kind: str, data: st.DataObject) -> None:
    assert_reported(kind, data.draw(mutations((DATA / kind).read_bytes())))

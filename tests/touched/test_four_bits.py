"""What eight and four bits cost in quality on real transformers; on vLLM: tests/slow/test_quality_vllm.py.

Needs: bitbench env create transformers, quantize; bitbench model get smollm2-135m.
"""

from pathlib import Path

import pytest

from tests.slow.test_quality_vllm import assert_fewer_bits_diverge_more


@pytest.mark.timeout(1800)
def test_fewer_bits_diverge_more(tmp_path: Path) -> None:
    assert_fewer_bits_diverge_more("transformers", tmp_path)

"""Public traces, from their documented layouts: recognised by the header, wrong rows named by their line."""

from pathlib import Path

import pytest

from bitbench.loadgen.inputs import TraceRow, read_trace
from bitbench.util.errors import StudyFileError

MOONCAKE = """{"timestamp": 0, "input_length": 6755, "output_length": 500, "hash_ids": [0, 1, 2]}
{"timestamp": 27482, "input_length": 7319, "output_length": 490, "hash_ids": [0, 3]}

{"timestamp": 30535, "input_length": 100, "output_length": 7}
"""


def read(tmp_path: Path, text: str, name: str = "trace") -> list[TraceRow]:
    path = tmp_path / name
    path.write_text(text)
    return list(read_trace(path))


def test_mooncake(tmp_path: Path) -> None:
    assert read(tmp_path, MOONCAKE) == [
        (0.0, 6755, 500, (0, 1, 2)),
        (27.482, 7319, 490, (0, 3)),
        (30.535, 100, 7, ()),
    ]


def test_rows_come_in_the_order_of_their_times(tmp_path: Path) -> None:
    text = "".join(
        f'{{"timestamp": {at_ms}, "input_length": {tokens}, "output_length": {tokens}}}\n'
        for at_ms, tokens in ((9000, 1), (4000, 2), (1000, 0), (4000, 3))
    )
    assert read(tmp_path, text) == [(0.0, 2, 2, ()), (0.0, 3, 3, ()), (5.0, 1, 1, ())]


def test_windows_lines_and_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_bytes(b"\xef\xbb\xbf" + MOONCAKE.replace("\n", "\r\n").encode())
    assert len(read_trace(path)) == 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            MOONCAKE + '{"timestamp": 1, "input_length": "many", "output_length": 1}\n',
            r"line 5: input_length is 'many'",
        ),
        (
            MOONCAKE + '{"timestamp": 1, "input_length": -3, "output_length": 1}\n',
            r"line 5: input_length is -3",
        ),
        (
            MOONCAKE + '{"timestamp": NaN, "input_length": 3, "output_length": 1}\n',
            r"line 5: 'nan' is not a time",
        ),
        (
            MOONCAKE + '{"timestamp": 1, "input_length": 3}\n',
            r"line 5: the field 'output_length' is missing",
        ),
        (MOONCAKE + '{"timestamp": 1,\n', r"line 5: Expecting"),
        (MOONCAKE + "[1]\n", r"line 5: not a JSON object"),
        (
            MOONCAKE
            + '{"timestamp": 1, "input_length": 3, "output_length": 1, "hash_ids": ["x"]}\n',
            r"line 5: hash_ids is not a list of whole numbers",
        ),
        ("a,b,c\n1,2,3\n", r"line 1: Expecting"),
        ("", r"no request with input and output tokens"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(StudyFileError, match=said):
        read(tmp_path, text)


def test_a_missing_file_and_one_that_is_no_text(tmp_path: Path) -> None:
    with pytest.raises(StudyFileError, match="No such file"):
        read_trace(tmp_path / "none.csv")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(StudyFileError, match="UTF-8"):
        read_trace(tmp_path / "binary")

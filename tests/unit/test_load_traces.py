"""Public traces, from their documented layouts: recognised by the header, wrong rows named by their line."""

from pathlib import Path

import pytest

from bitbench.loadgen.inputs import TraceRow, read_trace
from bitbench.util.errors import StudyFileError

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:15:51.2224670,879,55
"""
AZURE_2024 = """TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-10 00:00:00.009930+00:00,2162,5
2024-05-10 00:00:00.509930+00:00,2399,6
"""
BURSTGPT = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,230,1317,Conversation log
118,GPT-4,417,0,417,API log
161,ChatGPT,1360,431,1791,Conversation log
"""
BURSTGPT_WITH_SESSIONS = """Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type
0.5,a1,2.5,GPT-4,10,3,13,API log
2.5,a1,2.5,"GPT-4, new",20,4,24,API log
"""
MOONCAKE = """{"timestamp": 0, "input_length": 6755, "output_length": 500, "hash_ids": [0, 1, 2]}
{"timestamp": 27482, "input_length": 7319, "output_length": 490, "hash_ids": [0, 3]}

{"timestamp": 30535, "input_length": 100, "output_length": 7}
"""


def read(tmp_path: Path, text: str, name: str = "trace") -> list[TraceRow]:
    path = tmp_path / name
    path.write_text(text)
    return list(read_trace(path))


def test_azure(tmp_path: Path) -> None:
    rows = read(tmp_path, AZURE)
    assert [row.at_s for row in rows] == pytest.approx([0.0, 4.314579, 4.541877], abs=2e-6)
    assert [row[1:3] for row in rows] == [(374, 44), (396, 109), (879, 55)]


def test_azure_with_a_time_zone(tmp_path: Path) -> None:
    assert [row.at_s for row in read(tmp_path, AZURE_2024)] == pytest.approx([0.0, 0.5])


def test_burstgpt_without_its_failed_requests(tmp_path: Path) -> None:
    assert read(tmp_path, BURSTGPT) == [(0.0, 472, 18, ()), (40.0, 1087, 230, ()), (156.0, 1360, 431, ())]


def test_burstgpt_with_other_columns_between(tmp_path: Path) -> None:
    assert read(tmp_path, BURSTGPT_WITH_SESSIONS) == [(0.0, 10, 3, ()), (2.0, 20, 4, ())]


def test_mooncake(tmp_path: Path) -> None:
    assert read(tmp_path, MOONCAKE) == [
        (0.0, 6755, 500, (0, 1, 2)),
        (27.482, 7319, 490, (0, 3)),
        (30.535, 100, 7, ()),
    ]


def test_rows_come_in_the_order_of_their_times(tmp_path: Path) -> None:
    text = "Timestamp,Request tokens,Response tokens\n9,1,1\n4,2,2\n4,3,3\n"
    assert read(tmp_path, text) == [(0.0, 2, 2, ()), (0.0, 3, 3, ()), (5.0, 1, 1, ())]


def test_windows_lines_and_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_bytes(b"\xef\xbb\xbf" + AZURE.replace("\n", "\r\n").encode())
    assert len(read_trace(path)) == 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (AZURE + "yesterday,1,1\n", r"line 5: 'yesterday' is not a date and time"),
        (AZURE + "2023-11-16 18:16:00,many,1\n", r"line 5: ContextTokens is 'many', not a number of tokens"),
        (AZURE + "2023-11-16 18:16:00,1\n", r"line 5: 2 cells, but the header has 3"),
        (BURSTGPT + "170,GPT-4,-3,5,2,API log\n", r"line 6: Request tokens is '-3'"),
        (BURSTGPT + "nan,GPT-4,3,5,2,API log\n", r"line 6: 'nan' is not a time"),
        (MOONCAKE + '{"timestamp": 1, "input_length": 3}\n', r"line 5: the field 'output_length' is missing"),
        (MOONCAKE + '{"timestamp": 1,\n', r"line 5: Expecting"),
        (MOONCAKE + "[1]\n", r"line 5: not a JSON object"),
        (
            MOONCAKE + '{"timestamp": 1, "input_length": 3, "output_length": 1, "hash_ids": ["x"]}\n',
            r"line 5: hash_ids is not a list of whole numbers",
        ),
        ("a,b,c\n1,2,3\n", r"line 1: unknown header; .*TIMESTAMP, ContextTokens.*Mooncake"),
        ("", r"line 1: unknown header"),
        ("Timestamp,Request tokens,Response tokens\n1,0,4\n", r"no request with input and output tokens"),
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

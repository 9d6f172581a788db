"""A study on servers that repeat the key: nothing of it is in the folder, the output or a command line."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil

from bitbench.util.text import HIDDEN
from tests.support.canary import KEY, traces, traces_below
from tests.support.raw_server import Asked, models, plain, serving
from tests.unit.test_secret_canary import FIELDS


def answer_by_model(connected: socket.socket, asked: Asked) -> None:
    """Models are fields, and each answers with the key in that place."""
    if asked.path == "/v1/models":
        connected.sendall(models(*FIELDS, f"model-{KEY}"))
    elif not asked.model:
        connected.sendall(plain(b"", "404 Not Found"))
    else:
        connected.sendall(FIELDS[asked.model](KEY))
    connected.shutdown(socket.SHUT_RDWR)


def refuse_with_the_key(connected: socket.socket, asked: Asked) -> None:
    connected.sendall(plain(KEY.encode(), f"401 {KEY}", f"X-Key: {KEY}"))


def redirect_with_the_key(connected: socket.socket, asked: Asked) -> None:
    connected.sendall(plain(b"", "302 Found", f"Location: http://127.0.0.1:1/{KEY}"))


def no_http_but_the_key(connected: socket.socket, asked: Asked) -> None:
    connected.sendall(f"{KEY} {KEY}\r\n\r\n".encode())


def test_a_study_holds_nothing_of_the_key_in_any_file_nor_on_any_command_line(
    tmp_path: Path,
) -> None:
    """The whole way: `bitbench run` in a process of its own, its output, its children, its folder, its report."""
    chosen = ("body", "JSON message", "retry-after", "location", "usage", "text", "status line")
    with (
        serving(answer_by_model) as server,
        serving(refuse_with_the_key) as refusing,
        serving(redirect_with_the_key) as redirecting,
        serving(no_http_but_the_key) as silent,
    ):
        places = [(server.url, name) for name in chosen] + [(server.url, "unknown")]
        places += [(other.url, "m") for other in (refusing, redirecting, silent)]
        output, seen = run_study(tmp_path, places)
    assert not traces(output)
    assert not [line for line in seen if traces(line)]
    assert not traces_below(tmp_path)
    kept = (tmp_path / "out" / "trials.jsonl").read_text(encoding="utf-8")
    assert kept.count(HIDDEN) >= 4
    assert (tmp_path / "out" / "report" / "index.html").exists()


def run_study(folder: Path, places: list[tuple[str, str]]) -> tuple[str, set[str]]:
    """What it prints, and the command lines of all its processes."""
    engines = [
        {
            "engine": "endpoint",
            "name": f"e{number}",
            "args": {"url": url, "model": model, "api_key_env": "CANARY"},
        }
        for number, (url, model) in enumerate(places)
    ]
    study = {
        "name": "canary",
        "engines": engines,
        "workloads": [{"name": "w", "concurrency": 1, "input_tokens": 4, "output_tokens": 2}],
        "measure": {"starts": 1, "trials": 1},
    }
    (folder / "study.yaml").write_text(json.dumps(study), encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "bitbench",
        "run",
        "study.yaml",
        "--into",
        "out",
        "--key-from",
        "CANARY",
    ]
    output, seen = folder / "output.txt", set[str]()
    with output.open("wb") as file:
        running = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, "CANARY": KEY},
            stdout=file,
            stderr=subprocess.STDOUT,
        )
        while running.poll() is None:
            seen |= command_lines(running.pid)
            time.sleep(0.02)
    said = output.read_text(encoding="utf-8")
    assert seen, said
    assert "this is a bug" not in said
    return said, seen


def command_lines(pid: int) -> set[str]:
    try:
        process = psutil.Process(pid)
        return {" ".join(each.cmdline()) for each in (process, *process.children(recursive=True))}
    except psutil.Error:
        return set()

"""Locust has no notion of a token stream: this is how a user of it would measure one. See scripts/loadgen_shootout."""

import json
import os
import time
from pathlib import Path

from locust import HttpUser, events, task

TARGET = json.loads(os.environ["SHOOTOUT_TARGET"])
BODY = {
    "model": TARGET["model"],
    "prompt": [1] * TARGET["prompt_tokens"],
    "max_tokens": TARGET["tokens"],
    "stream": True,
}
begun = 0
ttft: list[float] = []
tpot: list[float] = []


class StreamUser(HttpUser):
    @task
    def stream(self) -> None:
        global begun  # noqa: PLW0603
        if begun >= TARGET["requests"]:
            time.sleep(0.1)
            return
        begun += 1
        started = time.perf_counter()
        times = []
        headers = {"Authorization": f"Bearer {TARGET['key']}"}
        response = self.client.post("/v1/completions", json=BODY, headers=headers, stream=True)
        for line in response.iter_lines():
            if b'"text"' in line:
                times.append(time.perf_counter())
        ttft.append(times[0] - started)
        tpot.append((times[-1] - times[0]) / (len(times) - 1))
        if len(ttft) == TARGET["requests"]:
            self.environment.runner.quit()


@events.quitting.add_listener
def _write(**_: object) -> None:
    result = {
        "ttft_p50_s": quantile(ttft, 0.5),
        "ttft_p99_s": quantile(ttft, 0.99),
        "tpot_p50_s": quantile(tpot, 0.5),
    }
    Path(TARGET["result"]).write_text(json.dumps(result), encoding="utf-8")


def quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    below, part = divmod(share * (len(ordered) - 1), 1)
    return ordered[int(below)] * (1 - part) + ordered[min(int(below) + 1, len(ordered) - 1)] * part

"""Chromium without a window, driven over its debugging pipe: no driver, no package, no port."""

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType

import pytest

from bitbench.study.base import Json

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
ANSWER_S = 60.0


def chromium() -> str:
    """Its path; a test that needs a browser is skipped where there is none."""
    found = shutil.which("chromium") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("no chromium on this machine: apt-get install chromium")
    return found


class Browser:
    """One browser with one tab. `errors` collects what scripts threw and what the page's policy stopped."""

    def __init__(self, profile: Path) -> None:
        self._profile = profile
        self._numbers = itertools.count(1)
        self._session: str | None = None
        self._rest = b""
        self.events: list[Json] = []

    def __enter__(self) -> "Browser":
        commands_in, self._out = os.pipe()
        self._in, answers_out = os.pipe()
        # The browser reads commands from descriptor 3 and writes answers to 4.
        script = f'exec "$@" 3<&{commands_in} 4>&{answers_out}'
        arguments = [chromium(), *FLAGS, f"--user-data-dir={self._profile}", "about:blank"]
        self._process = subprocess.Popen(
            ["bash", "-c", script, "browser", *arguments],
            pass_fds=(commands_in, answers_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands_in)
        os.close(answers_out)
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.terminate()
        self._process.wait(timeout=20)
        os.close(self._in)
        os.close(self._out)

    def call(self, method: str, **params: Json) -> Json:
        number = next(self._numbers)
        message: dict[str, Json] = {"id": number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + ANSWER_S
        while True:
            answer = self._next(end)
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def _next(self, end: float) -> dict[str, Json]:
        while b"\0" not in self._rest:
            readable, _, _ = select.select([self._in], [], [], max(0.0, end - time.monotonic()))
            assert readable, "the browser does not answer"
            part = os.read(self._in, 1 << 20)
            assert part, "the browser has ended"
            self._rest += part
        message, _, self._rest = self._rest.partition(b"\0")
        parsed: dict[str, Json] = json.loads(message)
        return parsed

    def size(self, width: int, height: int = 900, *, scale: float = 1) -> None:
        phone = width < 600
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=phone,
        )

    def theme(self, scheme: str) -> None:
        self.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": scheme}],
        )

    def open(self, path: Path) -> None:
        """Returns when every figure is drawn."""
        self.events.clear()
        self.call("Page.navigate", url=path.resolve().as_uri())
        self.wait(
            "document.readyState === 'complete' && document.documentElement.dataset.drawn === 'all'"
        )

    def run(self, expression: str) -> Json:
        answer = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, condition: str, limit_s: float = 60.0) -> None:
        end = time.monotonic() + limit_s
        while not self.run(condition):
            assert time.monotonic() < end, f"never became true: {condition}"
            time.sleep(0.05)

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        arguments: dict[str, Json] = {"format": "png", "captureBeyondViewport": whole}
        if whole:
            size = self.call("Page.getLayoutMetrics")["cssContentSize"]
            arguments["clip"] = {
                "x": 0,
                "y": 0,
                "width": size["width"],
                "height": min(size["height"], 16_000),
                "scale": 1,
            }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", **arguments)["data"]))

    def pdf(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(
            base64.b64decode(
                self.call("Page.printToPDF", paperWidth=8.27, paperHeight=11.69)["data"]
            )
        )

    def errors(self) -> list[str]:
        """Exceptions, and everything the console called an error."""
        self.run("0")
        thrown = [
            str(one["params"])
            for one in self.events
            if one.get("method") == "Runtime.exceptionThrown"
        ]
        logged = [
            one["params"]["entry"] for one in self.events if one.get("method") == "Log.entryAdded"
        ]
        return [*thrown, *(entry["text"] for entry in logged if entry["level"] == "error")]

    def requested(self) -> list[str]:
        """Every address that the page asked for."""
        sent = [
            one["params"] for one in self.events if one.get("method") == "Network.requestWillBeSent"
        ]
        return [one["request"]["url"] for one in sent]

"""An OpenAI-compatible server with a known schedule, and variants that answer as other servers do.

`python -m tests.known_server VARIANT TRUTH TTFT TPOT` prints its port, and writes to TRUTH a JSON line for each answer:
the seconds from the request to each chunk that contains tokens, and how many.
"""

import asyncio
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
Body = dict[str, Any]


class Sent(NamedTuple):
    at_s: float  # after the request
    text: str
    tokens: int
    field: str = "content"  # of a chat's delta; "role" for a chunk without text, "comment" for a line that is no event


class Refused(NamedTuple):
    status: int
    said: str
    headers: tuple[str, ...] = ()


class KnownServer:
    models: tuple[str, ...] = ("m",)
    paths: tuple[str, ...] = (COMPLETIONS, CHAT)
    stays_open, version, counts = True, "1.1", True

    def __init__(self, truth: Path, ttft_s: float, tpot_s: float) -> None:
        self.ttft_s, self.tpot_s = ttft_s, tpot_s
        self.answers, self.open = 0, 0
        self._born = time.monotonic()
        self._truth = truth.open("w", buffering=1, encoding="utf-8")

    @property
    def age_s(self) -> float:
        return time.monotonic() - self._born

    def refuse(self, path: str, headers: dict[str, str], body: Body) -> Refused | None:
        return None

    def tokens(self, body: Body) -> int:
        return int(body.get("max_tokens") or 16)

    def schedule(self, body: Body) -> list[Sent]:
        return [
            Sent(self.ttft_s + place * self.tpot_s, " w", 1) for place in range(self.tokens(body))
        ]

    async def serve(self) -> None:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0, backlog=256)
        print(server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                await self._answer_one(reader, writer)
                if not self.stays_open or self.version == "1.0":
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
        path = first.split()[1]
        pairs = [line.partition(":") for line in lines]
        headers = {name.lower(): value.strip() for name, _, value in pairs}
        content = await reader.readexactly(int(headers.get("content-length", 0)))
        asked_s = time.monotonic()
        body: Body = json.loads(content) if content else {}
        refused = self.refuse(path, headers, body)
        if refused is not None:
            self._write(
                writer, refused.status, {"error": {"message": refused.said}}, *refused.headers
            )
        elif path.endswith("/models") and not body:
            self._write(writer, 200, {"data": [{"id": model} for model in self.models]})
        elif path in self.paths:
            self.open += 1
            await self._stream(writer, asked_s, body)
            self.open -= 1
        else:
            self._write(writer, 404, {"error": {"message": "Not Found"}})
        await writer.drain()

    def _head(self, status: int, *headers: str) -> bytes:
        closing = [] if self.stays_open and self.version == "1.1" else ["Connection: close"]
        return "\r\n".join(
            [f"HTTP/{self.version} {status} Some", *headers, *closing, "", ""]
        ).encode()

    def _write(
        self, writer: asyncio.StreamWriter, status: int, content: Body, *headers: str
    ) -> None:
        data = json.dumps(content).encode()
        writer.write(self._head(status, f"Content-Length: {len(data)}", *headers) + data)

    async def _stream(self, writer: asyncio.StreamWriter, asked_s: float, body: Body) -> None:
        is_chat, is_chunked = "messages" in body, self.version == "1.1"

        def put(data: bytes) -> None:
            writer.write(b"%x\r\n%b\r\n" % (len(data), data) if is_chunked else data)

        framing = ["Transfer-Encoding: chunked"] if is_chunked else []
        writer.write(self._head(200, "Content-Type: text/event-stream", *framing))
        self.answers += 1
        if is_chat:
            put(_event({"delta": {"role": "assistant", "content": ""}}))
        sent = []
        for chunk in self.schedule(body):
            await asyncio.sleep(max(asked_s + chunk.at_s - time.monotonic(), 0.0))
            part = {"delta": {chunk.field: chunk.text}} if is_chat else {"text": chunk.text}
            put(b": ping\n\n" if chunk.field == "comment" else _event(part))
            if chunk.tokens:
                sent.append((time.monotonic() - asked_s, chunk.tokens))
            await writer.drain()
        prompt, total = (
            body.get("prompt") or body.get("messages") or [],
            sum(tokens for _, tokens in sent),
        )
        if self.counts:
            usage = {"prompt_tokens": len(prompt), "completion_tokens": total}
            put(b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n")
        put(b"data: [DONE]\n\n")
        if is_chunked:
            writer.write(b"0\r\n\r\n")
        self._truth.write(json.dumps(sent) + "\n")


def _event(part: Body) -> bytes:
    return (
        b"data: "
        + json.dumps({"choices": [{"index": 0, "finish_reason": None, **part}]}).encode()
        + b"\n\n"
    )


class ChatAlone(KnownServer):
    paths = (CHAT,)


class Closes(KnownServer):
    stays_open = False


class Http10(KnownServer):
    version = "1.0"


class NoUsage(KnownServer):
    counts = False


class EmptyChunks(KnownServer):
    """Before the first token and between later ones."""

    def schedule(self, body: Body) -> list[Sent]:
        step_s, made = 0.02, super().schedule(body)
        empty = [Sent(step_s * place, "", 0) for place in range(1, int(made[-1].at_s / step_s))]
        return sorted([*made, *empty])


class EmptyBefore(EmptyChunks):
    def schedule(self, body: Body) -> list[Sent]:
        return [
            chunk for chunk in super().schedule(body) if chunk.tokens or chunk.at_s < self.ttft_s
        ]


class Comments(EmptyBefore):
    def schedule(self, body: Body) -> list[Sent]:
        return [
            chunk if chunk.tokens else chunk._replace(field="comment")
            for chunk in super().schedule(body)
        ]


class OneChunk(KnownServer):
    def schedule(self, body: Body) -> list[Sent]:
        made = super().schedule(body)
        return [Sent(made[-1].at_s, " w" * len(made), len(made))]


class Several(KnownServer):
    """Eight tokens in a chunk, sent when the last of them is done."""

    def schedule(self, body: Body) -> list[Sent]:
        made = super().schedule(body)
        parts = [made[start : start + 8] for start in range(0, len(made), 8)]
        return [Sent(part[-1].at_s, " w" * len(part), len(part)) for part in parts]


class HeldBack(KnownServer):
    """Nearly all of an answer in its first chunk, as a filter that wants to see it releases it."""

    def schedule(self, body: Body) -> list[Sent]:
        made = super().schedule(body)
        held = made[:-1]
        return [Sent(held[-1].at_s, " w" * len(held), len(held)), made[-1]]


class Reasoning(ChatAlone):
    def schedule(self, body: Body) -> list[Sent]:
        made = super().schedule(body)
        half = len(made) // 2
        return [chunk._replace(field="reasoning_content") for chunk in made[:half]] + made[half:]


class Varied(KnownServer):
    """Each answer has times of its own."""

    rng = random.Random(1)

    def schedule(self, body: Body) -> list[Sent]:
        first_s, each_s = (
            self.ttft_s * self.rng.uniform(0.5, 3),
            self.tpot_s * self.rng.uniform(0.5, 1.5),
        )
        return [Sent(first_s + place * each_s, " w", 1) for place in range(self.tokens(body))]


class Caches(KnownServer):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._seen: set[str] = set()

    def schedule(self, body: Body) -> list[Sent]:
        prompt = json.dumps(body.get("prompt") or body.get("messages"))
        saved_s = 0.9 * self.ttft_s if prompt in self._seen else 0.0
        self._seen.add(prompt)
        return [chunk._replace(at_s=chunk.at_s - saved_s) for chunk in super().schedule(body)]


class TwoModels(KnownServer):
    models = ("fast", "slow")

    def schedule(self, body: Body) -> list[Sent]:
        factor = 4 if body["model"] == "slow" else 1
        made = super().schedule(body)
        return [
            chunk._replace(at_s=self.ttft_s + (chunk.at_s - self.ttft_s) * factor) for chunk in made
        ]


class Stalls(Several):
    """The last of each ten answers stands still for two seconds."""

    def schedule(self, body: Body) -> list[Sent]:
        late_s = 2.0 if self.answers % 10 == 0 else 0.0
        first, *rest = super().schedule(body)
        return [first, *(chunk._replace(at_s=chunk.at_s + late_s) for chunk in rest)]


class StopsEarly(KnownServer):
    def tokens(self, body: Body) -> int:
        return max(super().tokens(body) // 2, 1)


class Limited(KnownServer):
    def refuse(self, path: str, headers: dict[str, str], body: Body) -> Refused | None:
        return (
            Refused(429, "Too many requests", ("Retry-After: 2",))
            if body and self.open >= 2
            else None
        )


class SlowStart(KnownServer):
    def refuse(self, path: str, headers: dict[str, str], body: Body) -> Refused | None:
        return Refused(503, "Loading model", ("Retry-After: 5",))


class WantsKey(KnownServer):
    def refuse(self, path: str, headers: dict[str, str], body: Body) -> Refused | None:
        return (
            None
            if headers.get("authorization") == "Bearer right"
            else Refused(401, "Invalid API key")
        )


class WantsHeader(KnownServer):
    def refuse(self, path: str, headers: dict[str, str], body: Body) -> Refused | None:
        return Refused(400, "header X-Tenant is missing")


class Redirects(KnownServer):
    def refuse(self, path: str, headers: dict[str, str], body: Body) -> Refused | None:
        return Refused(307, "moved", (f"Location: http://{headers['host']}/llm{path}",))


class Prefixed(KnownServer):
    def refuse(self, path: str, headers: dict[str, str], body: Body) -> Refused | None:
        return None if path.startswith("/api/v1") else Refused(404, "Not Found")


class OtherLimit(KnownServer):
    def refuse(self, path: str, headers: dict[str, str], body: Body) -> Refused | None:
        said = "Unsupported parameter: use 'max_completion_tokens' instead."
        return Refused(400, said) if "max_tokens" in body else None


@dataclass(frozen=True)
class Running:
    url: str
    truth: Path

    def sent(self, last: int) -> list[list[tuple[float, int]]]:
        """The last answers: when each chunk with tokens went out, and how many it had."""
        lines = self.truth.read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines[-last:]]


@contextmanager
def known_server(
    variant: type[KnownServer], folder: Path, *, ttft_s: float = 0.15, tpot_s: float = 0.015
) -> Iterator[Running]:
    truth = folder / "truth.jsonl"
    command = [
        sys.executable,
        "-m",
        "tests.known_server",
        variant.__name__,
        str(truth),
        str(ttft_s),
        str(tpot_s),
    ]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield Running(f"http://127.0.0.1:{int(process.stdout.readline())}", truth)
        finally:
            process.kill()


if __name__ == "__main__":
    name, truth, *times = sys.argv[1:]
    asyncio.run(globals()[name](Path(truth), *map(float, times)).serve())

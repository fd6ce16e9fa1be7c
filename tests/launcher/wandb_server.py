"""A W&B server on 127.0.0.1 that speaks as much of the protocol as wandb-core uses, and keeps the history it receives.

Real HTTP: GraphQL, the file stream and file uploads. History lines are stored by their offset; a run that is opened
again tells how many it has, and wandb-core goes on there. `break_after` and `stall` make uploads fail.
"""

from __future__ import annotations

import contextlib
import gzip
import http.server
import json
import threading
import time
from dataclasses import dataclass, field
from typing import Any

API_KEY = "0123456789abcdef0123456789abcdef01234567"


class _Quiet(http.server.ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that vanish are part of the tests."""


@dataclass
class StoredRun:
    """What the server has of one run."""

    variables: dict[str, Any] = field(default_factory=dict)
    history: dict[int, dict[str, Any]] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    exit_code: int | None = None
    starts: int = 0

    def rows(self) -> list[dict[str, Any]]:
        """The history in the order of its offsets."""
        return [self.history[offset] for offset in sorted(self.history)]

    def column(self, key: str) -> list[tuple[int, Any]]:
        """(step, value) of every line that has the key."""
        return [(row["step"], row[key]) for row in self.rows() if key in row]


class WandbServer:
    """Serves until `close`."""

    def __init__(self) -> None:
        self.runs: dict[str, StoredRun] = {}
        self.requests: list[str] = []
        self.break_after: int | None = None  # a request that would make more history lines is refused (409)
        self.stall = False  # keep half of the next history lines, and answer when this is False again
        self._server = _Quiet(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def environment(self) -> dict[str, str]:
        """What a client needs to find it."""
        return {"WANDB_BASE_URL": self.url, "WANDB_API_KEY": API_KEY}

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    # ------------------------------------------------------------ answers

    def graphql(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        """The data of one query."""
        if "upsertBucket(" in query:
            name = variables["name"]
            run = self.runs.setdefault(name, StoredRun())
            run.starts += 1
            run.variables.update({key: value for key, value in variables.items() if value is not None})
            return {"upsertBucket": {"bucket": self._bucket(name), "inserted": run.starts == 1}}
        if "createRunFiles(" in query:
            files = [{"name": name, "uploadUrl": f"{self.url}/storage/{name}"} for name in variables["files"]]
            return {"createRunFiles": {"runID": "run", "uploadHeaders": [], "files": files}}
        if "viewer" in query:
            viewer = {"id": "1", "entity": "me", "username": "me", "email": "me@here", "flags": "{}", "admin": False}
            return {"viewer": {**viewer, "teams": {"edges": []}}, "serverInfo": {"features": []}}
        if "serverInfo" in query:
            return {"serverInfo": {"features": []}}
        name = variables.get("name") or variables.get("run") or variables.get("runName")
        found = self._bucket(name) if name in self.runs else None
        return {"model": {"id": "p", "bucket": found}, "project": {"id": "p", "run": found, "internalId": "1"}}

    def _bucket(self, name: str) -> dict[str, Any]:
        run = self.runs[name]
        entity = {"id": "e", "name": run.variables.get("entity") or "me"}
        return {
            "id": f"id-{name}",
            "name": name,
            "displayName": run.variables.get("displayName"),
            "config": run.variables.get("config") or "{}",
            "sweepName": None,
            "project": {"id": "p", "name": run.variables.get("project"), "entity": entity},
            "historyLineCount": len(run.history),
            "historyTail": json.dumps([json.dumps(row) for row in run.rows()[-1:]]),
            "eventsLineCount": 0,
            "eventsTail": "[]",
            "logLineCount": 0,
            "wandbConfig": '{"t": 1}',
            "notes": None,
            "summaryMetrics": json.dumps(run.summary),
            "tags": run.variables.get("tags") or [],
            "state": "finished" if run.exit_code == 0 else "running" if run.exit_code is None else "failed",
            "historyKeys": {"lastStep": max((row["_step"] for row in run.rows()), default=-1), "keys": {}, "sets": []},
            "systemMetrics": "{}",
            "user": {"name": "me", "username": "me"},
            "createdAt": "2026-01-01T00:00:00",
            "heartbeatAt": "2026-01-01T00:00:00",
        }

    def file_stream(self, name: str, body: dict[str, Any]) -> int:
        """Store what one request brings; the HTTP status."""
        run = self.runs[name]
        for file, chunk in (body.get("files") or {}).items():
            lines = [json.loads(line) for line in chunk["content"]] if "history" in file or "summary" in file else []
            if "history" in file:
                if self.break_after is not None and len(run.history) + len(lines) > self.break_after:
                    return 409
                if self.stall:
                    lines = lines[: max(1, len(lines) // 2)]
                run.history.update({chunk["offset"] + number: line for number, line in enumerate(lines)})
            elif "summary" in file and lines:
                run.summary = lines[-1]
        while self.stall and run.history:
            time.sleep(0.02)
        if body.get("complete"):
            run.exit_code = body.get("exitcode")
        return 200

    def _handler(server) -> type[http.server.BaseHTTPRequestHandler]:
        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *arguments: Any) -> None:
                pass

            def _body(self) -> bytes:
                if self.headers.get("transfer-encoding") == "chunked":
                    parts = []
                    while size := int(self.rfile.readline(), 16):
                        parts.append(self.rfile.read(size))
                        self.rfile.readline()
                    self.rfile.readline()
                    body = b"".join(parts)
                else:
                    body = self.rfile.read(int(self.headers.get("content-length") or 0))
                return gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body

            def _answer(self) -> None:
                body = self._body()
                server.requests.append(f"{self.command} {self.path}")
                status, value = 200, {}
                if self.path == "/graphql":
                    asked = json.loads(body)
                    value = {"data": server.graphql(asked["query"], asked.get("variables") or {})}
                elif self.path.endswith("/file_stream"):
                    status = server.file_stream(self.path.split("/")[-2], json.loads(body))
                text = json.dumps(value).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(text)))
                with contextlib.suppress(ConnectionError):  # a client that was killed
                    self.end_headers()
                    self.wfile.write(text)

            do_GET = do_POST = do_PUT = _answer

        return Handler

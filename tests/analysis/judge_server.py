"""A real HTTP server that speaks OpenAI's protocol as a judge does, and misbehaves as told."""

from __future__ import annotations

import json
import re
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

#: What a request gets in place of a verdict: (how many requests there were, its body) -> one of the handler's actions,
#: or None for a verdict.
Script = Callable[[int, dict[str, Any]], "str | None"]
_BLOCK = re.compile(r"<(prompt|response A|response B) (\w+)>\n(.*?)\n</\1 \2>", re.DOTALL)
USAGE = {"prompt_tokens": 100, "completion_tokens": 10}


def blocks(body: dict[str, Any]) -> tuple[str, str, str]:
    """The prompt and both responses of a request."""
    found = {name: text for name, _, text in _BLOCK.findall(body["messages"][-1]["content"])}
    return found["prompt"], found["response A"], found["response B"]


def longer(body: dict[str, Any]) -> str:
    """The verdict of a judge that likes long responses."""
    _, first, second = blocks(body)
    return "A" if len(first) > len(second) else "B" if len(second) > len(first) else "tie"


@dataclass
class Server:
    """The requests that came, and those that were answered with a verdict, by their texts."""

    script: Script
    verdict: Callable[[dict[str, Any]], str]
    usage: dict[str, Any] | None
    requests: list[dict[str, Any]] = field(default_factory=list)
    answered: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    headers: list[dict[str, str]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    hold: threading.Event = field(default_factory=threading.Event)
    url: str = ""


class _Handler(BaseHTTPRequestHandler):
    judge: Server
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def do_POST(self) -> None:
        judge = self.judge
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with judge.lock:
            judge.requests.append(body)
            judge.headers.append(dict(self.headers))
            action = judge.script(len(judge.requests), body)
        if self.path != "/v1/chat/completions":
            action = "404"
        getattr(self, f"_{action}", self._status)(action, body)

    def _None(self, _: str, body: dict[str, Any]) -> None:
        self._say(f"Because.\n\n**Verdict: {self.judge.verdict(body)}**", body)

    def _unclear(self, _: str, body: dict[str, Any]) -> None:
        self._say("Verdict: A\nBut perhaps B.", body)

    def _parts(self, _: str, body: dict[str, Any]) -> None:
        shown = [{"type": "reasoning", "text": "Verdict: tie"}, {"type": "text", "text": "Because.\n"}]
        self._say([*shown, {"type": "text", "text": f"Verdict: {self.judge.verdict(body)}"}], body)

    def _error(self, _: str, body: dict[str, Any]) -> None:
        self._send(200, '{"error": {"message": "no endpoints found", "code": 404}}')

    def _html(self, _: str, body: dict[str, Any]) -> None:
        self._send(200, "<html>Sign in</html>")

    def _slow(self, _: str, body: dict[str, Any]) -> None:
        self.judge.hold.wait(60)
        self.close_connection = True

    def _reset(self, _: str, body: dict[str, Any]) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.connection.close()

    def _cut(self, _: str, body: dict[str, Any]) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        self.wfile.write(b'{"choices": [')
        self.close_connection = True

    def _redirect(self, _: str, body: dict[str, Any]) -> None:
        self._send(302, "", Location=f"{self.judge.url}/elsewhere")

    def _busy(self, _: str, body: dict[str, Any]) -> None:
        self._send(429, '{"error": {"message": "slow down"}}', **{"Retry-After": "0.01"})

    def _later(self, _: str, body: dict[str, Any]) -> None:
        self._send(429, "", **{"Retry-After": "86400"})

    def _status(self, action: str, body: dict[str, Any]) -> None:
        key = self.headers.get("Authorization", "")
        self._send(int(action), json.dumps({"error": {"message": f"no: {key}"}}))

    def _say(self, text: str | list[dict[str, str]], body: dict[str, Any]) -> None:
        content = {"model": "served", "choices": [{"message": {"role": "assistant", "content": text}}]}
        if self.judge.usage is not None:
            content["usage"] = self.judge.usage
        with self.judge.lock:
            self.judge.answered[blocks(body)] += 1
        self._send(200, json.dumps(content))

    def _send(self, status: int, text: str, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(text.encode())), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text.encode())


@contextmanager
def serving(
    script: Script = lambda count, body: None,
    verdict: Callable[[dict[str, Any]], str] = longer,
    usage: dict[str, Any] | None = USAGE,
    port: int = 0,
) -> Iterator[Server]:
    """A server on this machine while the block runs."""
    judge = Server(script, verdict, usage)
    handler = type("Handler", (_Handler,), {"judge": judge})
    server = ThreadingHTTPServer(("127.0.0.1", port), handler)
    server.daemon_threads = True
    judge.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield judge
    finally:
        judge.hold.set()
        server.shutdown()
        server.server_close()
        thread.join()

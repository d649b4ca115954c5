# SPDX-License-Identifier: Apache-2.0

"""Servers that others reach before they have shown a key, and bodies that cost more than their bytes."""

import gzip
import json
import os
import resource
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from threading import Thread

import pytest

from trl_nlac.gateway import server as module
from trl_nlac.gateway.chat_requests import Reply
from trl_nlac.gateway.server import HOST, Server


ATTACKER = """
import resource, socket, sys, time
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
held, end = [], time.monotonic() + float(sys.argv[2])
while time.monotonic() < end:
    try:
        held.append(socket.create_connection(("127.0.0.1", int(sys.argv[1])), 1))
        if len(held) % 2:
            held[-1].send(b"POST /v1/chat/completions HTTP/1.1\\r\\nX-Slow: ")
    except OSError:
        time.sleep(0.01)
    if len(held) > 1500:
        del held[:500]
print(len(held))
"""
# A training run with an agent, whose limit of files is low, and which says how many requests were made.


class Echo:
    def ask(self, request):
        request.reply(Reply({"role": "assistant", "content": "yes"}, 1, 1))

    def judge(self, request):
        request.reply({})

    def pay(self, reward):
        pass


@pytest.fixture
def served():
    server = Server()
    key = server.open(Echo())
    return server, int(server.base_url.rsplit(":", 1)[1].split("/")[0]), key


def ask(port: int, key: str, body: bytes | None = None, timeout: float = 30, **headers) -> tuple[int, dict]:
    body = b'{"messages": [{"role": "user", "content": "hi"}]}' if body is None else body
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json", **headers}
    request = urllib.request.Request(f"http://{HOST}:{port}/v1/chat/completions", body, headers)
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def ask_again(port: int, key: str) -> int:
    """Ask as OpenAI's client does, which tries three times: others can take a place before a key was read."""
    for _ in range(2):
        try:
            return ask(port, key)[0]
        except urllib.error.URLError:
            time.sleep(0.5)
    return ask(port, key)[0]


def raw(port: int, sent: bytes, timeout: float = 20) -> bytes:
    with socket.create_connection((HOST, port), timeout) as connection:
        connection.sendall(sent)
        parts = []
        while part := connection.recv(65536):
            parts.append(part)
        return b"".join(parts)


def attack(port: int, seconds: float) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", ATTACKER, str(port), str(seconds)], stdout=subprocess.PIPE)


def test_connections_without_a_key_leave_files_to_the_process(monkeypatch):
    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, files[1]))
    try:
        server = Server()
        port, key = int(server.base_url.rsplit(":", 1)[1].split("/")[0]), server.open(Echo())
        attacker = attack(port, 4.0)
        seconds, most = [], 0
        while attacker.poll() is None:
            start = time.monotonic()
            assert ask_again(port, key) == 200
            seconds.append(time.monotonic() - start)
            most = max(most, len(server._keyless))
            with open(os.devnull):
                pass
        assert int(attacker.stdout.read()) > 300
        assert len(os.listdir("/proc/self/fd")) - used < 128
        assert most <= 32 and len(seconds) > 5 and max(seconds) < 9.0
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, files)


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"POST /v1/chat/completions HTTP/1.1\r\nX-A: ",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\nExpect: 100-continue\r\n\r\n",
    ],
    ids=["nothing", "half a head", "no body"],
)
def test_what_shows_no_key_is_closed(served, monkeypatch, sent):
    monkeypatch.setattr(module, "KEY_SECONDS", 0.5)
    start = time.monotonic()
    raw(served[1], sent)
    assert time.monotonic() - start < 9.0 and not served[0]._keyless


def test_a_body_that_does_not_come_is_refused(served, monkeypatch):
    monkeypatch.setattr(module, "BODY_SECONDS", 0.5)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {served[2]}\r\n"
    answer = raw(served[1], head.encode() + b"Content-Length: 100\r\nExpect: 100-continue\r\n\r\n")
    assert b"408" in answer and b"did not come within 0.5 seconds" in answer


def test_one_that_has_shown_its_key_stays(served, monkeypatch):
    monkeypatch.setattr(module, "KEY_SECONDS", 1.0)
    _, port, key = served
    head = f"GET /v1/models HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {key}\r\n\r\n".encode()
    with socket.create_connection((HOST, port), 5) as connection:
        for _ in range(2):
            connection.sendall(head)
            assert b"200 OK" in connection.recv(65536)
            time.sleep(1.2)


BODIES = {
    "empty objects, packed": (gzip.compress(b"[" + b"{}," * 21_000_000 + b"{}]"), {"Content-Encoding": "gzip"}, 413),
    "one that unpacks to a gigabyte": (gzip.compress(b" " * 2**27), {"Content-Encoding": "gzip"}, 413),
    "empty objects": (b"[" + b"{}," * 3_000_000 + b"{}]", {}, 413),
    "packed with what is not offered": (b"{}", {"Content-Encoding": "br"}, 415),
    "half of a packed one": (gzip.compress(b"{}" * 100)[:-9], {"Content-Encoding": "gzip"}, 400),
    "NaN for a model": (b'{"model": NaN, "messages": [{"role": "user", "content": "hi"}]}', {}, 400),
    "a number that becomes infinite": (b'{"model": 1e999, "messages": [{"role": "user", "content": "hi"}]}', {}, 400),
    "many messages": (b'{"messages": [' + b'{"role":"user","content":"x"},' * 200_000 + b"0]}", {}, 400),
    "levels that Python cannot follow": (b'{"model": ' + b"[" * 150 + b"]" * 150 + b', "messages": []}', {}, 400),
}


@pytest.mark.parametrize("body", BODIES)
def test_a_costly_body_does_not_hold_others_up(served, body):
    sent, headers, status = BODIES[body]
    _, port, key = served
    found = []
    asking = Thread(target=lambda: found.append(ask(port, key, sent, 60, **headers)))
    asking.start()
    slowest = 0.0
    while asking.is_alive():
        start = time.monotonic()
        assert ask(port, key)[0] == 200
        slowest = max(slowest, time.monotonic() - start)
    ((answered, error),) = found
    assert answered == status and set(error["error"]) == {"message", "type", "param", "code"}
    assert slowest < 20.0


def test_a_packed_body_is_read(served):
    body = b'{"messages": [{"role": "user", "content": "hi"}]}'
    _, port, key = served
    assert ask(port, key, gzip.compress(body), **{"Content-Encoding": "gzip"})[0] == 200


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01 nonsense\r\n\r\n",
        b"NO SUCH LINE\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: " + b"a" * 9000 + b"\r\n\r\n",
        b"POST /v1/models HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/models HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    ],
)
def test_what_is_not_http_is_answered_in_openais_form(served, caplog, capfd, sent):
    head, _, body = raw(served[1], sent).partition(b"\r\n\r\n")
    error = json.loads(body)["error"]
    assert head.startswith(b"HTTP/1") and set(error) == {"message", "type", "param", "code"}
    assert not caplog.records and "Traceback" not in capfd.readouterr().err

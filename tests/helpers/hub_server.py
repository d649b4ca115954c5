# SPDX-License-Identifier: Apache-2.0

"""A fake Hub: repositories in memory, with the parts of the HTTP API that uploads and downloads need."""

import base64
import hashlib
import json
import threading
from collections import defaultdict
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlparse


class HubServer:
    """Serves on a free local port in a `with` block."""

    def __init__(self):
        self.files: dict[str, dict[str, bytes]] = defaultdict(dict)
        self.private: dict[str, bool] = {}
        self.large: dict[str, bytes] = {}  # by hash, as in Git LFS
        self.on_upload: Callable[[], None] = lambda: None
        self.unknown: list[str] = []  # requests that are not supported here
        hub = self

        class Handler(_Handler):
            server_of_files = hub

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> "HubServer":
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def variables(self, home: Path) -> dict[str, str]:
        return {
            "HF_ENDPOINT": self.url,
            "HF_HUB_OFFLINE": "0",
            "HF_HOME": str(home),
            "HF_TOKEN": "hf_of_nobody",
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "TRL_DISABLE_TELEMETRY": "1",
        }

    def __exit__(self, *error):
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_of_files: HubServer

    def log_message(self, *args):
        pass

    def do_POST(self):
        hub, path = self.server_of_files, urlparse(self.path).path
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = self._chunks()
        parts = path.strip("/").split("/")
        if path == "/api/repos/create":
            asked = json.loads(body)
            kind = f"{asked.get('type') or 'model'}s"
            name = f"{kind}/{asked.get('organization') or 'me'}/{asked['name']}"
            hub.files[name]  # creates it
            hub.private.setdefault(name, bool(asked.get("private") or asked.get("visibility") == "private"))
            prefix = "" if kind == "models" else f"{kind}/"
            self._json({"url": f"{hub.url}/{prefix}{name.partition('/')[2]}", "name": name.partition("/")[2]})
        elif path == "/api/validate-yaml":
            self._json({"warnings": [], "errors": []})
        elif "preupload" in parts:
            paths = [file["path"] for file in json.loads(body)["files"]]
            modes = ["lfs" if path.endswith((".parquet", ".safetensors")) else "regular" for path in paths]
            pairs = zip(paths, modes, strict=True)
            self._json({"files": [{"path": p, "uploadMode": mode, "shouldIgnore": False} for p, mode in pairs]})
        elif path.endswith("/info/lfs/objects/batch"):
            objects = json.loads(body)["objects"]
            for each in objects:
                each["actions"] = {"upload": {"href": f"{hub.url}/lfs/{each['oid']}"}}
            self._json({"transfer": "basic", "objects": objects})
        elif "commit" in parts:
            repository = hub.files["/".join(parts[1:4])]
            for line in filter(None, body.splitlines()):
                entry = json.loads(line)
                if entry["key"] == "file":
                    repository[entry["value"]["path"]] = base64.b64decode(entry["value"]["content"])
                elif entry["key"] == "lfsFile":
                    repository[entry["value"]["path"]] = hub.large[entry["value"]["oid"]]
                elif entry["key"] == "deletedFile":
                    repository.pop(entry["value"]["path"], None)
            commit = _sha(repository)
            self._json({"commitUrl": f"{hub.url}/{'/'.join(parts[2:4])}/commit/{commit}", "commitOid": commit})
        elif "paths-info" in parts:
            self._json([])
        else:
            self._missing()

    def do_PUT(self):
        self.server_of_files.on_upload()
        self.server_of_files.large[self.path.rpartition("/")[2]] = self.rfile.read(int(self.headers["Content-Length"]))
        self._send(200, b"", {})

    def do_GET(self):
        hub, path = self.server_of_files, unquote(urlparse(self.path).path)
        parts = path.strip("/").split("/")
        if path == "/api/whoami-v2":
            self._json({"name": "me", "type": "user", "orgs": [], "auth": {"accessToken": {"role": "write"}}})
        elif parts[0] == "api":
            key = "/".join(parts[1:4])
            if key not in hub.files:
                self._missing("RepoNotFound")
            elif "tree" in parts:
                folder = "/".join(parts[6:])
                found = {path: text for path, text in hub.files[key].items() if path.startswith(folder)}
                if folder and not found:
                    self._missing("EntryNotFound")
                else:
                    files = sorted(found.items())
                    self._json([{"type": "file", "path": p, "size": len(c), "oid": _sha(c)} for p, c in files])
            else:
                siblings = [{"rfilename": name} for name in sorted(hub.files[key])]
                described = {"id": "/".join(parts[2:4]), "sha": _sha(hub.files[key]), "siblings": siblings}
                self._json({**described, "private": False, "tags": []})
        elif "resolve" in parts:
            at = parts.index("resolve")
            key = "/".join(parts[:at]) if parts[0] == "datasets" else "/".join(["models", *parts[:at]])
            content = hub.files.get(key, {}).get("/".join(parts[at + 2 :]))
            if content is None:
                self._missing("EntryNotFound" if key in hub.files else "RepoNotFound")
            else:
                self._send(200, content, {"ETag": f'"{_sha(content)}"', "X-Repo-Commit": _sha(hub.files[key])})
        else:
            self._missing()

    do_HEAD = do_GET

    def _chunks(self) -> bytes:
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _json(self, value) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _missing(self, code: str = "") -> None:
        if not code:
            self.server_of_files.unknown.append(f"{self.command} {self.path}")
        self._send(404, b"{}", {"X-Error-Code": code, "Content-Type": "application/json"})

    def _send(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def _sha(value) -> str:
    if not isinstance(value, bytes):
        value = json.dumps({name: _sha(content) for name, content in value.items()}).encode()
    return hashlib.sha1(value).hexdigest()

"""A server on the loopback interface that speaks the hub's protocol; it counts what it sends."""

import json
import socket
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub:
    def __init__(self):
        self.files = {}
        self.requests = []  # method, path, authorization
        self.sent = 0
        self.faults = []  # taken one by one by ranged reads: a status, "ignore range", "short"
        self.etag = "etag-1"
        self.cdn = None  # redirect data to this address
        self.error = None  # status and X-Error-Code of the model's description
        self.names = None  # instead of the real names of files
        self.info = None  # instead of the description


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *_):
        pass

    def answer(self, status, body=b"", **headers):
        self.send_response(status)
        headers.setdefault("Content_Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.hub.sent += len(body)
            self.wfile.write(body)

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        hub = self.hub
        hub.requests.append((self.command, self.path, self.headers.get("Authorization")))
        path = self.path.partition("?")[0]
        if path.startswith("/api/models/"):
            return self.describe()
        name = path.partition(f"/{COMMIT}/")[2]
        if name not in hub.files:
            return self.answer(404, X_Error_Code="EntryNotFound")
        data, tags = hub.files[name], {"ETag": f'"{hub.etag}"', "X_Repo_Commit": COMMIT}
        if self.command == "HEAD":
            return self.answer(200, Content_Length=str(len(data)), **tags)
        if hub.cdn:
            return self.answer(302, Location=f"{hub.cdn}{self.path}", **tags)
        return self.send_range(data, tags)

    def send_range(self, data, tags):
        fault = self.hub.faults.pop(0) if self.hub.faults else None
        if isinstance(fault, int):
            return self.answer(fault)
        if fault == "reset":
            self.close_connection = True
            return self.connection.shutdown(socket.SHUT_RDWR)
        first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
        body = data[first : last + 1]
        if fault == "ignore range":
            return self.answer(200, data, **tags)
        if fault == "short":
            body = body[:-1]
        tags["Content_Range"] = f"bytes {first}-{last}/{len(data)}"
        return self.answer(206, body, **tags)

    def describe(self):
        hub = self.hub
        if hub.error:
            return self.answer(hub.error[0], X_Error_Code=hub.error[1])
        names = hub.names or hub.files
        siblings = [{"rfilename": n, "size": len(hub.files.get(n, b""))} for n in names]
        info = {"id": "org/name", "sha": COMMIT, "siblings": siblings}
        body = json.dumps(info).encode() if hub.info is None else hub.info
        return self.answer(200, body, Content_Type="application/json")


@contextmanager
def serve(hub):
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)

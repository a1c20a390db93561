"""A server on this machine that answers each request with JSON, while a block runs."""

import json
import threading
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextmanager
def serving(answer):
    """Yield the address of a server whose replies are `answer(path, body, authorization)`.

    That is a status and a value, and a mapping of headers if there are more.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"] or 0))
            status, value, *more = answer(self.path, body, self.headers["Authorization"])
            text = json.dumps(value).encode()
            self.send_response(status)
            headers = {"Content-Type": "application/json", "Content-Length": str(len(text))}
            for name, content in headers.items() | dict(*more).items():
                self.send_header(name, content)
            with suppress(ConnectionError):  # the client has waited no longer
                self.end_headers()
                self.wfile.write(text)

        do_GET = do_POST

        def log_message(self, *_):
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()

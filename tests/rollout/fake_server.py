"""A server with vLLM's routes that answers from its seed: to lose, to hang and to lie in tests of those who ask it."""

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.processes import PATIENCE_S
from verizero.pipeline.rollout.server_client import ServerSetup
from verizero.pipeline.rollout.server_pool import ServerPool
from verizero.pipeline.rollout.servers.vllm_server import servers


class Posted:
    """A channel that sends names alone, and needs no workers of the server."""

    def __init__(self, server):
        self.server = server

    def send(self, bucket):
        self.server.ask("POST", "/update_weights", {"update_info": {"names": [name for name, _ in bucket]}})

    def leave(self):
        """Do nothing."""


def pool_of(policy, config, folder, peers=None, channel=None):
    """An engine over the config's servers, as a run makes it, or with another channel for weights."""
    setup = ServerSetup(policy, 64, folder, "rollout.vllm")
    client = servers(config, setup)
    if channel is not None:
        client._channel = channel
    return ServerPool(client, setup, peers)


class _Server(ThreadingHTTPServer):
    # Of many connections at once, the default of 5 has some reset, and who asked calls the server lost.
    request_queue_size = 128

    def handle_error(self, request, client_address):
        """Say nothing of those who left before they had the answer of a server that hung."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class FakeServer:
    """Answers `[seed % 50, last token]`, or behaves as one of these, after so many answers.

    "dies", "fails", "refuses", "lies" (of its version), "hangs", "stalls" (in its answer), "takes long" (until its
    health is asked for), is "stale", is "bare" (of routes that take weights), is "another" (program, saying OK to all).
    `behind`: another server, which has to misbehave before this one answers, however busy the machine is.
    """

    def __init__(self, behaviour="well", after=0, behind=None):
        self.behaviour, self.after, self.behind = behaviour, after, behind
        self.misbehaved = threading.Event()
        self.num_asked = 0
        self.version = "default"
        self.num_updates = 0
        self.posted = []
        """Paths and bodies of all that was posted but prompts."""
        self.seeds = []
        """Of the prompts that were answered."""
        self.is_open = threading.Event()
        self.hung = threading.Event()
        self.health_asked = threading.Event()
        self._lock = threading.Lock()
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # a small answer would wait for the acknowledgement of its header

            def do_GET(self):
                if self.path == "/health":
                    fake.health_asked.set()
                if fake.hung.is_set():
                    fake.is_open.wait()
                self.answer(200, {"weight_version": fake.version, "world_size": 1})

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
                status, said = fake.reply(self.path, body)
                if status == 0:
                    self.close_connection = True
                    self.connection.close()
                else:
                    self.answer(status, said)

            def answer(self, status, said):
                data = b"OK" if fake.behaviour == "another" else json.dumps(said).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                if fake.behaviour == "stalls" and fake.hung.is_set():
                    self.wfile.write(data[:1])
                    fake.is_open.wait()
                self.wfile.write(data)

            def log_message(self, format, *args):
                """Say nothing."""

        self.server = _Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        # Looks often whether it shall end: with the default, each test would wait half a second for that.
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)

    def start_again(self):
        """Forget the weights, as one does that is started with its own."""
        self.version = "default"

    def reply(self, path, body):
        if path == "/collective_rpc" and self.behaviour == "bare":
            return 404, {"detail": "Not Found"}
        self.num_updates += path == "/start_weight_update"
        if path != "/inference/v1/generate":
            self.posted.append((path, body))
        if path == "/finish_weight_update":
            self.version = body["weight_version"] if self.behaviour != "stale" else "old"
        if path == "/init_weight_transfer_engine" and self.behaviour == "fails":
            return 500, {"error": "not today"}
        if path != "/inference/v1/generate":
            return 200, {"success": True}
        with self._lock:
            self.num_asked += 1
            misbehaves = self.num_asked > self.after and self.behaviour != "well"
        if misbehaves:
            self.misbehaved.set()
        assert self.behind is None or self.behind.misbehaved.wait(PATIENCE_S)
        if misbehaves and self.behaviour == "hangs":
            self.hung.set()
            self.is_open.wait()
        if misbehaves and self.behaviour == "stalls":
            self.hung.set()
        if misbehaves and self.behaviour == "takes long":
            assert self.health_asked.wait(PATIENCE_S)
        if misbehaves and self.behaviour in ("dies", "fails", "refuses"):
            return {"dies": 0, "fails": 500, "refuses": 400}[self.behaviour], {"error": "not today"}
        self.seeds.append(body["sampling_params"]["seed"])
        version = "lied" if misbehaves and self.behaviour == "lies" else self.version
        tokens = [body["sampling_params"]["seed"] % 50, body["token_ids"][-1]]
        choice = {
            "token_ids": tokens,
            "logprobs": {"content": [{"token_id": t, "logprob": -t / 10} for t in tokens]},
            "finish_reason": "length",
            "weight_versions": [{"version": version, "start": 0, "end": 2}],
        }
        return 200, {"choices": [choice]}

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, kind, exc, trace):
        self.is_open.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

"""A server that speaks vLLM's dialect of completions with prompt_logprobs, for a model in this process."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch


class Served:
    """The model, the requests so far, and how often each prompt is refused before it is answered."""

    def __init__(self, model: Any, max_logprobs: int = 20, refusals: int = 0) -> None:
        self.model, self.max_logprobs = model, max_logprobs
        self.left = refusals
        self.asked: list[dict[str, Any]] = []
        self.url = ""

    @torch.no_grad()
    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        """The reply of vllm serve: the first token has no entry, each other one the k most likely and itself."""
        ids, k = body["prompt"], body["prompt_logprobs"]
        logits = self.model(input_ids=torch.tensor([ids])).logits[0].double()
        log_q = logits.log_softmax(-1)
        places: list[Any] = [None]
        for t in range(1, len(ids)):
            row = log_q[t - 1]
            order = row.argsort(descending=True, stable=True).tolist()
            rank = {token: number for number, token in enumerate(order, 1)}
            named = dict.fromkeys([ids[t], *order[:k]])
            places.append(
                {str(i): {"logprob": float(row[i]), "rank": rank[i], "decoded_token": f"<{i}>"} for i in named}
            )
        return {"choices": [{"index": 0, "text": "", "finish_reason": "length", "prompt_logprobs": places}]}


@contextmanager
def serving(served: Served) -> Iterator[Served]:
    """Serve until the block ends; `url` is the base URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            served.asked.append({**body, "path": self.path})
            if served.left > 0:
                served.left -= 1
                self.send_response(503)
                self.end_headers()
                return
            if body["prompt_logprobs"] > served.max_logprobs:
                self.send_response(400)
                self.end_headers()
                text = f"Requested prompt logprobs of {body['prompt_logprobs']}, which is greater than max allowed"
                self.wfile.write(json.dumps({"error": {"message": text}}).encode())
                return
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(served.answer(body)).encode())

        def log_message(self, *_: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    served.url = f"http://127.0.0.1:{server.server_port}/v1"
    try:
        yield served
    finally:
        server.shutdown()
        thread.join()
        server.server_close()

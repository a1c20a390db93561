"""A server that samples from a model of transformers, without a cache."""

import argparse
import json
from base64 import b64decode
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock

import torch
from safetensors.torch import load
from transformers import AutoConfig, AutoModelForCausalLM

options = argparse.ArgumentParser()
for name, kind in (("--model", str), ("--threads", int), ("--host", str), ("--port", int)):
    options.add_argument(name, type=kind, required=True)
asked = options.parse_args()
torch.set_num_threads(asked.threads)
model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(asked.model)).eval()
label, lock = "random", Lock()


@torch.no_grad()
def sample(prompt_ids, seed, eos_ids, temperature, max_tokens):
    ids, logprobs, dice = list(prompt_ids), [], torch.Generator().manual_seed(seed)
    while len(logprobs) < max_tokens and not (logprobs and ids[-1] in eos_ids):
        scores = (model(torch.tensor([ids])).logits[0, -1] / temperature).log_softmax(-1)
        ids.append(int(torch.multinomial(scores.exp(), 1, generator=dice)))
        logprobs.append(float(scores[ids[-1]]))
    reason = "stop" if ids[-1] in eos_ids else "length"
    return {"token_ids": ids[len(prompt_ids) :], "logprobs": logprobs, "finish_reason": reason, "label": label}


def take(tensors):
    model.load_state_dict(load(b64decode(tensors)), strict=False)
    return {}


def call(name):
    global label
    label = name
    return {}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.answer({"label": label})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with lock:
            if self.path == "/sample":
                reply = sample(**body)
            else:
                reply = take(body["tensors"]) if self.path == "/weights" else call(body["label"])
        self.answer(reply)

    def answer(self, reply):
        data = json.dumps(reply).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format, *words):
        pass


ThreadingHTTPServer((asked.host, asked.port), Handler).serve_forever()

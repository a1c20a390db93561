"""`verizero endpoint`: a trained model behind an address that clients of the usual APIs can talk to."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from verizero.pipeline.config.sections import check_device
from verizero.pipeline.shown import show

KEY = "VERIZERO_ENDPOINT_KEY"
"""Variable with the key of the endpoint."""


def add(commands: Any) -> None:
    """Add the command to the parser."""
    command = commands.add_parser("endpoint", help="serve a model to programs: chat completions, responses, messages")
    add_model(command)
    command.add_argument("--port", type=int, default=8700, help="default: 8700; 0: any free one")
    command.add_argument(
        "--key-file",
        type=Path,
        help=f"a file with the key that programs must send; default: the variable {KEY}, else a new key, which is "
        "printed. Every user of this machine could read a key among the words of a command",
    )
    command.set_defaults(run=run)


def add_model(command: argparse.ArgumentParser) -> None:
    """Add the arguments that name a model and say how it is sampled."""
    command.add_argument("model", help="a run's folder, a model's folder, or a hub id")
    command.add_argument("--template", choices=("plain", "chat", "r1_zero"), help="default: the run's, else chat")
    command.add_argument("--max-tokens", type=int, default=512, help="most tokens of an answer; default: 512")
    command.add_argument("--temperature", type=float, default=0.7, help="default: 0.7; 0: greedy")
    command.add_argument("--top-p", type=float, default=1.0, help="default: 1")
    command.add_argument("--device", default="auto", type=device, help="auto (default), cpu, cuda or cuda:N")


def device(text: str) -> str:
    """Return the name of a device. Raises: ArgumentTypeError."""
    try:
        return check_device(text)
    except ValueError as exc:
        raise argparse.ArgumentTypeError(str(exc)) from exc


def served_by(arguments: argparse.Namespace) -> Any:
    """Return the model that the arguments name. Raises: ConfigError, DataError."""
    from verizero.pipeline.models.load import quiet
    from verizero.pipeline.rollout.engine import Sampling
    from verizero.pipeline.run.serving import load_served
    from verizero.pipeline.train.device import existing_device

    quiet()
    sampling = Sampling(arguments.max_tokens, arguments.temperature, arguments.top_p)
    return load_served(arguments.model, arguments.template, sampling, existing_device(arguments.device, "--device"))


def key_of(file: Path | None) -> str | None:
    """Return the key in the file, or in the environment; None if neither names one. Raises: ConfigError."""
    from verizero.pipeline.errors import ConfigError

    if file is None:
        return os.environ.get(KEY) or None
    try:
        key = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"--key-file {file} cannot be read ({exc}); name a file that holds the key alone") from exc
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigError(f"--key-file {file} must hold one key of printable ASCII characters without a space")
    return key


def run(arguments: argparse.Namespace) -> int:
    """Serve until Ctrl-C."""
    from verizero.pipeline.environments.gateway.server import Gateway
    from verizero.pipeline.run.serving import serve_forever

    key = key_of(arguments.key_file)
    served = served_by(arguments)
    gateway = Gateway(port=arguments.port)
    exchange = gateway.open(is_episode=False)
    exchange.key = key or exchange.key
    show(f"chat completions and responses: {exchange.url}/v1")
    show(f"messages:                       {exchange.url}")
    show(f"key: {exchange.key if key is None else 'the one that was given'}")
    try:
        serve_forever(served, exchange)
    except KeyboardInterrupt:
        show("stopped")
    finally:
        gateway.close()
    return 0

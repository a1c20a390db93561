"""`verizero chat`: talk to a model in the terminal, or to two at once."""

from __future__ import annotations

import argparse
import secrets
import sys
from typing import TYPE_CHECKING, Any

from verizero.pipeline.config.sections import check_device
from verizero.pipeline.shown import show

if TYPE_CHECKING:
    from verizero.pipeline.types import Message

START = "start"
"""Names, for --against, the model that the run started from."""


def add(commands: Any) -> None:
    command = commands.add_parser("chat", help="talk to a model in the terminal, or to two at once")
    command.add_argument("model", help="a run's folder, a model's folder, or a hub id")
    command.add_argument("--template", choices=("plain", "chat", "r1_zero"), help="default: the run's, else chat")
    command.add_argument("--max-tokens", type=int, default=512, help="most tokens of an answer; default: 512")
    command.add_argument("--temperature", type=float, default=0.7, help="default: 0.7; 0: greedy")
    command.add_argument("--top-p", type=float, default=1.0, help="default: 1")
    command.add_argument("--device", default="auto", type=_device, help="auto (default), cpu, cuda or cuda:N")
    command.add_argument("--system", help="a system message; default: that of the run's template")
    command.add_argument(
        "--against",
        metavar="OTHER",
        help="another model that answers the same lines, by the first one's template; start: the one that the run "
        "started from",
    )
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Answer each line of the standard input until it ends; /new begins another conversation."""
    from verizero.pipeline.run.serving import recipe_of
    from verizero.pipeline.types import Message

    speakers = speakers_of(arguments)
    can_continue = all(s.can_continue for s in speakers.values())  # all of them, so that both read the same
    is_terminal = sys.stdin.isatty()
    if is_terminal:
        alone = "" if can_continue else " Each line is asked alone."
        show(f"Write a line and press Enter.{alone} /new begins again; Ctrl-D ends.")
    recipe, system = recipe_of(arguments.model), arguments.system
    if system is None and recipe is not None and arguments.template is None:
        system = recipe.data.template.system  # the run was trained with it
    beginning = [Message("system", system)] if system else []
    histories = [list(beginning) for _ in speakers]
    while True:
        if is_terminal:
            show("> ", end="")
        line = sys.stdin.readline()
        if not line:
            return 0
        text = line.rstrip("\n")
        if text.strip() == "/new":
            histories = [list(beginning) for _ in speakers]
            continue
        seed = secrets.randbits(62)
        for (name, served), messages in zip(speakers.items(), histories, strict=True):
            _answer(name if len(speakers) > 1 else "", served, messages, text, seed, can_continue)


def speakers_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the models by the names that they were given as. Raises: ConfigError, DataError."""
    from verizero.pipeline.errors import ConfigError
    from verizero.pipeline.run.serving import recipe_of

    if arguments.against is None:
        return {arguments.model: _served_by(arguments)}
    recipe = recipe_of(arguments.model)
    other = arguments.against
    if other == START:
        if recipe is None or recipe.model.path is None:
            raise ConfigError(
                f"--against {START}: {arguments.model} is no run that started from a model; name the other model"
            )
        other = recipe.model.path
    # Both read the same prompt: a difference between the answers is the models'.
    template = arguments.template or (None if recipe is None else recipe.data.template)
    second = argparse.Namespace(**{**vars(arguments), "model": other, "template": template})
    name = START if arguments.against == START else other
    if name == arguments.model:
        raise ConfigError(
            f"--against {other} is the model itself; name another, e.g. the one that the run started from"
        )
    return {name: _served_by(second), arguments.model: _served_by(arguments)}


def _device(text: str) -> str:
    try:
        return check_device(text)
    except ValueError as exc:
        raise argparse.ArgumentTypeError(str(exc)) from exc


def _served_by(arguments: argparse.Namespace) -> Any:
    """Return the model that the arguments name. Raises: ConfigError, DataError."""
    from verizero.pipeline.models.load import quiet
    from verizero.pipeline.rollout.engine import Sampling
    from verizero.pipeline.run.serving import load_served
    from verizero.pipeline.train.device import existing_device

    quiet()
    sampling = Sampling(arguments.max_tokens, arguments.temperature, arguments.top_p)
    return load_served(arguments.model, arguments.template, sampling, existing_device(arguments.device, "--device"))


def _answer(name: str, served: Any, messages: list[Message], text: str, seed: int, can_continue: bool) -> None:
    """Print a model's answer to a line, and add both to its conversation if `can_continue`."""
    from verizero.pipeline.errors import DataError
    from verizero.pipeline.types import Message

    messages.append(Message("user", text))
    label = f"{name}: " if name else ""
    try:
        message, was_cut = served.answer(messages, seed)
    except DataError as exc:
        show(f"verizero: {label}{exc}; /new begins again", is_error=True)
        messages.pop()
        return
    show(label + message.content + (" …" if was_cut else ""))
    if can_continue:
        messages.append(message)
    else:
        messages.pop()

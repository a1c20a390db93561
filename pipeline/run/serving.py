"""A trained model that answers conversations, one message at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from verizero.pipeline.config.load import load_recipe
from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.config.template import Template
from verizero.pipeline.data.render import Renderer
from verizero.pipeline.data.turns import PlainTurns, turns_of
from verizero.pipeline.environments.conversing import Conversing
from verizero.pipeline.errors import ConfigError, DataError
from verizero.pipeline.models.gguf_file import model_folder
from verizero.pipeline.models.load import eos_ids, load_model, load_tokenizer, stop_at
from verizero.pipeline.rollout.engine import Engine, Request, Sampling
from verizero.pipeline.rollout.torch_engine import TorchEngine
from verizero.pipeline.types import Message, Prompt

HOME = str(RunConfig.model_fields["output"].default)
"""The folder under which models of GGUF files are kept: that of the runs, where a recipe names no other."""
EMPTY_PROMPT = Prompt("request", "", "", None)
"""The prompt of conversations that bring all their messages."""


@dataclass(frozen=True)
class Served:
    """A model that answers conversations."""

    engine: Engine
    conversing: Conversing
    context: int | None
    """The longest sequence in tokens."""
    sampling: Sampling

    @property
    def can_continue(self) -> bool:
        """False if its tokenizer cannot write what follows an answer, so that each message is asked alone."""
        return not (isinstance(self.conversing, PlainTurns) and self.conversing.unknown)

    def answer(self, messages: Sequence[Message], seed: int) -> tuple[Message, bool]:
        """Return the next message of a conversation, and True if it was cut at the limit of tokens.

        Raises: DataError for messages that leave no room for an answer, or that the template cannot write.
        """
        ids = self.conversing.begin(EMPTY_PROMPT, messages, ())
        sampling = self.sampling
        if self.context is not None:
            room = self.context - len(ids)
            if room < 1:
                raise DataError(f"the maximum context length is {self.context} tokens, the prompt has {len(ids)}")
            sampling = replace(sampling, max_tokens=min(sampling.max_tokens, room))
        ((completion,),) = self.engine.generate([Request(ids, (seed,))], sampling)
        turn = sum(m.role == "assistant" for m in messages)
        read = self.conversing.read(completion.token_ids, completion.finish_reason, turn, ())
        return read.message, completion.finish_reason == "length"


def recipe_of(path: str) -> RunConfig | None:
    """Return the recipe of the run in the folder `path`; None if it is no run's folder."""
    folder = Path(path)
    is_run = (folder / "model").is_dir() and (folder / "recipe.yaml").is_file()
    return load_recipe(folder / "recipe.yaml") if is_run else None


def load_served(
    path: str, template: str | Template | None, sampling: Sampling, device: str, dtype: str = "float32"
) -> Served:
    """Return the model of a run's folder, with that run's template, or of a model's folder, GGUF file or hub id.

    `template` replaces the run's; without either it is the tokenizer's chat template, if it has one.
    Raises: ConfigError for a folder without a model; DataError for a template that the tokenizer cannot write.
    """
    recipe = recipe_of(path)
    how = None if recipe is None else recipe.data.template
    folder = Path(path)
    if (folder / "model").is_dir():
        path = str(folder / "model")
    elif folder.is_dir() and not (folder / "config.json").is_file():
        raise ConfigError(f"{folder} has neither model/ nor config.json; give a run's folder, or a model's")
    path = model_folder(path, Path(HOME), field="model")
    tokenizer = load_tokenizer(path)
    if template is not None or how is None:
        how = Template.model_validate(template or ("chat" if tokenizer.chat_template else "plain"))
    renderer = Renderer(tokenizer, how)
    model: Any = stop_at(load_model(path, dtype, device), renderer.closing[1])
    engine = TorchEngine(model, eos_ids(model, tokenizer), tokenizer.pad_token_id)
    engine.publish(0)
    context = getattr(model.config, "max_position_embeddings", None)
    return Served(engine, turns_of(renderer), context, sampling)

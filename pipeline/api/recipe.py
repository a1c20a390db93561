"""A recipe for a model, data and a reward, with defaults that fit the model and the machine."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from verizero.pipeline.api.given import Data, Rewards, first_rows, place_of, verifier_of
from verizero.pipeline.api.guess import Guess, guess
from verizero.pipeline.config.auto import for_machine, with_rates
from verizero.pipeline.config.choices import REWARDS
from verizero.pipeline.config.load import parse
from verizero.pipeline.config.other_names import SAME
from verizero.pipeline.config.recipes import override_texts
from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.errors import ConfigError, boundary
from verizero.pipeline.host.disk import write_atomic
from verizero.pipeline.train.device import existing_device
from verizero.verifiers.base import load

FOLDER, FILE = "given", "recipe.yaml"
"""Folder of a run with what a user gave, and the recipe that was made of it."""
STEPS = 100
StageKind = Literal["rl", "sft", "preference"]
PROMPTS, GROUP = 8, 8
RESPONSE, LONG_RESPONSE = 256, 1024
"""Most tokens of a response, on the CPU and on a GPU."""
EVALUATED = 64
"""Most held-out prompts that are evaluated."""
HEAD = """# Written by verizero for {what}. It is a recipe like any other:
#     verizero train {path}
# docs/recipes.md has every field.
"""


@dataclass(frozen=True, slots=True)
class Wish:
    """A model, data and a reward, as a user names them, and the settings that he changes."""

    model: str
    data: Data
    reward: Rewards | None = None
    evaluation: Data | None = None
    name: str | None = None
    algorithm: str = "grpo"
    steps: int = STEPS
    weights: Sequence[float] | Mapping[str, float] | None = None
    success: float | None = None
    output: str = "runs"
    fields: Mapping[str, Any] | None = None
    """Values of fields by dotted name, {"rl.group_size": 4}, or by a name of `SAME`."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts of the model and the machine, on which defaults depend."""

    num_parameters: int
    context: int
    has_chat: bool
    is_gpu: bool


def write_recipe(wish: Wish) -> tuple[Path, list[str]]:
    """Write `<output>/<name>/given/recipe.yaml` and what was passed in memory; return its path, and lines for a person.

    Raises: ConfigError, DataError naming the argument and the remedy.
    """
    if isinstance(wish.steps, bool) or not isinstance(wish.steps, int) or wish.steps < 1:
        raise ConfigError(f"steps must be a whole number of at least 1, got {wish.steps!r}")
    if not isinstance(wish.output, str):
        raise ConfigError(f"output must be the name of a folder, got {wish.output!r}")
    name = wish.name or name_of(wish.model, wish.data)
    folder = Path(wish.output) / name / FOLDER
    place = place_of(wish.data, folder, "train")
    label = place.get("file") or place["hub"]["id"]
    meaning = guess(first_rows(place, folder), Path(str(label)).name)
    facts = facts_of(wish.model)
    tree = tree_of(wish, name, place, meaning, folder, facts)
    if "rl" in tree:
        # Four rounds at most, of ten steps at least if there are several.
        rounds = next(n for n in (4, 3, 2, 1) if n == 1 or (wish.steps % n == 0 and wish.steps >= 10 * n))
        tree["rl"] |= {"rounds": rounds, "steps_per_round": wish.steps // rounds}
    fields = _renamed(wish.fields or {}, tree["stages"][0])
    if fields.get("rl.algorithm.kl_coef") and "rl" in tree:
        tree["rl"].pop("reference", None)  # the algorithm's own, from which the distance is measured
    config = parse(tree, override_texts("fields", fields), source=f"{name}/{FILE}", base=folder)
    config = with_rates(config, facts.num_parameters)  # after the fields, of which one may ask for adapters
    path = folder / FILE
    text = yaml.safe_dump(
        config.model_dump(mode="json", exclude_unset=True), sort_keys=False, allow_unicode=True, width=120
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, (HEAD.format(what=f"{wish.model} and {Path(str(label)).name}", path=path) + text).encode())
    return path, [meaning.line, *_lines(for_machine(config, 1, existing_device(config.train.device, "train.device")))]


def _renamed(fields: Mapping[str, Any], stage: str) -> dict[str, Any]:
    """Return values by dotted name, of an optimiser that of the stage."""
    usual = {name: field.replace("rl.optimizer.", f"{stage}.optimizer.") for name, field in SAME.items()}
    names = {name: usual.get(name, name) for name in fields}
    renamed = {names[name]: value for name, value in fields.items()}
    if len(renamed) < len(fields):
        twice = [name for name in fields if list(names.values()).count(names[name]) > 1]
        raise ConfigError(f"{' and '.join(twice)} are one setting, {names[twice[0]]}; give one of them")
    if isinstance(tracker := renamed.get("report.trackers"), str):
        renamed["report.trackers"] = [] if tracker == "none" else [tracker]
    return renamed


def _lines(config: RunConfig) -> list[str]:
    """Return what a person should know of the defaults that were chosen."""
    (stage,) = config.stages
    rate = config.section_of(stage).optimizer.learning_rate  # type: ignore[attr-defined]
    lines = [f"{stage.kind}: learning rate {rate:g}, {config.model.dtype}, engine {config.rollout.engine}"]
    if any(s.part for s in config.data.evaluation):
        lines.append("evaluation: a tenth of the questions is held out, by a hash of each")
    return lines


def refuse_ranks(config: RunConfig, path: Path) -> None:
    """Raise ConfigError if the recipe at `path` is for a group of ranks."""
    if config.launch.kind != "none":
        raise ConfigError(
            f"launch.kind={config.launch.kind}: a group of ranks is started by the command `verizero train {path}`, "
            "not from Python; drop it"
        )


def name_of(model: str, data: Data) -> str:
    """Return a name for the run of this model on this data."""
    stem = Path(str(data)).stem if isinstance(data, str | Path) else "data"
    return re.sub(r"[^a-z0-9.]+", "-", f"{Path(model.rstrip('/')).name}-{stem}".lower()).strip("-.")


def facts_of(model: str) -> Facts:
    """Return what is known of the model and this machine. Raises: ConfigError for a model that is not there."""
    import torch
    import transformers

    from verizero.pipeline.models.sizes import files_of_model, num_parameters, settings_of

    settings = settings_of(model)
    with boundary(ConfigError, f"the tokenizer of {model!r} does not load"):
        tokenizer = transformers.AutoTokenizer.from_pretrained(**files_of_model(model))
    context = int(getattr(settings, "max_position_embeddings", None) or 2048)
    return Facts(num_parameters(settings), context, bool(tokenizer.chat_template), torch.cuda.is_available())


def tree_of(
    wish: Wish, name: str, place: Mapping[str, Any], meaning: Guess, folder: Path, facts: Facts
) -> dict[str, Any]:
    """Return the recipe. Raises: ConfigError where the data needs a reward and there is none."""
    stage = _stage(wish, meaning)
    source: dict[str, Any] = {**place, "mapping": meaning.mapping}
    data = _data(wish, stage, source, meaning, folder)
    tree: dict[str, Any] = {
        "name": name,
        "seed": 0,
        "stages": [stage],
        "output": wish.output,
        "model": {"path": str(Path(wish.model).absolute()) if Path(wish.model).exists() else wish.model},
        "data": {
            **data,
            "template": {"name": "chat" if facts.has_chat else "plain"},
            "on_long_prompt": "drop",
            "on_overlap": "drop",
        },
        "rollout": {
            "max_response_tokens": max(1, min(LONG_RESPONSE if facts.is_gpu else RESPONSE, facts.context // 2))
        },
        "evaluation": {"k": 4, "limit": EVALUATED},
    }
    tree[stage] = _section(wish, stage, source)
    if stage == "rl":
        tree["scoring"] = {"truncated": None}
    if "conversation" in meaning.mapping:
        tree["data"]["template"]["calls"] = "hermes"  # calls of any tool, with any arguments
    return tree


def _data(
    wish: Wish, stage: StageKind, source: dict[str, Any], meaning: Guess, folder: Path
) -> dict[str, list[dict[str, Any]]]:
    """Return the sources of training and evaluation; without a reward nothing is graded, and nothing held out."""
    if stage != "rl":
        return {"train": [{**source, "name": "data", "graded": False}] if stage == "sft" else [], "evaluation": []}
    reward = wish.reward if wish.reward is not None else meaning.verifier
    if reward is None:
        raise ConfigError(
            f"{meaning.line}; say what is right: reward=f with def f(completion, answer) -> float, or the name of "
            "a verifier, e.g. reward='exact' or 'math' (docs/rewards.md)"
        )
    verifier = verifier_of(reward, folder, wish.weights, wish.success)
    if meaning.mapping["answer"] is None:
        _refuse_answer(verifier, folder, meaning)
    train, evaluation = _parts(wish, {**source, "verifier": verifier}, folder)
    return {"train": [train], "evaluation": [evaluation]}


def _section(wish: Wish, stage: StageKind, source: dict[str, Any]) -> dict[str, Any]:
    """Return the section of the stage."""
    if stage == "sft":
        return {"steps": wish.steps, "optimizer": {"schedule": "cosine"}}
    if stage == "preference":
        # Of conversations of several turns, and of rows without a prompt, no pair can be made.
        pairs = [{**source, "on_bad_row": "skip"}]
        return {"loss": {"name": "dpo"}, "pairs": pairs, "steps": wish.steps}
    return {**_objective(wish.algorithm), "prompts_per_step": PROMPTS, "group_size": GROUP}


def _stage(wish: Wish, meaning: Guess) -> StageKind:
    """Return the kind of stage that trains on such rows. Raises: ConfigError for a reward of pairs."""
    if meaning.kind != "pairs":
        return "rl" if wish.reward is not None or meaning.kind == "prompts" else "sft"
    if wish.reward is not None:
        raise ConfigError(
            f"{meaning.line}, which train by a preference loss, and that asks for no reward; drop reward=, or give "
            "questions alone"
        )
    return "preference"


def _refuse_answer(verifier: Mapping[str, Any], folder: Path, meaning: Guess) -> None:
    """Raise ConfigError if a verifier or a reward function asks for an answer, and the data has none."""
    if verifier.get("name", REWARDS) != REWARDS:
        raise ConfigError(f"{meaning.line}, and verifier {verifier['name']!r} compares responses to one")
    functions = verifier.get("params", {}).get("functions", {})
    for path in [verifier["path"]] if "path" in verifier else [w for w in functions.values() if ":" in w]:
        loaded = load(path=path, base=folder)
        if loaded.reads_reference:
            raise ConfigError(
                f"{meaning.line}, and reward function {loaded.name!r} asks for one; ask for a column by its own name"
            )


def _objective(algorithm: str) -> dict[str, Any]:
    """Return the algorithm; GRPO without a reference, as it is run today."""
    if algorithm == "grpo":
        return {"algorithm": {"name": "grpo", "kl_coef": 0.0}, "reference": {"schedule": "none"}}
    return {"algorithm": {"path" if ".py" in algorithm else "name": algorithm}}


def _parts(wish: Wish, source: dict[str, Any], folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the sources of training and evaluation: of one file, a tenth of the questions is for evaluation."""
    if wish.evaluation is None:
        return {**source, "name": "data", "part": "train"}, {**source, "name": "data", "part": "evaluation"}
    place = place_of(wish.evaluation, folder, "evaluation", "test", "evaluation")
    label = Path(str(place.get("file") or place["hub"]["id"])).name
    meaning = guess(first_rows(place, folder), label)
    rest = {k: v for k, v in source.items() if k not in ("file", "hub", "mapping")}
    return {**source, "name": "data"}, {**place, "mapping": meaning.mapping, **rest, "name": "evaluation"}

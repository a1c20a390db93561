"""`GRPOTrainer` as TRL has it: the script's model, rewards and data become a recipe, which `train` runs."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import Any

from verizero.pipeline.config.load import load_recipe
from verizero.pipeline.config.recipes import Resume
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.library.functions import verifier_of
from verizero.pipeline.library.given import place_of
from verizero.pipeline.library.recipe import FOLDER, Wish, write_recipe
from verizero.pipeline.library.train import run_recipe
from verizero.pipeline.library.trained import TrainedRun
from verizero.pipeline.library.trl.config import GRPOConfig
from verizero.pipeline.library.trl.fields import fields_of, place, repository
from verizero.pipeline.library.trl.history import TrainOutput, Watchers, held_out_of
from verizero.pipeline.library.trl.inputs import PROMPT, grading_of, meaning_of, rewards_of, rows_of
from verizero.pipeline.library.trl.models import lora_of, model_folder, require_same_loss
from verizero.pipeline.report.files import read_run
from verizero.pipeline.report.progress import Progress, Silent, for_terminal
from verizero.pipeline.report.row_types import EvaluationRow, StepRow

REMEDIES = {
    "optimizers": "the optimiser is AdamW; set learning_rate, lr_scheduler_type and weight_decay in GRPOConfig",
    "quantization_config": "policies train in float32 or bfloat16; use peft_config to train fewer weights",
    "tools": "tools are part of an environment here: docs/episodes.md",
    "rollout_func": "responses are sampled by the engine of the recipe; play them in an environment: docs/episodes.md",
    "environment_factory": "environments here have a protocol of their own: docs/tutorial-environment.md",
    "reward_processing_classes": "a reward model is shown texts by its own tokenizer; put it next to the model",
}
"""Argument of GRPOTrainer that is refused -> what to do."""


class GRPOTrainer:
    """Trains a model by GRPO, as a run of this project in `args.output_dir`."""

    def __init__(
        self,
        model: Any,
        reward_funcs: Any = None,
        args: GRPOConfig | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        reward_processing_classes: Any = None,
        callbacks: Any = None,
        optimizers: tuple[Any, Any] = (None, None),
        quantization_config: Any = None,
        peft_config: Any = None,
        tools: Any = None,
        rollout_func: Any = None,
        environment_factory: Any = None,
    ) -> None:
        """Write the recipe of the run. The arguments are those of TRL's GRPOTrainer; docs/trl.md has the differences.

        model: a folder, a hub id or a transformers model. reward_funcs: a function, or a list of them, in TRL's form or
        another of docs/rewards.md. train_dataset, eval_dataset: rows with a column `prompt`, a text or messages: a
        `datasets.Dataset` or a list of dicts; for evaluation also a dict of those, by domain.

        Raises: ConfigError, DataError naming the argument and the remedy.
        """
        refused = {
            "optimizers": None if tuple(optimizers) == (None, None) else optimizers,
            "quantization_config": quantization_config,
            "tools": tools or None,
            "rollout_func": rollout_func,
            "environment_factory": environment_factory,
            "reward_processing_classes": reward_processing_classes,
        }
        for name, value in refused.items():
            if value is not None:
                raise ConfigError(f"GRPOTrainer({name}=...) is not possible: {REMEDIES[name]} (docs/trl.md)")
        self.args = GRPOConfig(f"{_name_of(model)}-GRPO") if args is None else args
        if not isinstance(self.args, GRPOConfig):
            raise ConfigError(f"args is {type(self.args).__name__}; import GRPOConfig from verizero.trl too")
        self.args.check()
        self.run: TrainedRun | None = None
        """The run, with its report, samples and diagnosis, once `train` has been called."""
        self._recipe, self._lines = self._write(
            model, reward_funcs, train_dataset, eval_dataset, processing_class, peft_config
        )
        self.state: Any = None
        """transformers' TrainerState, of which the steps and the log are kept."""
        self._watchers = self._fresh(list(callbacks or ()))

    def _write(
        self, model: Any, reward_funcs: Any, train_dataset: Any, eval_dataset: Any, tokenizer: Any, peft_config: Any
    ) -> tuple[Path, list[str]]:
        args = self.args
        output, name = place(args)
        folder = Path(output) / name / FOLDER
        rows = rows_of(train_dataset, "train_dataset")
        evaluated = eval_dataset if isinstance(eval_dataset, Mapping) else {"evaluation": eval_dataset}
        held_out = {str(key): rows_of(data, "eval_dataset") for key, data in evaluated.items() if data is not None}
        rewards = rewards_of(reward_funcs, args.reward_weights)
        fields, self._schedule = fields_of(
            args, len(rows), len(rewards), is_chat=isinstance(rows[0][PROMPT], list), has_evaluation=bool(held_out)
        )
        path, more = model_folder(model, tokenizer, folder)
        require_same_loss(path, args)
        fields |= more | ({} if peft_config is None else {"train.lora": lora_of(peft_config, path)})
        meaning = meaning_of(rows, rewards)
        verifier = grading_of(rewards, folder, args.reward_weights)
        fields["data.train.0.part"] = None
        fields["data.evaluation"] = [
            {
                **place_of(data, folder, f"evaluation-{key}", "test"),
                "name": key,
                "mapping": meaning.mapping,
                "verifier": verifier,
                **({"domain": key} if isinstance(eval_dataset, Mapping) else {}),
            }
            for key, data in held_out.items()
        ]
        if args.multi_objective_aggregation == "normalize_then_sum":
            # Each reward enters the advantages by itself: the first grades the rows, the others are components.
            first, *others = (verifier_of(f, folder, None, None) for f in rewards)
            weights = args.reward_weights or [1.0] * len(rewards)
            fields["data.train.0.verifier"] = first
            fields["scoring.components"] = [
                {"verifier": v, "weight": float(w)} for v, w in zip(others, weights[1:], strict=True)
            ]
        graded = rewards[0] if len(rewards) == 1 and args.reward_weights is None else rewards
        wish = Wish(
            path, rows, graded, None, name, steps=self._schedule.steps, weights=args.reward_weights, output=output,
            fields=fields, meaning=meaning,
        )  # fmt: skip
        return write_recipe(wish)

    def train(self, resume_from_checkpoint: str | bool | None = None) -> TrainOutput:
        """Train, and return the number of updates, the mean loss and the last metrics.

        resume_from_checkpoint: None: continue the run of the folder, or begin one; True: continue it; False: begin one.
        Raises: ConfigError for a checkpoint that is not of this run; what the run raises.
        """
        resume: Resume = "auto" if resume_from_checkpoint is None else "must" if resume_from_checkpoint else "never"
        folder = self._recipe.parent.parent
        if isinstance(resume_from_checkpoint, str) and folder.resolve() not in (
            Path(resume_from_checkpoint).resolve(),
            *Path(resume_from_checkpoint).resolve().parents,
        ):
            raise ConfigError(
                f"resume_from_checkpoint={resume_from_checkpoint!r} is not in {folder}, the run of output_dir; a run "
                "is continued from its own checkpoints: give output_dir, and True here"
            )
        progress: Progress = Silent() if self.args.disable_tqdm else for_terminal(beats=True)
        with closing(progress):
            for line in self._lines:
                progress.say(line)
            self._watchers.tell("on_train_begin")
            watching = [self._watchers] if self._watchers.watchers else []
            self.run = run_recipe(self._recipe, [], resume, progress, [*watching, *self._watchers.functions])
        self.__dict__.pop("model", None)
        # From the files: a run that was continued has steps that this call has not seen.
        seen = self._fresh([])
        files = read_run(self.run.folder)
        rows: list[StepRow | EvaluationRow] = [*files.steps, *files.evaluations]
        for row in sorted(rows, key=lambda r: (r.step, isinstance(r, EvaluationRow))):
            seen.add(row)
        self._watchers.state = self.state
        self._watchers.tell("on_train_end")
        if self.args.push_to_hub:
            self.push_to_hub()
        losses = [row["loss"] for row in self.state.log_history if "loss" in row]
        last = dict(self.state.log_history[-1]) if self.state.log_history else {}
        return TrainOutput(self.state.global_step, sum(losses) / max(1, len(losses)), last)

    def _fresh(self, callbacks: list[Any]) -> Watchers:
        """Return watchers of a run that has not begun, and set the state that they share."""
        from transformers import TrainerState

        self.state = TrainerState(max_steps=self._schedule.total_updates, num_train_epochs=self.args.num_train_epochs)
        return Watchers(callbacks, self.args, self.state, self._schedule)

    def evaluate(self) -> dict[str, float]:
        """Return the held-out measures of the trained model, which the run took when it ended.

        Raises: ConfigError before `train`, or without `eval_dataset`.
        """
        evaluations = read_run(self._ended("evaluate").folder).evaluations
        if not evaluations:
            raise ConfigError("evaluate() needs eval_dataset; give it to GRPOTrainer")
        return held_out_of(evaluations[-1])

    def save_model(self, output_dir: str | None = None) -> None:
        """Copy the trained model with its tokenizer to a folder, as transformers loads it; None: `args.output_dir`."""
        target = Path(output_dir or self._recipe.parent.parent)
        shutil.copytree(self._ended("save_model").model, target, dirs_exist_ok=True)

    @cached_property
    def model(self) -> Any:
        """The trained model, loaded by transformers. Raises: ConfigError before `train`."""
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM.from_pretrained(self._ended("model").model)

    @cached_property
    def processing_class(self) -> Any:
        """The tokenizer of the run. Raises: ConfigError before `train`."""
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(self._ended("processing_class").model)

    @property
    def recipe(self) -> Any:
        """The recipe that the script was translated to."""
        return load_recipe(self._recipe)

    def push_to_hub(self, **more: Any) -> str:
        """Publish the trained model with its card as `args.hub_model_id`, and return its address: `TrainedRun.push`.

        more: `dataset_name` is allowed, as TRL's scripts give it; the card names the data of the recipe.
        Raises: ConfigError before `train`, or without a name; RunError if the hub refuses.
        """
        for name in more.keys() - {"dataset_name"}:
            raise ConfigError(f"push_to_hub({name}=...) is not possible: the card and the commit are made of the run")
        return self._ended("push_to_hub").push(repository(self.args), self.args.hub_private_repo is not False)

    def _ended(self, what: str) -> TrainedRun:
        if self.run is None:
            raise ConfigError(f"{what} is of the trained model; call train() first")
        return self.run


def _name_of(model: Any) -> str:
    name = model if isinstance(model, str | Path) else getattr(getattr(model, "config", None), "_name_or_path", "")
    return Path(str(name)).name or "model"

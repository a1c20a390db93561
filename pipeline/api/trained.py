"""A run by its folder: results, samples, the page, the model. All of it is read from the run's files."""

from __future__ import annotations

import itertools
import json
import secrets
import shlex
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verizero.pipeline.config.load import parse
from verizero.pipeline.config.recipes import SETTINGS, Resume
from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.config.yaml_reader import read_yaml
from verizero.pipeline.errors import ConfigError, RunError, boundary
from verizero.pipeline.host.disk import write_atomic
from verizero.pipeline.report.progress import Progress, for_terminal
from verizero.pipeline.report.result import result_lines
from verizero.pipeline.report.row_types import to_json
from verizero.pipeline.report.run_files import read_rollouts, read_run, require_run

if TYPE_CHECKING:
    from verizero.pipeline.run.callbacks import Callback

MOST_TOKENS, TEMPERATURE = 512, 0.7
"""Settings of the sampling of `chat`."""


class TrainedRun:
    """A run by its folder."""

    def __init__(self, folder: str | Path) -> None:
        """Open the run in `folder`. Raises: RunError if it holds none."""
        self.folder = require_run(Path(folder))
        self._loaded: tuple[Any, str | None] | None = None

    @property
    def summary(self) -> dict[str, Any]:
        """The content of summary.json. Raises: FileNotFoundError for a run that never ended."""
        made: dict[str, Any] = json.loads((self.folder / "summary.json").read_text(encoding="utf-8"))
        return made

    @property
    def results(self) -> Results:
        """The held-out measures before and after training, by domain, with their 95% intervals, of a run that ended."""
        return Results(self.summary)

    @property
    def model(self) -> Path:
        """The folder of the trained model, as transformers loads it."""
        return self.folder / "model"

    @property
    def metrics(self) -> Any:
        """A row for each step: a `pandas.DataFrame` where pandas is installed, else a list of dicts."""
        rows = [{"stage": r.stage, "round": r.round, "step": r.step, **r.metrics} for r in read_run(self.folder).steps]
        try:
            import pandas
        except ImportError:
            return rows
        return pandas.DataFrame(rows)

    @property
    def report(self) -> Page:
        """The page of the run; a notebook shows it."""
        return Page(self.folder / "report.html")

    def samples(self, wrong: bool | None = None, stage: str | None = None) -> list[dict[str, Any]]:
        """Return sampled responses with reward, verdict and reason, a dict for each.

        wrong: True: only wrong ones; False: only right ones. stage: only those of a stage of this name.

        Raises: ConfigError if nothing says which are right.
        """
        rows = [to_json(row) for row in read_rollouts(self.folder) if stage is None or row.stage == stage]
        if wrong is None:
            return rows
        if any("reward" in d["before"] and "pass@1" not in d["before"] for d in self.summary["domains"].values()):
            raise ConfigError("nothing says which rewards are right; train with success=, or leave wrong= out")
        return [r for r in rows if r["status"] == "graded" and (r["score"] < 1.0) is wrong]

    def diagnose(self) -> Findings:
        """Return the causes for which the run does not learn, the most likely first; prints as text."""
        from verizero.pipeline.checks.diagnosis import diagnosed

        return Findings(diagnosed([self.folder]))

    def train(
        self,
        steps: int | None = None,
        *,
        resume: Resume = "auto",
        quiet: bool = False,
        callbacks: Sequence[str | Callback] = (),
    ) -> TrainedRun:
        """Continue the run, and return it: with more steps, or, if it is not done, to its end.

        steps: how many more, of a run that is done: they are a further stage of the last one's kind, with an optimiser
            of its own. None: those that are left. resume, quiet, callbacks: as for `train`; "changed" continues with a
            reward function that changed.

        Raises: ConfigError, RunError before training, with the remedy; else what the run raises.
        """
        from verizero.pipeline.api.recipe import refuse_ranks
        from verizero.pipeline.run.choose_checkpoint import newest_whole
        from verizero.pipeline.run.saving import recipe_of_run
        from verizero.pipeline.run.state import read_state, schedule
        from verizero.pipeline.whole_run import train

        config, base = recipe_of_run(self.folder)
        refuse_ranks(config, self.folder / "recipe.yaml")
        if steps is not None:
            newest, _ = newest_whole(self.folder / "checkpoints")
            left = schedule(config) if newest is None else read_state(newest).items_left(schedule(config))
            if any(not item.is_evaluation for item in left):
                raise ConfigError(f"steps={steps}: the run is not done; call run.train() first, for the rest")
            config = with_more_steps(config, steps, base)
        progress: Progress = Progress() if quiet else for_terminal(beats=True)
        with closing(progress):
            train(config, base, self.folder, resume, progress, callbacks=callbacks)
        self._loaded = None
        return self

    def chat(self, message: str, system: str | None = None) -> str:
        """Return a sampled answer; system: the system message, None: as in training. Raises: DataError if too long."""
        from verizero.pipeline.types import Message

        served, default = self._served()
        system = default if system is None else system
        messages = (*([Message("system", system)] if system else []), Message("user", message))
        return str(served.answer(messages, secrets.randbits(62))[0].content)

    def push(self, name: str, private: bool = True) -> str:
        """Publish the trained model on the Hugging Face hub with a model card, and return its address.

        name: "me/my-model"; a repository of that name gets a new commit. private: whether a new repository is private.
        The card is README.md of the model's folder: base model, results with intervals, recipe; one that is there is
        left as it is, so write your own, or change it and push again. It names no licence.

        Raises: ConfigError for a run without a trained model; RunError if the hub refuses, with its reason.
        """
        from verizero.pipeline.config.load import load_recipe
        from verizero.pipeline.report.card import CARD, model_card

        if not (self.model / "config.json").is_file():
            raise ConfigError(f"{self.folder} has no trained model yet; let the run end, then push")
        card = self.model / CARD
        if not card.is_file():
            recipe = load_recipe(self.folder / "recipe.yaml")
            versions = json.loads((self.folder / "run.json").read_text(encoding="utf-8"))["versions"]
            write_atomic(card, model_card(name, recipe, self.summary, versions).encode())
        with boundary(RunError, f"{name!r} was not pushed (`hf auth login`, or HF_TOKEN with the right to write)"):
            from huggingface_hub import HfApi

            hub = HfApi()
            address = hub.create_repo(name, private=private, exist_ok=True)
            hub.upload_folder(repo_id=name, folder_path=self.model, commit_message="Add the model of a Verizero run")
        return str(address)

    def _served(self) -> tuple[Any, str | None]:
        """Return the model, loaded once, and the system message that it was trained with."""
        from verizero.pipeline.models.load import quiet
        from verizero.pipeline.rollout.engine import Sampling
        from verizero.pipeline.run.serving import load_served, recipe_of
        from verizero.pipeline.train.device import existing_device

        if self._loaded is None:
            quiet()
            recipe = recipe_of(str(self.folder))
            served = load_served(
                str(self.folder), None, Sampling(MOST_TOKENS, TEMPERATURE), existing_device("auto", "device")
            )
            self._loaded = served, None if recipe is None else recipe.data.template.system
        return self._loaded

    def __repr__(self) -> str:
        lines = "\n".join(result_lines(self.summary)) if (self.folder / "summary.json").is_file() else "not ended"
        return f"<run {self.folder}>\n{lines}"


class Results(dict[str, dict[str, Any]]):
    """Domain -> {"before", "after", "gain", ...}, as in summary.json; prints as a table."""

    def __init__(self, summary: dict[str, Any]) -> None:
        super().__init__(summary["domains"])
        self._lines = result_lines(summary)

    def __repr__(self) -> str:
        return "\n".join(self._lines)


class Findings(list[Any]):
    """The findings of a diagnosis, a `Finding` each; prints as `verizero diagnose` does, with remedies in Python."""

    def __init__(self, diagnosis: Any) -> None:
        from verizero.pipeline.commands.diagnose import as_text

        super().__init__(diagnosis.findings)
        self._text = SETTINGS.sub(lambda options: in_python(options[0]), as_text(diagnosis))

    def __repr__(self) -> str:
        return self._text


def in_python(options: str) -> str:
    """Return options `--set a.b=1` of a command as the arguments of `train`: `**{'a.b': 1}`."""
    pairs = (word.split("=", 1) for word in shlex.split(options)[1::2])
    return f"**{ {name: read_yaml(value, name) for name, value in pairs} }" + " " * options.endswith(" ")


class Page:
    """A page of HTML that needs no network."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __repr__(self) -> str:
        return str(self.path)

    def __fspath__(self) -> str:
        return str(self.path)

    def _repr_html_(self) -> str:
        from html import escape

        page = escape(self.path.read_text(encoding="utf-8"), quote=True)
        return f'<iframe srcdoc="{page}" style="width:100%;height:720px;border:1px solid #ccc" title="report"></iframe>'


def with_more_steps(config: RunConfig, steps: int, base: Path) -> RunConfig:
    """Return the recipe, and its folder `base`, with one more stage of the last one's kind. Raises: ConfigError."""
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise ConfigError(f"steps must be a whole number of at least 1, got {steps!r}")
    stage = config.stages[-1]
    length = config.section_of(stage).more_steps(steps)
    if length is None:
        raise ConfigError(f"steps={steps}: the last stage, {stage.name}, does not train the policy in steps")
    number = next(n for n in itertools.count(1) if f"more_{n}" not in config.stage_names)
    more = {"name": f"more_{number}", "kind": stage.kind, "with": {**stage.changes, **length}}
    tree = config.model_dump(mode="json", exclude_unset=True)
    tree["stages"] = [*(s.model_dump(mode="json") for s in config.stages), more]
    return parse(tree, source=f"{config.name} with more steps", base=base)

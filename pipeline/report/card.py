"""The model card of a run: README.md of its model's folder, in the form that the hub reads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

import yaml

from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.models.named import is_path
from verizero.pipeline.report.result import evaluation_markdown, measure_name
from verizero.pipeline.shown import in_markdown

CARD = "README.md"
TYPES = {"pass@1": "accuracy", "greedy": "accuracy", "reward": "mean_reward", "score": "mean_score"}
"""Measure -> its type in the hub's list of metrics; else the measure's own name."""


def model_card(name: str, config: RunConfig, summary: Mapping[str, Any], versions: Mapping[str, str]) -> str:
    """Return the card of a model that is published as `name`: metadata, then what it is, its results and its recipe.

    Of paths of this machine the card has the last part only. It names no licence: that is the publisher's to choose.
    """
    after, before = summary.get("after") or {}, summary.get("before") or {}
    metadata: dict[str, Any] = {"library_name": "transformers", "pipeline_tag": "text-generation"}
    base = config.model.path
    if base is not None and not is_path(base):
        metadata["base_model"] = base
    if hub := sorted({s.hub.id for s in config.data.sources if s.hub is not None and not is_path(s.hub.id)}):
        metadata["datasets"] = hub
    metadata["tags"] = ["verizero", *sorted({stage.kind for stage in config.stages})]
    if results := _results(after or before, summary):
        metadata["model-index"] = [{"name": name, "results": results}]
    stages = ", ".join(f"`{stage}`" for stage in config.stage_names)
    origin = "a new model with random weights" if base is None else f"`{_shown(base)}`"
    parts = [
        f"---\n{yaml.safe_dump(metadata, sort_keys=False, allow_unicode=True)}---",
        f"# {in_markdown(name)}",
        f"Trained from {origin} with Verizero; stages: {stages}.",
        *_tables(before, after),
        "## Use",
        f'```python\nfrom transformers import AutoModelForCausalLM, AutoTokenizer\n\nname = "{name}"\n'
        "tokenizer = AutoTokenizer.from_pretrained(name)\nmodel = AutoModelForCausalLM.from_pretrained(name)\n```",
        _template(config),
        "## Recipe",
        f"Versions: {', '.join(f'{package} {number}' for package, number in versions.items())}.",
        f"```yaml\n{yaml.safe_dump(_shown(_recipe(config)), sort_keys=False, allow_unicode=True)}```",
        "## Licence",
        "None is set here. The licences of the base model and of the data decide which are possible; add `license:`.",
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _recipe(config: RunConfig) -> dict[str, Any]:
    """Return what the recipe changes of the defaults, of the sections that determine the weights."""
    tree = config.model_dump(mode="json", exclude_defaults=True)
    return {k: v for k, v in tree.items() if k not in ("output", "report", "prefect", "launch", "checkpoint")}


def _shown(value: Any) -> Any:
    """Return the value with the last part of each absolute path in place of the path."""
    if isinstance(value, dict):
        return {key: _shown(v) for key, v in value.items()}
    if isinstance(value, list):
        return [_shown(v) for v in value]
    return PurePath(value).name if isinstance(value, str) and PurePath(value).is_absolute() else value


def _results(row: Mapping[str, Any], summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the entries of `model-index`: each measure of each domain, with its 95% interval."""
    return [
        {
            "task": {"type": "text-generation"},
            "dataset": {"name": f"{domain} (held out)", "type": domain},
            "metrics": [
                {
                    "type": TYPES.get(measure, measure),
                    "name": measure_name(measure, summary),
                    "value": round(values[measure], 4),
                    "args": {"low": round(low, 4), "high": round(high, 4), "level": 0.95},
                }
                for measure, (low, high) in values.get("intervals", {}).items()
                if measure not in ("length", "truncated")
            ],
        }
        for domain, values in sorted(row.items())
    ]


def _tables(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    titles = {"Held out, before training": before, "Held out, after training": after}
    shown = [(title, row) for title, row in titles.items() if row]
    if not shown:
        return ["## Results", "Not measured: the recipe has no held-out data."]
    return ["## Results", *(f"{title}, with 95% intervals:\n\n{_table(row)}" for title, row in shown)]


def _table(row: Mapping[str, Any]) -> str:
    estimates = {
        domain: {
            measure: {"value": values[measure], "low": low, "high": high}
            for measure, (low, high) in values.get("intervals", {}).items()
        }
        for domain, values in row.items()
    }
    return evaluation_markdown(estimates)


def _template(config: RunConfig) -> str:
    """Return how a prompt is written, unless the tokenizer's chat template says it."""
    how = config.data.template
    if how.name == "chat":
        return "" if how.system is None else f"It was trained with the system message {how.system!r}."
    return f"It was trained with the template `{how.name}`, not with a chat template."

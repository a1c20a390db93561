"""Recipes of a few sums for the checks before training, and what is found in them."""

import re
from pathlib import Path
from typing import Any

from tests.data.chat_templates import END, TEMPLATES, bare_tokenizer
from tests.data.rows import write_rows
from tests.stages.tiny import TREE, tiny
from verizero.pipeline.checks.before.checks import check
from verizero.pipeline.checks.finding import Checked, Finding
from verizero.pipeline.commands.rate import look
from verizero.pipeline.config.load import parse
from verizero.pipeline.config.run import RunConfig
from verizero.pipeline.models.load import create_model, save_folder

NUM = 40
CHANGE = re.compile(r"--set '?([\w.]+=(?:\{[^}]*\}|[^\s,']+))")
"""A change of a recipe in the text of a remedy."""


def sums(num: int = NUM, **columns: Any) -> list[dict[str, Any]]:
    """Return rows of sums, `columns` laid over each."""
    return [
        {"id": f"{i}", "question": f"{i}+{i}=", "answer": str(2 * i), "verifier": "math", "domain": "sums"} | columns
        for i in range(num)
    ]


def recipe(
    folder: Path, train: list[dict[str, Any]], held_out: list[dict[str, Any]] | None = None, **changes: Any
) -> RunConfig:
    """Return a recipe of RL on rows of files, whose sums are held out from 1000 on."""
    if held_out is None:
        held_out = [
            {**r, "id": f"held{r['id']}", "question": f"1{i:03d}+0="} | {"answer": f"1{i:03d}"}
            for i, r in enumerate(sums(80))
        ]
    for name, rows in (("train", train), ("evaluation", held_out)):
        write_rows(folder / f"{name}.jsonl", rows)
    data = {"train": [{"file": "train.jsonl"}], "evaluation": [{"file": "evaluation.jsonl"}]}
    return tiny({"stages": ["rl"], "sft": None, **changes, "data": data | changes.get("data", {})})


def chat_model(folder: Path, template: str | None = TEMPLATES["plain"], end: str = END) -> str:
    """Write a small model whose tokenizer has that chat template and end token, and return its folder."""
    tokenizer = bare_tokenizer()
    tokenizer.chat_template, tokenizer.eos_token = template, end
    save_folder(create_model("llama", TREE["model"]["create"]["config"], tokenizer, 0), tokenizer, folder / "model")
    tokenizer.eos_token = END
    return str(folder / "model")


def chat(model: str, template: dict[str, Any] | None = None, **data: Any) -> dict[str, Any]:
    """Return the changes of a recipe of RL that starts from a model with a chat template."""
    data = {"template": {"name": "chat", **(template or {})}, **data}
    return {"model": {"path": model, "create": None}, "rollout": {"max_response_tokens": 8}, "data": data}


def of_chat(folder: Path, model: str, rows: list[dict[str, Any]] | None = None, **template: Any) -> RunConfig:
    """Return a recipe of RL that starts from a model with a chat template."""
    return recipe(folder, rows or sums(), **chat(model, template))


def looked(
    config: RunConfig, folder: Path, without_model: bool = True
) -> tuple[dict[str, Checked], dict[str, Finding]]:
    """Return the checks by name and the first finding by cause; remedies that can be pasted are accepted."""
    checks, findings = check(config, folder, None if without_model else look)
    for finding in findings:
        assert finding.evidence
        assert finding.sentence.endswith(".")
        for change in CHANGE.findall(finding.remedy):
            parse(config.model_dump(mode="json"), [change])
    return {c.name: c for c in checks}, {f.cause: f for f in reversed(findings)}

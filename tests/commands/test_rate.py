"""`verizero rate`: the rates that were counted, rows that can be trained on, and going on where it ended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.commands import rate as module
from pipeline.commands.rate import rate
from pipeline.config.data import Source
from pipeline.data.prompts import read_prompts
from pipeline.errors import ConfigError, DataError
from pipeline.stages.progress import Silent
from pipeline.stages.session import Session
from pipeline.types import Group
from tests.stages.tiny import tiny

CONFIG = tiny({"stages": ["rl"], "sft": None})


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_prompt_is_rated_once_however_often_it_is_broken_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SAMPLED_AT_ONCE", 8)
    whole = rate(CONFIG, tmp_path, tmp_path / "whole.jsonl", 4, Silent())
    found = rows(tmp_path / "whole.jsonl")
    assert len(found) == len({r["id"] for r in found}) == 30
    assert whole.rates == [r["pass_rate"] for r in found]
    assert all(r["attempts"] == 4 and r["pass_rate"] * 4 == round(r["pass_rate"] * 4) for r in found)

    content = (tmp_path / "whole.jsonl").read_bytes()
    torn = tmp_path / "torn.jsonl"
    torn.write_bytes(content[: len(content) // 2])
    rate(CONFIG, tmp_path, torn, 4, Silent())
    assert torn.read_bytes() == content

    source = Source.model_validate({"file": "whole.jsonl", "rated": {"order": "hard_first"}})
    prompts, _ = read_prompts([source], 0, tmp_path)
    assert len(prompts) == 30


def test_what_graders_could_not_say_counts_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = module.sample_groups

    def failing(session: Session, *rest: Any) -> Any:
        groups, tally = plain(session, *rest)
        from dataclasses import replace

        from pipeline.types import Verdict

        lost = Verdict("verifier_error", reason="gone")
        broken = [Group(g.prompt, tuple(replace(m, verdict=lost, reward=None) for m in g.members)) for g in groups[:3]]
        return [*broken, *groups[3:]], tally

    monkeypatch.setattr(module, "sample_groups", failing)
    found = rate(CONFIG, tmp_path, tmp_path / "out.jsonl", 2, Silent())
    assert found.unrated == 3
    assert [r["pass_rate"] for r in rows(tmp_path / "out.jsonl")][:3] == [None] * 3
    assert "3 without a rate" in str(found)


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    out.write_text('{"id": "stranger", "pass_rate": 1, "samples": 2}\n')
    with pytest.raises(DataError, match="'stranger', which this recipe has not"):
        rate(CONFIG, tmp_path, out, 2, Silent())
    with pytest.raises(DataError, match="line 1 is of 2 samples, and 4 are asked for"):
        rate(CONFIG, tmp_path, out, 4, Silent())
    with pytest.raises(ConfigError, match="samples must be >= 1, got 0"):
        rate(CONFIG, tmp_path, out, 0, Silent())

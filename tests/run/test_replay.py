"""A recorded episode, played again: equal to its record, or the first message that differs is named."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from tests.loop.test_episode_metrics import row_of
from verizero.pipeline.config.template import Template
from verizero.pipeline.data.render import Renderer
from verizero.pipeline.data.tokenizer import character_tokenizer
from verizero.pipeline.data.turns import turns_of
from verizero.pipeline.environments.base import load
from verizero.pipeline.loop.episode_metrics import message_rows
from verizero.pipeline.report.row_types import rollout_row, to_json
from verizero.pipeline.rollout.engine import Sampling
from verizero.pipeline.rollout.episode import EpisodeLimits
from verizero.pipeline.rollout.play import EpisodeSetup, play, task_seed_of
from verizero.pipeline.rollout.scripted_engine import ScriptedEngine
from verizero.pipeline.run.replay import message_of, replay
from verizero.pipeline.types import Message, Prompt

TOKENIZER = character_tokenizer()
PROMPTS = {
    "guess": (Prompt("g", "1 to 32?", "environment", "20", environment="guess"), ("16", "x", "24", "20")),
    "calculator": (
        Prompt("c", "27*58+14=", "environment", "1580", environment="calculator"),
        ("<mul 27 58>", "<mul 27>", "<add 1566 14>", "1580"),
    ),
}


def recorded(name: str, max_turns: int = 8) -> tuple[Prompt, tuple[int, int], list[Message]]:
    """Return a played episode as it comes back from a line of rollouts.jsonl."""
    prompt, answers = PROMPTS[name]

    def script(ids: tuple[int, ...], seed: int) -> tuple[int, ...]:
        turn = ids.count(TOKENIZER.eos_token_id)
        return (*TOKENIZER(answers[turn], add_special_tokens=False)["input_ids"], TOKENIZER.eos_token_id)

    engine = ScriptedEngine(script, TOKENIZER.eos_token_id)
    with ThreadPoolExecutor(1) as threads:
        writer = turns_of(Renderer(TOKENIZER, Template()))
        episodes = EpisodeSetup({name: load(name).bind()}, writer, EpisodeLimits(max_turns=max_turns), threads)
        (rollout,) = play(engine, episodes, [prompt], 1, Sampling(32), 3, "rl", 0)
    assert rollout.episode is not None
    assert message_rows(rollout, rollout.episode)
    row = rollout_row(to_json(row_of(rollout)), "line 1")
    assert row.messages is not None
    assert row.seed is not None
    return prompt, (task_seed_of(3, prompt), row.seed), [message_of(m) for m in row.messages]


@pytest.mark.parametrize("max_turns", [8, 2])
@pytest.mark.parametrize("name", PROMPTS)
def test_an_episode_is_played_again_from_its_line(name: str, max_turns: int) -> None:
    prompt, seeds, record = recorded(name, max_turns)
    again = replay(load(name).bind(), prompt, seeds, record)
    assert again.difference is None
    assert again.messages == tuple(record)
    assert len(record) >= 4


@pytest.mark.parametrize("name", PROMPTS)
def test_the_first_difference_is_named(name: str) -> None:
    prompt, seeds, record = recorded(name)
    changed = list(record)
    changed[4] = replace(changed[4], content="something else")
    assert replay(load(name).bind(), prompt, seeds, changed).difference == 4
    longer = [*record, Message("user", "one more")]
    assert replay(load(name).bind(), prompt, seeds, longer).difference == len(record)
    other = replace(prompt, reference="19" if name == "guess" else prompt.reference, question="another?")
    assert replay(load(name).bind(), other, seeds, record).difference == 0

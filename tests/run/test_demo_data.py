"""The shipped demo: what it holds out is nowhere in training, and its model and sizes are what it says."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from verizero.pipeline.config.load import load_recipe
from verizero.pipeline.run.build import build_tokenizer, context_of, longest_text
from verizero.pipeline.run.data import RunData, prepare_data

CONFIGS = Path(__file__).resolve().parents[2] / "configs"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> RunData:
    config = load_recipe(CONFIGS / "demo.yaml")
    return prepare_data(config, build_tokenizer(config), context_of(config), CONFIGS, tmp_path_factory.mktemp("demo"))


def task(question: str) -> tuple[int, ...]:
    """What a question asks, whichever way it is put: the operands of a sum, the line through two points."""
    if question.startswith("f("):
        values = [int(v) for v in re.findall(r"=(-?\d+)", question)]
        return (values[1] - values[0], values[0], -1)
    return tuple(sorted(int(v) for v in re.findall(r"\d+", question)))


@pytest.mark.run
def test_an_engine_gets_room_for_the_longest_prompt_and_its_response(data: RunData) -> None:
    config, model = load_recipe(CONFIGS / "demo.yaml"), SimpleNamespace(max_position_embeddings=4096)
    longest = max(len(data.renderer.prompt_ids(p)) for p in (*data.train, *data.evaluation))
    assert longest_text(config, data, model) == longest + config.rollout.max_response_tokens
    assert longest_text(config, data, SimpleNamespace(max_position_embeddings=20)) == 20
    hinted = load_recipe(CONFIGS / "stages" / "star.yaml")
    assert longest_text(hinted, data, model) is None, "a hint makes a prompt longer"


@pytest.mark.run
def test_no_evaluation_task_is_trained_on_or_demonstrated(data: RunData) -> None:
    held_out = {task(p.question) for p in data.evaluation}
    assert len(held_out) == len(data.evaluation) == 320
    questions = {p.question for p in (*data.train, *data.demonstrations)}
    assert len(questions) > 6000
    assert not held_out & {task(question) for question in questions}
    assert all(p.demonstration is None for p in data.evaluation)

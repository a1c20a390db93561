"""The shipped demo: its engine has room for what it asks and answers."""

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


@pytest.mark.run
def test_an_engine_gets_room_for_the_longest_prompt_and_its_response(data: RunData) -> None:
    config, model = load_recipe(CONFIGS / "demo.yaml"), SimpleNamespace(max_position_embeddings=4096)
    longest = max(len(data.renderer.prompt_ids(p)) for p in (*data.train, *data.evaluation))
    assert longest_text(config, data, model) == longest + config.rollout.max_response_tokens
    assert longest_text(config, data, SimpleNamespace(max_position_embeddings=20)) == 20
    hinted = load_recipe(CONFIGS / "stages" / "star.yaml")
    assert longest_text(hinted, data, model) is None, "a hint makes a prompt longer"

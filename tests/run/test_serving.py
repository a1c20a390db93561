"""A model that answers: the room that its context leaves, and the terminal."""

import io
import json

import pytest

from tests.checks.before import chat_model, of_chat
from tests.data.chat_templates import END
from tests.scripted_engine import ScriptedEngine
from tests.stages.tiny import tiny
from verizero.pipeline.cli import parser
from verizero.pipeline.commands import chat
from verizero.pipeline.config.auto import for_machine
from verizero.pipeline.config.load import dump
from verizero.pipeline.config.template import Template
from verizero.pipeline.data.render import Renderer
from verizero.pipeline.data.tokenizer import CHARACTERS, character_tokenizer
from verizero.pipeline.data.turns import turns_of
from verizero.pipeline.errors import ConfigError, DataError
from verizero.pipeline.models.load import create_model, eos_ids, load_tokenizer, save_folder
from verizero.pipeline.rollout.engine import Sampling
from verizero.pipeline.run.opening import load_policy
from verizero.pipeline.run.serving import Served, load_served
from verizero.pipeline.types import Message

TOKENIZER = character_tokenizer()


class Noted(ScriptedEngine):
    """Says the last letter of the prompt again, and notes the calls."""

    def __init__(self):
        super().__init__(lambda ids, _seed: (ids[-1], TOKENIZER.eos_token_id), TOKENIZER.eos_token_id)
        self.calls = []

    def generate(self, requests, sampling, listener=None):
        self.calls.append((list(requests), sampling))
        return super().generate(requests, sampling)


def served(context=40):
    engine = Noted()
    return Served(engine, turns_of(Renderer(TOKENIZER, Template())), context, Sampling(8, 0.7)), engine


def said(text):
    return [Message("user", text)]


def test_a_message_is_answered_with_its_seed_and_what_the_context_leaves():
    model, engine = served(context=10)
    message, was_cut = model.answer(said("abcdefgh"), 5)
    assert (message.content, was_cut) == ("h", False)
    ((requests, sampling),) = engine.calls
    assert (requests[0].seeds, sampling) == ((5,), Sampling(2, 0.7))


@pytest.mark.parametrize(("text", "names"), [("a" * 40, "maximum context length is 40"), ("", "no tokens")])
def test_a_message_without_an_answer_is_refused(text, names):
    with pytest.raises(DataError, match=names):
        served()[0].answer(said(text), 1)


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"neither model/ nor config\.json"):
        load_served(str(tmp_path), None, Sampling(8), "cpu")


def test_a_policy_stops_where_its_chat_template_ends_a_turn_and_so_does_its_folder(tmp_path):
    folder = chat_model(tmp_path, end="<pad>")
    tokenizer = load_tokenizer(folder)
    ends = sorted(map(int, tokenizer.convert_tokens_to_ids(["<pad>", END])))
    served = load_served(folder, None, Sampling(8), "cpu")
    assert sorted(served.engine.eos_ids) == ends
    policy = load_policy(for_machine(of_chat(tmp_path, folder), 1, "cpu"), tokenizer, None)
    assert eos_ids(policy, tokenizer) == ends
    save_folder(policy, tokenizer, tmp_path / "trained")
    kept = json.loads((tmp_path / "trained" / "generation_config.json").read_text())["eos_token_id"]
    assert sorted(kept) == ends


SHAPE = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
SHAPE |= {"num_key_value_heads": 2, "max_position_embeddings": 64}


def folder_of(path, seed=0, chat_template=None, characters=CHARACTERS):
    tokenizer = character_tokenizer(characters)
    tokenizer.chat_template = chat_template
    save_folder(create_model("qwen2", SHAPE, tokenizer, seed), tokenizer, path)
    return path


def ask(words, typed, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    arguments = parser().parse_args(["chat", *words, "--max-tokens", "4", "--temperature", "0", "--device", "cpu"])
    return int(arguments.run(arguments))


@pytest.mark.run
@pytest.mark.parametrize(("characters", "between"), [(CHARACTERS, "/new\n"), ("abx", "")], ids=["asks on", "alone"])
def test_lines_are_answered_in_the_terminal(characters, between, tmp_path, capsys, monkeypatch):
    """Where the tokenizer cannot write what follows an answer, each line is asked alone."""
    model = str(folder_of(tmp_path / "model", characters=characters))
    assert ask([model], f"ab\n{between}ab\n" + "x" * 90 + "\n", monkeypatch) == 0
    told = capsys.readouterr()
    first, second, *_ = told.out.splitlines()
    assert first == second, "a first line has the same answer"
    assert "maximum context length is 64" in told.err


class TestBeside:
    @pytest.fixture
    def trained(self, tmp_path):
        """A run's folder, whose model started from another folder and whose template has a system message."""
        written = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
        folder_of(tmp_path / "before", 5, written)
        folder_of(tmp_path / "run" / "model", 6, written)
        template = {"name": "chat", "system": "s"}
        recipe = tiny({"data": {"template": template}, "model": {"create": None, "path": str(tmp_path / "before")}})
        (tmp_path / "run" / "recipe.yaml").write_text(dump(recipe))
        return tmp_path / "run"

    def ask(self, words, capsys, monkeypatch):
        assert ask(words, "ab\ncd\n/new\nab\n", monkeypatch) == 0
        return str(capsys.readouterr().out).splitlines()

    @pytest.mark.run
    def test_both_answer_each_line_as_they_would_alone(self, trained, capsys, monkeypatch):
        alone = self.ask([str(trained)], capsys, monkeypatch)
        before = self.ask([str(trained.parent / "before"), "--system", "s"], capsys, monkeypatch)
        both = self.ask([str(trained), "--against", "start"], capsys, monkeypatch)
        assert both == [
            line for old, new in zip(before, alone, strict=True) for line in (f"start: {old}", f"{trained}: {new}")
        ]
        assert alone != before
        assert alone[0] == alone[2]
        assert alone != self.ask([str(trained), "--system", "another"], capsys, monkeypatch)

    def test_a_model_without_a_start_is_told_to_name_the_other(self, trained):
        model = str(trained / "model")
        for words, wanted in (
            ([model, "--against", "start"], "no run that started"),
            ([model, "--against", model], "itself"),
        ):
            with pytest.raises(ConfigError, match=wanted):
                chat.speakers_of(parser().parse_args(["chat", *words, "--device", "cpu"]))

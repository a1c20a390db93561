"""A model behind the gateway: requests computed together, their own sampling, and errors that leave the rest alone."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.far import FarProgram
from tests.processes import PATIENCE_S, until
from tests.stages.tiny import tiny
from tests.warm import ROOT, TRAINING, warm
from verizero.pipeline.cli import parser
from verizero.pipeline.commands import chat
from verizero.pipeline.config.load import dump
from verizero.pipeline.config.template import Template
from verizero.pipeline.data.render import Renderer
from verizero.pipeline.data.tokenizer import character_tokenizer
from verizero.pipeline.data.turns import turns_of
from verizero.pipeline.environments.gateway.api import Answer, Refused, TurnRequest
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.models.load import create_model, save_folder
from verizero.pipeline.rollout.engine import Completion, Request, Sampling
from verizero.pipeline.rollout.scripted_engine import ScriptedEngine
from verizero.pipeline.run.serving import Served, load_served
from verizero.pipeline.types import Message

TOKENIZER = character_tokenizer()


class Noted(ScriptedEngine):
    """Says the last letter of the prompt again, and notes the calls."""

    def __init__(self) -> None:
        super().__init__(lambda ids, _seed: (ids[-1], TOKENIZER.eos_token_id), TOKENIZER.eos_token_id)
        self.calls: list[tuple[list[Request], Sampling]] = []

    def generate(self, requests: Any, sampling: Sampling, listener: Any = None) -> list[list[Completion]]:
        self.calls.append((list(requests), sampling))
        return super().generate(requests, sampling)


def served(context: int | None = 40) -> tuple[Served, Noted]:
    engine = Noted()
    return Served(engine, turns_of(Renderer(TOKENIZER, Template())), context, Sampling(8, 0.7)), engine


def request_of(text: str, **decided: Any) -> TurnRequest:
    return TurnRequest("policy", (Message("user", text),), decided=decided)


def test_requests_of_equal_sampling_are_computed_together_and_answered_in_order() -> None:
    model, engine = served()
    requests = [
        request_of("ab"),
        request_of("cd", temperature=0),
        request_of("ef", max_tokens=3),
        request_of("gh", seed=-5),
    ]
    answers = model.answer(requests, [1, 2, 3, 4])
    assert [a.message.content for a in answers if isinstance(a, Answer)] == ["b", "d", "f", "h"]
    assert [(len(r), s.temperature, s.max_tokens) for r, s in engine.calls] == [(2, 0.7, 8), (1, 0.0, 8), (1, 0.7, 3)]
    assert [r.seeds for r in engine.calls[0][0]] == [(1,), (5,)]
    assert (answers[0].prompt_tokens, answers[0].sampled_tokens) == (2, 2)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("text", "names"), [("a" * 40, "maximum context length is 40"), ("", "no tokens"), ("a" * 41, "40 tokens hold")]
)
def test_a_bad_request_is_refused_and_the_others_are_answered(text: str, names: str) -> None:
    model, _ = served()
    bad, good = replace(model, max_chars=40).answer([request_of(text), request_of("xy")], [1, 2])
    assert isinstance(bad, Refused)
    assert bad.status == 400
    assert re.search(names, str(bad))
    assert isinstance(good, Answer)
    assert good.message.content == "y"


def test_an_answer_takes_what_the_context_leaves() -> None:
    model, engine = served(context=10)
    model.answer([request_of("abcdefgh")], [1])
    assert engine.calls[0][1].max_tokens == 2


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"neither model/ nor config\.json"):
        load_served(str(tmp_path), None, Sampling(8), "cpu")


SHAPE = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
SHAPE |= {"num_key_value_heads": 2, "max_position_embeddings": 64}


def folder_of(path: Path, seed: int = 0, chat_template: str | None = None) -> Path:
    tokenizer = character_tokenizer()
    tokenizer.chat_template = chat_template
    save_folder(create_model("qwen2", SHAPE, tokenizer, seed), tokenizer, path)
    return path


@pytest.mark.integration
def test_a_program_talks_to_a_served_model_until_it_is_stopped(tmp_path: Path) -> None:
    from anthropic import Anthropic
    from openai import NotFoundError, OpenAI

    words = ["verizero.pipeline.cli", "endpoint", str(folder_of(tmp_path / "model")), "--port", "0"]
    words += ["--max-tokens", "6", "--device", "cpu"]
    log = tmp_path / "log"
    program = FarProgram(
        TRAINING, words, log, os.environ | {"PYTHONUNBUFFERED": "1", "VERIZERO_ENDPOINT_KEY": "k"}, ROOT
    )
    try:
        lines = until(lambda: len(said := log.read_text().split("\n")) > 3 and said, "its lines")
        url = lines[0].split()[-1]
        client = OpenAI(base_url=url, api_key="k", max_retries=0)
        answer = client.chat.completions.create(
            model="policy", messages=[{"role": "user", "content": "ab"}], temperature=0
        )
        assert answer.usage is not None
        assert 1 <= answer.usage.completion_tokens <= 6
        again = client.responses.create(model="policy", input="ab", temperature=0)
        assert again.output_text == answer.choices[0].message.content
        other = Anthropic(base_url=lines[1].split()[-1], api_key="k", max_retries=0)
        size = other.messages.count_tokens(model="policy", messages=[{"role": "user", "content": "ab"}])
        third = other.messages.create(
            model="policy",
            max_tokens=6,
            messages=[{"role": "user", "content": "ab"}],
            extra_body={"temperature": 0},
        )
        assert third.content[0].text == again.output_text  # type: ignore[union-attr]
        assert size.input_tokens == third.usage.input_tokens == answer.usage.prompt_tokens
        assert client.models.list().data[0].id == "policy"
        with pytest.raises(NotFoundError, match="embeddings"):
            client.embeddings.create(model="policy", input="ab")
    finally:
        program.send_signal(signal.SIGINT)
        try:
            assert program.wait(PATIENCE_S) == 0
        finally:
            program.kill()


@pytest.mark.integration
def test_lines_are_answered_in_the_terminal(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "verizero.pipeline.cli",
        "chat",
        str(folder_of(tmp_path / "model")),
        "--max-tokens",
        "4",
    ]
    command += ["--temperature", "0", "--device", "cpu"]
    typed = "ab\n/new\nab\n" + "x" * 90 + "\n"
    done: subprocess.CompletedProcess[str] = warm().call(
        subprocess.run, command, input=typed, capture_output=True, text=True, check=True
    )
    lines = done.stdout.splitlines()
    assert len(lines) >= 2
    assert lines[0] == lines[1], "after /new the same line has the same answer"
    assert "maximum context length is 64" in done.stderr


class TestBeside:
    """Two models that answer the same lines."""

    @pytest.fixture
    def trained(self, tmp_path: Path) -> Path:
        """A run's folder, whose model started from another folder and whose template has a system message."""
        written = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
        folder_of(tmp_path / "before", 5, written)
        folder_of(tmp_path / "run" / "model", 6, written)
        template = {"name": "chat", "system": "s"}
        recipe = tiny({"data": {"template": template}, "model": {"create": None, "path": str(tmp_path / "before")}})
        (tmp_path / "run" / "recipe.yaml").write_text(dump(recipe))
        return tmp_path / "run"

    def ask(self, words: list[str], typed: str, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """Return the lines that the command prints."""
        monkeypatch.setattr("sys.stdin", io.StringIO(typed))
        arguments = parser().parse_args(["chat", *words, "--max-tokens", "4", "--temperature", "0", "--device", "cpu"])
        assert arguments.run(arguments) == 0
        return str(capsys.readouterr().out).splitlines()

    @pytest.mark.integration
    def test_both_answer_each_line_as_they_would_alone(
        self, trained: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        typed = "ab\ncd\n/new\nab\n"
        alone = self.ask([str(trained)], typed, capsys, monkeypatch)
        before = self.ask([str(trained.parent / "before"), "--system", "s"], typed, capsys, monkeypatch)
        both = self.ask([str(trained), "--against", "start"], typed, capsys, monkeypatch)
        assert both == [
            line for old, new in zip(before, alone, strict=True) for line in (f"start: {old}", f"{trained}: {new}")
        ]
        assert alone != before
        assert alone[0] == alone[2]
        assert alone == self.ask([str(trained), "--system", "s"], typed, capsys, monkeypatch)
        assert alone != self.ask([str(trained), "--system", "another"], typed, capsys, monkeypatch)

    def test_a_model_without_a_start_is_told_to_name_the_other(self, trained: Path) -> None:
        model = str(trained / "model")
        for words, wanted in (
            ([model, "--against", "start"], "no run that started"),
            ([model, "--against", model], "itself"),
        ):
            with pytest.raises(ConfigError, match=wanted):
                chat.speakers_of(parser().parse_args(["chat", *words, "--device", "cpu"]))

"""The documents against the code: examples run, tables and layouts are the project's own."""

import json
import math
import re
from pathlib import Path

import pytest
import yaml

from tests.source import ROOT
from verizero.pipeline.config.data import MAPPINGS, DataConfig, Source
from verizero.pipeline.config.episodes import EpisodesConfig
from verizero.pipeline.config.scoring import ScoringConfig
from verizero.pipeline.data.prompts import load_prompts
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.registry import import_file, names
from verizero.pipeline.types import ENDINGS, Attempt
from verizero.verifiers.base import load
from verizero.verifiers.layouts.base import layouts, suite_of

CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
DATA = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")
EPISODES = (ROOT / "docs" / "episodes.md").read_text(encoding="utf-8")
AGENTS = (ROOT / "docs" / "agents.md").read_text(encoding="utf-8")


def block(text, language, name):
    (found,) = re.findall(rf"^```{language} {name}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return str(found)


def imported(source, name, folder):
    """The module that this source is, as a plug-in of a user."""
    (folder / f"{name}.py").write_text(source, encoding="utf-8")
    return import_file(folder / f"{name}.py", "example")


def test_the_layout_names_what_is_there_and_all_of_it():
    (layout,) = re.findall(r"^## Layout\n\n```\n(.*?)^```$", CONTRIBUTING, re.MULTILINE | re.DOTALL)
    told = [line.split()[0] for line in layout.splitlines()]
    assert [path for path in told if not (ROOT / path).exists()] == []
    packages = {f"pipeline/{p.parent.name}/" for p in (ROOT / "pipeline").glob("*/__init__.py")}
    modules = {f"pipeline/{p.name}" for p in (ROOT / "pipeline").glob("*.py")} - {"pipeline/__init__.py"}
    empty = {p for p in packages if len(list((ROOT / p).glob("*.py"))) == 1 and p not in told}
    assert packages | modules == {p for p in told if p.startswith("pipeline/")} | empty


@pytest.mark.parametrize(
    "document", [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))], ids=lambda p: p.name
)
def test_links_lead_somewhere_and_files_that_are_named_exist(document):
    text = document.read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#:]+\.(?:md|py|yaml))(?:#[^)]*)?\)", text)
    assert [link for link in links if not (document.parent / link).exists()] == []
    named = re.findall(r"\b(?:pipeline|verifiers|sandbox|flows|tests|benchmarks|configs|docs)/[\w/.-]+\.\w+\b", text)
    assert [path for path in sorted(set(named)) if not (ROOT / path).exists() and "<" not in path] == []


def test_the_algorithm_example_is_one(tmp_path):
    from verizero.pipeline.rl.explain import explain

    module = imported(block(CONTRIBUTING, "python", "algorithm"), "half_clipped", tmp_path)
    found = module.parts(module.Params(clip_high=0.5)).resolve(64)
    assert "clip(r, 1 - 1, 1 + 0.5)" in explain(found)


def test_the_ratio_example_trains_from_outside_the_package(tmp_path):
    """By path, with the numbers of a slow double, and explained."""
    import torch

    from verizero.pipeline.algorithms.base import explain_algorithm, load_algorithm
    from verizero.pipeline.rl.loss import Counts, LossInputs, count_denominators, policy_loss

    path = str(tmp_path / "root_length.py")
    Path(path).write_text(block(CONTRIBUTING, "python", "ratio"), encoding="utf-8")
    _, parts = load_algorithm(path, {"clip_high": 0.04})
    new = torch.tensor([[-1.0, -0.5, -0.3], [-0.2, -0.1, 0.0]], dtype=torch.float64, requires_grad=True)
    old, advantages = new.detach() - torch.tensor([[0.02], [-0.01]]), torch.tensor([[1.0], [-1.0]]).expand(2, 3)
    mask = torch.tensor([[1.0, 1.0, 1.0], [1.0, 1.0, 0.0]])
    out = policy_loss(
        parts, LossInputs(new, advantages, mask, old_logprobs=old), Counts(*count_denominators(parts, mask).tolist())
    )
    # 3 differences of 0.02 are clipped at 1.04; 2 of -0.01 are not, at 0.98.
    ratios = [min(math.exp(3 * 0.02 / math.sqrt(3)), 1.04), math.exp(2 * -0.01 / math.sqrt(2))]
    assert float(out.loss.detach()) == pytest.approx(-(ratios[0] - ratios[1]) / 2)
    page = explain_algorithm(path, {"clip_high": 0.04}, max_response_tokens=8)
    assert "ratio       r = (pi(y) / pi_old(y))^(1/sqrt|y|)" in page
    with pytest.raises(ConfigError, match="allow: \\[wide_sequence_clip\\]"):
        load_algorithm(path, {"clip_high": 0.2})


def test_the_verifier_example_grades(tmp_path):
    (tmp_path / "mine.py").write_text(block(CONTRIBUTING, "python", "verifier"), encoding="utf-8")
    bound = load(path="mine.py:longest_word", base=tmp_path).bind({"min_letters": 3})
    right, wrong, nothing = bound.score([Attempt(r, "rabbit") for r in ("a rabbit ran", "elephants ran", "a b")])
    assert (right.score, wrong.score, nothing.status) == (1.0, 0.0, "no_answer")


def test_the_environment_example_is_played(tmp_path):
    from verizero.pipeline.commands.environment import check
    from verizero.pipeline.environments.base import load as load_environment
    from verizero.pipeline.types import Message, Prompt

    (tmp_path / "my_games.py").write_text(block(CONTRIBUTING, "python", "environment"), encoding="utf-8")
    bound = load_environment(path="my_games.py:parity", base=tmp_path).bind({"turns": 2})
    game = bound.make(Prompt("p", "numbers?", "environment", None), 0, 0)
    replies = [game.step(Message("assistant", word)) for word in ("x", "13", "5")]
    assert [m.content for r in replies for m in r.messages] == ["a number, please", "another"]
    assert replies[-1].outcome.score == 1.0
    report = check("my_games.py:parity", episodes=5, base=tmp_path)
    assert report.passed, str(report)


def test_the_layout_of_contributing_reads_a_reference(tmp_path):
    module = imported(block(CONTRIBUTING, "python", "layout"), "streams", tmp_path)
    reference = {"stdin": "1", "stdout": "2"}
    assert reference.keys() == set(module.streams.keys)
    assert module.streams.read(reference) == suite_of([{"input": "1", "output": "2"}])


def test_the_generator_example_makes_disjoint_rows(tmp_path):
    module = imported(block(CONTRIBUTING, "python", "generator"), "backwards", tmp_path)
    split = module.rows(module.Params(), 3)
    assert split == module.rows(module.Params(), 3)
    assert len(split.train) == 20
    assert not {r["id"] for r in split.train} & {r["id"] for r in split.evaluation}
    assert all(r["answer"] == r["question"].split()[0][::-1] for r in split.train)


def test_the_data_section_loads():
    config = DataConfig.model_validate(yaml.safe_load(block(DATA, "yaml", "data")))
    assert [s.label for s in config.train][:2] == ["train.jsonl", "words.parquet"]
    assert not DataConfig.model_validate(yaml.safe_load(block(DATA, "yaml", "conversations"))).train[0].graded


def test_the_mapping_does_what_is_said_of_it(tmp_path):
    row = block(DATA, "json", "row")
    (tmp_path / "quiz.jsonl").write_text(json.dumps(json.loads(row)) + "\n", encoding="utf-8")
    (prompt,) = load_prompts([Source.model_validate(yaml.safe_load(block(DATA, "yaml", "source")))], 0, tmp_path)
    assert f"the prompt asks `{prompt.question}` and the reference is `{prompt.reference}`." in DATA
    assert (prompt.id, prompt.verifier) == ("7", "numeric")


AGENT = (ROOT / "pipeline" / "environments" / "agent.py").read_text(encoding="utf-8")
NAMED = {
    "mappings": ([p.stem for p in MAPPINGS.glob("*.yaml")], DATA),
    "limits of episodes": (EpisodesConfig.model_fields, EPISODES.replace("episodes.", "")),
    "endings": (ENDINGS, EPISODES),
    "variables of an agent": (re.findall(r'^            "([A-Z_]+)": ', AGENT, re.MULTILINE), AGENTS),
}


@pytest.mark.parametrize("kind", NAMED)
def test_all_of_a_kind_are_on_their_page(kind):
    kept, page = NAMED[kind]
    assert kept
    assert [name for name in kept if f"`{name}`" not in page] == []


def test_the_environments_of_the_page_are_accepted():
    config = DataConfig.model_validate(yaml.safe_load(block(EPISODES, "yaml", "data")))
    assert [s.environment and (s.environment.name or s.environment.path) for s in config.train] == [
        "guess",
        "number_game.py:number_game",
        "tool_use",
        None,
    ]
    endings = ScoringConfig.model_validate(yaml.safe_load(block(EPISODES, "yaml", "scoring"))).endings
    assert endings == {"turns": 0, "unread": -0.5}
    agent = Source.model_validate(yaml.safe_load(block(AGENTS, "yaml", "source"))).environment
    assert agent.params["command"] == ["python", "my_agent.py"]


@pytest.mark.parametrize("kind", ["environments", "tools"])
def test_every_shipped_environment_and_tool_is_in_its_table_with_all_its_parameters(kind):
    from verizero.pipeline.environments.base import load as load_environment
    from verizero.pipeline.environments.tools.base import load as load_tools

    table = [line for line in EPISODES.splitlines() if line.startswith("|")]
    listed = {name: line for line in table for name in re.findall(r"`(\w+)`", line.split("|")[1])}
    for name in names(kind):
        params = load_environment(name).params_type if kind == "environments" else load_tools(name).params_type
        where = {"agent": AGENTS, "sql": EPISODES, "session": EPISODES}.get(name, listed[name])
        missing = [f for f in params.model_fields if f"`{f}`" not in where]
        assert missing == [], f"{kind} {name}"


def test_the_gateway_takes_and_refuses_what_is_listed():
    """Each field that it knows is in its row."""
    from verizero.pipeline.environments.gateway import chat

    rows = {
        line.split("|")[1].split(";")[0].split(",")[0].strip(): line.split("|")[2]
        for line in AGENTS.splitlines()
        if line.startswith("|")
    }
    for head, fields in (("the recipe decides", chat.DECIDED), ("accepted", chat.HARMLESS)):
        assert sorted(re.findall(r"`(\w+)`", rows[head])) == sorted(fields)
    told = rows["read"] + rows["refused by name"]
    assert [f for f in chat.READ if f != "model" and f"`{f}" not in told] == []


def test_the_table_of_layouts_names_all_of_them():
    verifiers = (ROOT / "docs" / "verifiers.md").read_text(encoding="utf-8")
    table = verifiers.partition("#### Layouts")[2].partition("\n\n- ")[0]
    told = {name for line in table.splitlines() if line.startswith("| `") for name in re.findall(r"`(\w+)`", line)}
    # The others are forms of one in the table: a list of its tests, or the column that holds them.
    forms = {"livecodebench_tests": "livecodebench", "synthetic": "verification_info"}
    assert {forms.get(name, name) for name in layouts()} <= told

"""The data section of a recipe: what it accepts, what it refuses, and that it survives being written out."""

import pytest
import yaml
from pydantic import ValidationError

from verizero.pipeline.config.choices import VerifierChoice
from verizero.pipeline.config.data import MAPPINGS, ColumnMapping, DataConfig, GeneratorSource, Source
from verizero.pipeline.data.generators.base import generate
from verizero.pipeline.data.prompts import load_prompts
from verizero.pipeline.errors import ConfigError, UnknownName

RECIPE = """
train:
  - {generator: {name: arithmetic, params: {noise: 0.1}}}
  - {file: train.jsonl, mapping: gsm8k, limit: 10, shuffle: true, on_bad_row: skip}
  - {hub: {id: some/set, config: main, split: test, revision: abc}, mapping: math, domain: math}
evaluation:
  - file: test.parquet
    mapping: {question: {column: q, before: END}, answer: a.b.0, id: null}
    verifier: {name: exact}
  - file: several.jsonl
    mapping: {question: {column: q, then: [r]}, answer: {columns: {a: b, c: {column: d, parse: json}}}}
template: chat
sampling: {weights: {math: 2, default: 1}}
"""


def test_a_resolved_recipe_written_as_yaml_reads_back_the_same():
    config = DataConfig.model_validate(yaml.safe_load(RECIPE))
    written = yaml.safe_dump(config.model_dump(mode="json"))
    assert DataConfig.model_validate(yaml.safe_load(written)) == config
    assert config.train[0].generator is not None
    assert config.train[0].generator.params["noise"] == 0.1
    assert config.train[0].generator.params["digits"] == 2, "defaults are part of the resolved recipe"
    assert config.evaluation[0].mapping.answer.column == "a.b.0"


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        (
            {"train": [{"file": "a.json", "graded": False, "verifier": "math"}]},
            "graded: false has no verifier, got 'math'; drop one",
        ),
        (
            {"train": [{"file": "a.json", "verifier": "math", "mapping": {"answer": None}}]},
            "mapping.answer is null, and 'math' compares responses to an answer; map one, name a reward function",
        ),
        (
            {"train": [{"file": "a.json", "mapping": {"answer": None}}]},
            "the verifiers of rows compare responses to an answer",
        ),
        (
            {"evaluation": [{"file": "a.json", "graded": False}]},
            "data.evaluation: a.json has graded: false, and an evaluation grades responses",
        ),
        ({"train": [{}]}, "exactly one of generator, file and hub, got none"),
        ({"train": [{"file": "a.json", "hub": {"id": "x"}}]}, "got file and hub"),
        ({"train": [{"file": "a.txt"}]}, "file must end in .jsonl, .ndjson, .json, .csv, .tsv, .parquet, or one of"),
        ({"train": [{"file": "a.json", "limit": 0}]}, "greater than or equal to 1"),
        ({"train": [{"file": "a.json", "mapping": {"answr": "x"}}]}, "Extra inputs are not permitted"),
        ({"train": [{"file": "a.json", "verifier": {}}]}, "exactly one of verifier.name"),
        ({"train": [{"file": "a.json"}], "template": {"name": "custom"}}, "template.text goes with"),
        ({"train": [{"file": "a.json"}], "template": {"name": "custom", "text": "x"}}, "must hold {question}"),
        ({"train": [{"file": "a.json"}], "template": {"name": "plain", "system": "x"}}, "need template.name: chat"),
        ({"train": [{"file": "a.json"}], "sampling": {"weights": {"a": -1}}}, "must be >= 0 and not all zero"),
        (
            {"train": [{"file": "a.json", "mapping": {"answer": {"column": "a", "replace": [["(", ""]]}}}]},
            "'(' is no regular expression",
        ),
    ],
)
def test_what_it_refuses(tree, said):
    with pytest.raises(ValidationError) as caught:
        DataConfig.model_validate(tree)
    assert said in str(caught.value)


def test_unknown_names_are_refused_at_load():
    with pytest.raises(UnknownName, match=r"'aritmetic'.*arithmetic"):
        GeneratorSource(name="aritmetic")
    with pytest.raises(UnknownName, match=r"'exakt'.*exact"):
        VerifierChoice(name="exakt")
    with pytest.raises(ConfigError, match="'nope'"):
        VerifierChoice(name="exact", params={"nope": 1})


@pytest.mark.parametrize("path", sorted(MAPPINGS.glob("*.yaml")), ids=lambda p: p.stem)
def test_every_shipped_mapping_opens_with_a_comment_and_is_found_by_name(path):
    assert path.read_text().startswith("# Column mapping for ")
    fields = yaml.safe_load(path.read_text())
    fields.pop("recognise", None)
    assert Source(file="x.jsonl", mapping=path.stem).mapping == ColumnMapping.model_validate(fields)


def test_a_generator_of_an_installed_package_needs_no_list(tmp_path, monkeypatch):
    (tmp_path / "parrot_tasks.py").write_text(
        "from verizero.pipeline.data.generators.base import GeneratorParams, Split\n"
        "class Params(GeneratorParams):\n"
        "    word: str = 'hello'\n"
        "def rows(params, seed):\n"
        "    row = {'id': 'p', 'question': params.word, 'answer': params.word, 'verifier': 'exact'}\n"
        "    return Split([row], [], [])\n"
    )
    info = tmp_path / "parrot_tasks-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: parrot-tasks\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[verizero.generators]\nparrot = parrot_tasks\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    (prompt,) = load_prompts([Source.model_validate({"generator": {"name": "parrot", "params": {"word": "hi"}}})], 0)
    assert (prompt.question, prompt.reference) == ("hi", "hi")
    assert generate("parrot").train[0]["answer"] == "hello"
    with pytest.raises(ConfigError, match=r"'words'.*word"):
        generate("parrot", {"words": 1})

"""The data section of a recipe: what it accepts, what it refuses, and that it survives being written out."""

import pytest
import yaml
from pydantic import ValidationError

from verizero.pipeline.config.data import MAPPINGS, ColumnMapping, DataConfig, Source

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
    assert config.train[0].generator.params["noise"] == 0.1
    assert config.train[0].generator.params["digits"] == 2, "defaults are part of the resolved recipe"
    assert config.evaluation[0].mapping.answer.column == "a.b.0"


def of_source(**changes):
    return {"train": [{"file": "a.json", **changes}]}


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        (of_source(graded=False, verifier="math"), "graded: false has no verifier, got 'math'; drop one"),
        (
            of_source(verifier="math", mapping={"answer": None}),
            "mapping.answer is null, and 'math' compares responses to an answer; map one, name a reward function",
        ),
        (of_source(mapping={"answer": None}), "the verifiers of rows compare responses to an answer"),
        (
            {"evaluation": [{"file": "a.json", "graded": False}]},
            "data.evaluation: a.json has graded: false, and an evaluation grades responses",
        ),
        ({"train": [{}]}, "exactly one of generator, file and hub, got none"),
        (of_source(hub={"id": "x"}), "got file and hub"),
        (of_source(file="a.txt"), "file must end in .jsonl, .ndjson, .json, .csv, .tsv, .parquet, or one of"),
        (of_source(limit=0), "greater than or equal to 1"),
        (of_source(mapping={"answr": "x"}), "Extra inputs are not permitted"),
        (of_source(verifier={}), "exactly one of verifier.name"),
        (of_source() | {"template": {"name": "custom"}}, "template.text goes with"),
        (of_source() | {"template": {"name": "custom", "text": "x"}}, "must hold {question}"),
        (of_source() | {"template": {"name": "plain", "system": "x"}}, "need template.name: chat"),
        (of_source() | {"sampling": {"weights": {"a": -1}}}, "must be >= 0 and not all zero"),
        (of_source(mapping={"answer": {"column": "a", "replace": [["(", ""]]}}), "'(' is no regular expression"),
    ],
)
def test_what_it_refuses(tree, words):
    with pytest.raises(ValidationError) as caught:
        DataConfig.model_validate(tree)
    assert words in str(caught.value)


@pytest.mark.parametrize("path", sorted(MAPPINGS.glob("*.yaml")), ids=lambda p: p.stem)
def test_every_shipped_mapping_opens_with_a_comment_and_is_found_by_name(path):
    assert path.read_text().startswith("# Column mapping for ")
    fields = yaml.safe_load(path.read_text())
    fields.pop("recognise", None)
    assert Source(file="x.jsonl", mapping=path.stem).mapping == ColumnMapping.model_validate(fields)

"""Prompts from files, generators and the hub, and every way a file can be wrong."""

import json
import sys

import pytest

from tests.data.rows import jsonl, load, parquet, write_rows
from verizero.pipeline.config.data import Source
from verizero.pipeline.data.generators.base import generate
from verizero.pipeline.data.prompts import (
    _split,
    check_lengths,
    forget_generated,
    load_prompts,
    load_text,
    read_demonstrations,
    read_prompts,
)
from verizero.pipeline.errors import DataError
from verizero.pipeline.types import Prompt

PLAIN = [
    {"id": "a", "question": "1+1=", "answer": "2", "verifier": "exact"},
    {"id": "b", "question": "2+2=", "answer": 4, "verifier": "exact", "domain": "sums", "demonstration": "4"},
    {"id": "c", "question": "is 1=2?", "answer": False, "verifier": "exact", "system": "Be brief."},
]


def test_own_format_in_three_file_types_gives_the_same_prompts(tmp_path):
    rows = [{**r, "answer": str(r["answer"])} for r in PLAIN]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    expected = [
        Prompt("a", "1+1=", "exact", "2"),
        Prompt("b", "2+2=", "exact", "4", "sums", "4"),
        Prompt("c", "is 1=2?", "exact", "False", system="Be brief."),
    ]
    assert load(tmp_path, file=jsonl(tmp_path, rows)) == expected
    assert load(tmp_path, file="rows.json") == expected
    assert load(tmp_path, file=parquet(tmp_path, rows)) == expected


def test_any_json_value_is_a_reference(tmp_path):
    answers = [False, 0, 0.5, [1], {"tests": [1]}]
    rows = [{"question": "q", "answer": a, "verifier": "exact"} for a in answers]
    loaded = load(tmp_path, file=jsonl(tmp_path, rows))
    assert [p.reference for p in loaded] == answers
    assert [p.id for p in loaded] == [f"rows.jsonl/{i}" for i in range(1, 6)]


def test_generated_rows_written_to_a_file_load_as_the_same_prompts(tmp_path):
    params = {"num_train": 40, "num_evaluation": 10, "num_demonstrations": 50}
    for name in ("arithmetic", "induction"):
        source = {"name": name, "params": params, "split": "train"}
        write_rows(tmp_path / "rows.jsonl", generate(name, params, 7).train)
        made = load_prompts([Source.model_validate({"generator": source})], 7)
        assert load(tmp_path, file="rows.jsonl") == made
        assert all(p.demonstration for p in made)


def test_own_columns_paths_and_parts(tmp_path):
    rows = [{"q.text": "Q: two? END", "meta": {"gold": [{"v": "=> 2 !"}]}, "hint": "Think.", "n": 5}]
    mapping = {
        "question": {"column": "q.text", "after": "Q:", "before": "END"},
        "context": ["hint", "absent"],
        "answer": {"column": "meta.gold.0.v", "replace": [["=>", ""], ["!", ""]]},
        "id": "n",
    }
    (prompt,) = load(tmp_path, file=jsonl(tmp_path, rows), mapping=mapping, verifier="exact", domain="d")
    assert prompt == Prompt("5", "two?\n\nThink.", "exact", "2", "d")


def test_a_whole_text_keeps_its_white_space_and_a_part_of_it_does_not(tmp_path):
    rows = [{"q": "def f(x):\n    ", "answer": " 7\n", "d": " return 7"}]
    mapping = {"question": "q", "demonstration": "d"}
    (prompt,) = load(tmp_path, file=jsonl(tmp_path, rows), mapping=mapping, verifier="exact")
    assert (prompt.question, prompt.reference, prompt.demonstration) == ("def f(x):\n    ", "7", " return 7")
    cut = {"question": {"column": "q", "after": "def"}}
    assert load(tmp_path, file="rows.jsonl", mapping=cut, verifier="exact")[0].question == "f(x):"


def test_escaped_surrogate_pairs_are_text(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"question": "\\ud83d\\ude00", "answer": 1, "verifier": "exact"}')
    assert load(tmp_path, file="rows.jsonl")[0].question == "\N{GRINNING FACE}"


def test_chat_questions(tmp_path):
    def chat(*messages):
        return {"question": [{"role": r, "content": c} for r, c in messages], "answer": "1"}

    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    good = [chat(("system", "S"), ("user", "U")), chat(("user", parts))]
    loaded = load(tmp_path, file=jsonl(tmp_path, good), verifier="exact")
    assert [(p.system, p.question) for p in loaded] == [("S", "U"), (None, "Hello")]


@pytest.mark.parametrize("content", ["", "\n \n"])
def test_a_file_without_rows_is_refused(tmp_path, content):
    (tmp_path / "rows.jsonl").write_text(content)
    with pytest.raises(DataError, match="is empty: it has no rows"):
        load(tmp_path, file="rows.jsonl")


def test_skipping_counts_and_says_the_first_of_each(tmp_path, logged):
    lines = [
        json.dumps(PLAIN[0]),
        "{",
        json.dumps({**PLAIN[1], "answer": ""}),
        json.dumps(PLAIN[0]),
        json.dumps(PLAIN[2]),
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    source = Source(file="rows.jsonl", on_bad_row="skip", on_duplicate_id="skip")
    prompts, (counts,) = read_prompts([source], 0, tmp_path)
    assert [p.id for p in prompts] == ["a", "c"]
    assert (counts.num_read, counts.num_loaded) == (5, 2)
    assert counts.skipped == {"bad rows": 2, "duplicate ids": 1}
    assert "line 2: not JSON" in counts.examples["bad rows"]
    assert "skipped 2 bad rows (first: rows.jsonl line 2" in "\n".join(logged)


def test_ids_are_distinct_over_all_sources(tmp_path):
    one, two = jsonl(tmp_path, PLAIN, "one.jsonl"), jsonl(tmp_path, PLAIN[:1], "two.jsonl")
    with pytest.raises(DataError, match=r"two.jsonl line 1: .*'a'.* one.jsonl line 1"):
        load_prompts([Source(file=one), Source(file=two)], 0, tmp_path)
    numbered = {"mapping": {"id": None}}
    loaded = load_prompts([Source.model_validate({"file": f, **numbered}) for f in (one, two)], 0, tmp_path)
    assert [p.id for p in loaded] == ["one.jsonl/1", "one.jsonl/2", "one.jsonl/3", "two.jsonl/1"]


def test_shuffle_and_limit(tmp_path):
    rows = [{"id": i, "question": "q", "answer": 1, "verifier": "exact"} for i in range(50)]
    file = jsonl(tmp_path, rows)
    assert [p.id for p in load(tmp_path, file=file, limit=3)] == ["0", "1", "2"]

    def ids(seed):
        return [p.id for p in load_prompts([Source(file=file, limit=20, shuffle=True)], seed, tmp_path)]

    assert ids(1) == ids(1) != ids(2)
    assert len(set(ids(1))) == 20
    assert ids(1) != sorted(ids(1), key=int)


def test_the_recipe_overrides_the_row_and_a_mapping_is_the_last_resort(tmp_path):
    file = jsonl(tmp_path, [{"question": "q", "answer": "#### 1", "verifier": "numeric", "domain": "row"}])
    own = load(tmp_path, file=file, mapping="gsm8k")[0]
    assert (own.verifier, own.domain) == ("numeric", "row")
    source = Source.model_validate(
        {"file": file, "mapping": "gsm8k", "domain": "recipe", "verifier": {"name": "exact"}}
    )
    told = load_prompts([source], 0, tmp_path)[0]
    assert (told.verifier, told.domain) == ("exact", "recipe")


def test_demonstrations_come_from_generators_and_rows_that_have_one(tmp_path):
    params = {"num_train": 40, "num_evaluation": 10, "num_demonstrations": 100}
    made = Source.model_validate({"generator": {"name": "induction", "params": params}})
    file = Source(file=jsonl(tmp_path, PLAIN))
    shown = read_demonstrations([], [made, file], 0, tmp_path).prompts
    assert len(shown) == 101
    assert shown[-1].id == "b"
    assert len({p.question for p in shown[:-1]}) == 40
    assert {p.question for p in shown[:-1]} == {p.question for p in load_prompts([made], 0)}
    assert [p.id for p in read_demonstrations([file], [made], 0, tmp_path).prompts] == ["b"]
    with pytest.raises(DataError, match=r"none.jsonl.*mapping.demonstration"):
        read_demonstrations([], [Source(file=jsonl(tmp_path, PLAIN[:1], "none.jsonl"))], 0, tmp_path)


def test_text_comes_in_equal_shares(tmp_path):
    sources = [Source.model_validate({"generator": {"name": n}}) for n in ("arithmetic", "induction")]
    lines = load_text(sources, 0, 1001)
    assert len(lines) == 1001
    assert lines == load_text(sources, 0, 1001) != load_text(sources, 1, 1001)
    programs = sum("f(" in line for line in lines)
    assert programs == 500
    with pytest.raises(DataError, match=r"data.train"):
        load_text([Source(file="x.jsonl")], 0, 10)


def test_lengths_are_checked_in_tokens_and_drops_are_counted(logged):
    prompts = [Prompt(str(i), "x" * i, "exact", "1") for i in range(1, 6)]

    def render(prompt):
        return [0] * (2 * len(prompt.question))

    assert check_lengths(prompts, render, 10).prompts == prompts
    with pytest.raises(DataError, match=r"'4'.* 8 .* 6.*on_long_prompt"):
        check_lengths(prompts, render, 6)
    found = check_lengths(prompts, render, 6, "drop")
    assert ([p.id for p in found.prompts], found.dropped, found.longest) == (["1", "2", "3"], ("4", "5"), 10)
    assert "dropped 2 prompts longer than 6 tokens" in "\n".join(logged)
    with pytest.raises(DataError, match=r" 5 .* 1 .*max_prompt_tokens"):
        check_lengths(prompts, render, 1, "drop")


@pytest.mark.parametrize("saved", [False, True])
def test_hub_source_works_offline_with_a_local_folder(tmp_path, saved, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    import datasets  # a second

    datasets.disable_progress_bars()
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "gsm"
    folder.mkdir()
    rows = [{"question": f"{i}?", "answer": f"#### {i}"} for i in range(1, 4)]
    if saved:
        datasets.DatasetDict({"train": datasets.Dataset.from_list(rows)}).save_to_disk(folder)
    else:
        parquet(folder, rows, "train.parquet")
    loaded = load(tmp_path, hub={"id": "gsm", "split": "train"}, mapping="gsm8k")
    assert [(p.id, p.reference) for p in loaded] == [(f"gsm:train/{i}", str(i)) for i in range(1, 4)]
    with pytest.raises(DataError, match="gsm:test"):
        load(tmp_path, hub={"id": "gsm", "split": "test"}, mapping="gsm8k")


def test_without_datasets_the_hub_error_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r"pip install '\.\[hub\]'"):
        load(tmp_path, hub={"id": "openai/gsm8k"}, mapping="gsm8k")


def test_a_generator_makes_its_rows_once_for_all_that_read_them():
    params = {"num_train": 20, "num_evaluation": 4, "num_demonstrations": 30}
    train, held_out = (
        [Source.model_validate({"generator": {"name": "sql", "params": params, "split": split}})]
        for split in ("train", "evaluation")
    )

    def read(seed):
        return load_prompts(train, seed), load_prompts(held_out, seed), read_demonstrations((), train, seed).prompts

    forget_generated()
    made = read(3)
    assert (_split.cache_info().misses, _split.cache_info().hits) == (1, 2)
    forget_generated()
    assert read(3) == made != read(4)

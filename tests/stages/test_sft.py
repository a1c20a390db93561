"""Training on texts: how long, on what, without padding, evaluated on the way, and resumed after a break."""

import json

import pytest

from tests.stages.broken import run
from tests.stages.sessions import go
from tests.stages.tiny import tiny
from verizero.pipeline.data.texts import pieces
from verizero.pipeline.errors import DataError
from verizero.pipeline.host.disk import read_jsonl
from verizero.pipeline.report.progress import Progress
from verizero.pipeline.run.opening import open_run, prepare_run
from verizero.pipeline.stages.pretrain import text_rows


def sft(changes, **others):
    return tiny({"stages": ["sft"], "rl": None, "sft": {"steps": 6, **changes}, **others})


def pretrain(changes, **others):
    return tiny({"stages": ["pretrain"], "sft": None, "rl": None, "pretrain": changes, **others})


def rows(folder, kind):
    return [line for line in read_jsonl(folder / "metrics.jsonl") if line["kind"] == kind]


@pytest.mark.run
def test_epochs_go_through_all_demonstrations(tmp_path):
    run(sft({"steps": None, "epochs": 1.5, "batch_size": 64}), tmp_path)
    assert len(rows(tmp_path, "step")) == 8, "300 demonstrations x 1.5 / 64, rounded up"


GOOD = [{"id": f"g{a}", "question": f"{a}+1=", "answer": str(a + 1), "demonstration": str(a + 1)} for a in range(6)]
BAD = [
    {"id": "mute", "question": "2+2=", "answer": "4", "demonstration": " "},
    {"id": "none", "question": "3+3=", "answer": "6"},
    {"id": "blank", "question": "", "answer": "4", "demonstration": "4"},
    {"id": "long", "question": "1+3=", "answer": "4", "demonstration": "4" * 90},
]


def shown(folder, demonstrations):
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in demonstrations) + "{torn\n")
    source = {"file": "rows.jsonl", "verifier": "math", "on_bad_row": "skip"}
    return sft({"steps": 2}, data={"demonstrations": [source], "evaluation": []})


@pytest.mark.run
@pytest.mark.usefixtures("pageless")
def test_rows_that_teach_nothing_are_counted_named_and_kept(tmp_path):
    said = go(shown(tmp_path, [*BAD, *GOOD]), tmp_path)
    lines = read_jsonl(tmp_path / "run/stages/sft/left_out.jsonl")
    why = {line["row"]["id"] if isinstance(line["row"], dict) else "torn": line["why"] for line in lines}
    assert why == {
        "mute": "without a demonstration",
        "none": "without a demonstration",
        "blank": "rows.jsonl line 3: column 'question' is empty",
        "torn": why["torn"],
        "long": "past the context: 95 tokens of 64",
    }
    assert why["torn"].startswith("rows.jsonl line 11")
    kept = next(line["row"] for line in lines if line["why"].startswith("past"))
    assert kept["demonstration"] == BAD[3]["demonstration"], "nothing is lost"
    notes = json.loads((tmp_path / "run" / "run.json").read_text())["data_notes"]
    (note,) = [n for n in notes if "without a demonstration" in n]
    assert note.startswith("demonstrations: rows.jsonl: 7 demonstrations of 11 rows read; skipped 2 bad rows (first: ")
    assert "2 without a demonstration (first: mute)" in note
    (line,) = [line for line in said if "past the context" in line]
    assert all(words in line for words in ("sft: demonstrations", "6 of them", "7 rows", "long: 95 tokens", "64"))


def test_a_stage_whose_demonstrations_all_are_too_long_says_so(tmp_path):
    with pytest.raises(DataError, match=r"'sft'.* 1 past the context"):
        run(shown(tmp_path, BAD[3:]), tmp_path / "run")


@pytest.mark.run
def test_texts_of_files_are_trained_on_whole(tmp_path):
    (tmp_path / "a.txt").write_text("1+2=3, " * 40)
    (tmp_path / "b.jsonl").write_text('{"text": "4+4=8"}\n{"text": ""}\n{"body": "7"}\n')
    long = {"text": ["a.txt", {"file": "b.jsonl", "on_bad_row": "skip"}], "epochs": 1, "batch_size": 4}
    config = pretrain(long, data={"evaluation": []})
    with open_run(config, tmp_path, tmp_path / "run", "auto", Progress()) as session:
        found = text_rows(session.run.data.renderer, 64, session.run.data.text["pretrain"])
        assert [note for note in session.run.data.notes if "b.jsonl" in note and "skipped 2 bad rows" in note]
        decoded = [session.run.data.renderer.decode(ids) for ids, _ in found]
        assert decoded[-1] == "4+4=8"
        whole = decoded[0] + "".join(session.run.data.renderer.decode(ids[1:]) for ids, _ in found[1:-1])
        assert whole == "1+2=3, " * 40, "cut into pieces of the context, and nothing lost"
        assert all(spans == ((1, len(ids)),) and len(ids) <= 64 for ids, spans in found)
    run(config, tmp_path / "run")
    assert len(rows(tmp_path / "run", "step")) == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (["none.txt"], "none.txt"),
        (["empty.txt"], "empty.txt"),
        (["rows.jsonl"], "rows.jsonl line 1.*'text'"),
        ([{"file": "rows.jsonl", "on_bad_row": "skip"}], "rows.jsonl"),
    ],
)
def test_files_without_text_are_refused(tmp_path, text, words):
    (tmp_path / "empty.txt").write_text(" \n")
    (tmp_path / "rows.jsonl").write_text('{"words": "1"}\n')
    with pytest.raises(DataError, match=words):
        prepare_run(pretrain({"text": text, "steps": 1}), tmp_path, tmp_path / "run")


@pytest.mark.parametrize("length", [2, 3, 4, 5, 6, 7, 8, 20])
def test_pieces_predict_every_token_once(length):
    found = pieces(range(length), 4)
    predicted = [t for piece in found for t in piece[1:]]
    assert predicted == list(range(1, length))
    assert all(2 <= len(piece) <= 4 for piece in found)
    assert pieces(range(length), None) == [tuple(range(length))]

"""`verizero try`: the prompt as it is sent, each answer with what was read of it, and counts."""

from dataclasses import replace

import pytest

from tests.stages.tiny import tiny
from verizero.pipeline.cli import main
from verizero.pipeline.commands.try_out import answer_lines, graded_as, group_text, summary, try_out
from verizero.pipeline.data.prompts import spread
from verizero.pipeline.data.tokenizer import character_tokenizer
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.report.progress import Progress
from verizero.pipeline.types import Episode, Group, Message, Prompt, Rollout, ScoredRollout, Turn, Verdict

TOKENIZER = character_tokenizer()
PROMPT = Prompt("p", "1+1=", "math", "2")


def ids(text):
    return tuple(TOKENIZER.encode(text))


def member(verdict, reward=None, finish="stop"):
    rollout = Rollout("p", 0, ids("1+1="), (*ids("2"), TOKENIZER.eos_token_id), (0.0, 0.0), "2", finish, 0)
    return ScoredRollout(rollout, verdict, reward)


@pytest.mark.run
def test_prompts_are_shown_as_sent_with_graded_answers_and_nothing_stays(tmp_path):
    config = tiny({"stages": ["rl"], "sft": None})
    texts = list(try_out(config, tmp_path, 3, 2, Progress()))
    assert len(texts) == 4
    for i, text in enumerate(texts[:3], 1):
        assert text.startswith(f"\n== prompt {i} of 3: ")
        assert "-- sent, " in text
        assert text.count("-- answer ") == 2
        assert "verifier math, reference " in text
    assert texts[3].startswith("\n6 answers to 3 prompts: ")
    assert list(tmp_path.iterdir()) == []
    assert list(try_out(config, tmp_path, 3, 2, Progress())) == texts, "the same seed, the same answers"


def test_each_answer_says_what_was_read_and_why():
    right = member(Verdict("graded", 1.0, "equal", extracted="2"), 1.0)
    assert graded_as(right) == "reward 1 (graded: equal); extracted '2'; ended after 2 tokens"
    assert list(answer_lines(right, TOKENIZER)) == [f"   | 2{TOKENIZER.eos_token}"], "with the token that ended it"
    cut = member(Verdict("no_answer", reason="truncated"), 0.0, "length")
    assert graded_as(cut) == "reward 0 (no_answer: truncated); nothing extracted; cut off after 2 tokens"
    lost = member(Verdict("verifier_error", reason="v.py:3: ZeroDivisionError"))
    assert graded_as(lost).startswith("no reward (verifier_error: v.py:3: ZeroDivisionError)")


def test_an_episode_is_shown_turn_by_turn():
    def turn(observed, sampled):
        return Turn(ids(observed), ids(sampled), (0.0,) * len(sampled), "stop", 0)

    said = (Message("user", "?"), Message("assistant", "3"), Message("user", "low"), Message("assistant", "4"))
    whole = replace(
        member(Verdict("graded", 1.0)).rollout, episode=Episode(((turn("?", "3"), turn("low", "4")),), said)
    )
    shown = list(answer_lines(ScoredRollout(whole, Verdict("graded", 1.0), 1.0), TOKENIZER))
    assert shown == ["   | 3", "-- the environment", "   | low", "-- the model", "   | 4"]


def test_the_summary_counts_each_answer_once_and_names_what_to_change():
    verdicts = [Verdict("graded", 1.0), Verdict("graded", 0.2), Verdict("no_answer"), Verdict("sandbox_error")]
    group = Group(PROMPT, tuple(member(v) for v in verdicts))
    assert summary([group], 9) == (
        "4 answers to 1 prompt: 1 right, 1 not right, 1 without an answer that the verifier reads, "
        "1 on which a grader failed; 0 cut off at 9 tokens"
    )
    unread = Group(PROMPT, (member(Verdict("no_answer")),))
    assert "data.template.system" in summary([unread], 9)
    cut = Group(PROMPT, (member(Verdict("no_answer"), 0.0, "length"),))
    assert "raise rollout.max_response_tokens" in summary([cut], 9)
    assert "raise" not in summary([cut], 9, is_shortened=True)


def test_prompts_are_spread_over_all():
    prompts = [Prompt(str(i), "?", "math", "1") for i in range(10)]
    assert [p.id for p in spread(prompts, 4)] == ["0", "2", "5", "7"]
    assert spread(prompts[:2], 4) == prompts[:2]


def test_a_number_below_one_is_refused(tmp_path, capsys):
    with pytest.raises(ConfigError, match="--samples must be >= 1, got 0"):
        next(try_out(tiny({}), tmp_path, 1, 0, Progress()))
    assert main(["try", "demo", "-p", "0"]) == 1
    assert "--prompts must be >= 1, got 0" in capsys.readouterr().err


HOSTILE = "a\x1b[2J\r\x9b\x07\u202eb c\nd"


def test_what_a_model_writes_cannot_steer_the_terminal_or_look_like_our_lines():
    class Hostile:
        def decode(self, ids, **options):
            return HOSTILE + "\n-- answer 9: reward 1"

    failed = member(Verdict("verifier_error", reason=HOSTILE, extracted=HOSTILE))
    text = group_text(Group(replace(PROMPT, reference=HOSTILE, verifier=HOSTILE), (failed,)), Hostile())
    assert all(c.isprintable() or c == "\n" for c in text)
    assert "   | a\\x1b[2J\\r\\x9b\\x07\\u202eb c\n   | d\n   | -- answer 9: reward 1" in text
    assert [line for line in text.split("\n") if line.startswith("--")][1].startswith("-- answer 1: no reward")


def test_an_episode_whose_environment_did_not_start_is_shown_too():
    broken = replace(member(Verdict("graded")).rollout, episode=Episode((), (), "failed"))
    text = group_text(
        Group(PROMPT, (ScoredRollout(broken, Verdict("environment_error", reason="gone"), None),)), TOKENIZER
    )
    assert "-- answer 1: no reward (environment_error: gone)" in text


@pytest.mark.run
def test_answers_take_a_minute_at_most_and_say_so(tmp_path, monkeypatch):
    monkeypatch.setattr("verizero.pipeline.run.algorithm.seconds_per_token", lambda *_: 3.0)
    *_, last = try_out(tiny({"stages": ["rl"], "sft": None}), tmp_path, 2, 2, Progress())
    assert "cut off at 10 of the 30 tokens of the recipe" in last


@pytest.mark.run
def test_the_verifier_of_the_rl_stage_grades_also_where_sft_comes_first(tmp_path):
    (tmp_path / "own.py").write_text(
        "from verizero.verifiers.base import verifier\n\n@verifier\ndef half(attempt):\n    return 0.5\n"
    )
    config = tiny({"rl": {"reward": {"path": "own.py:half"}}})
    first, last = try_out(config, tmp_path, 1, 2, Progress())
    assert first.count("reward 0.5 (graded 0.5") == 2
    assert "stage sft trains this model before" in last

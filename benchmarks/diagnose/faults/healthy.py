"""Runs without a fault: the three recipes, and what people change in them on purpose.

A diagnosis has nothing to say of these. Many of them give numbers that would be signs of a fault in a run whose rewards
are 0 or 1: a high mean reward with few right answers, rewards above 1 or below 0, responses that grow or shrink.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from benchmarks.diagnose.fault import Data, Fault
from benchmarks.diagnose.faults.data import changed, first_rows
from benchmarks.diagnose.rows import demonstration, demonstrations_of, read, worked_out, write
from verizero.pipeline.seeds import stream

ROWS = ("train.jsonl", "evaluation.jsonl")


def graded(function: str) -> tuple[str, ...]:
    """Return the overrides by which a function of `graders/grading.py` grades all rows, also the held-out ones."""
    path = f"verifier: {{path: 'grading.py:{function}'}}"
    return (
        f"data.train=[{{file: train.jsonl, {path}}}]",
        f"data.evaluation=[{{file: evaluation.jsonl, {path}}}]",
    )


def parts(**weights: float) -> str:
    """Return the override that adds functions of `graders/grading.py` to the reward, by name and weight."""
    each = [f"{{verifier: {{path: 'grading.py:{name}'}}, weight: {weight:g}}}" for name, weight in weights.items()]
    return f"scoring.components=[{', '.join(each)}]"


def worked_out_in(share: float) -> Data:
    """Return what writes demonstrations of which this share is worked out, the others being guesses."""

    def apply(folder: Path, seed: int) -> None:
        draw = stream(seed, "diagnose", "healthy", str(share))
        write(folder / "demonstrations.jsonl", demonstrations_of(read(folder / "train.jsonl"), 6000, share, draw))

    return apply


def twice_worked_out(folder: Path, seed: int) -> None:
    """Write the scratchpads of the demonstrations twice, so that responses grow when RL finds that they pay."""
    draw = stream(seed, "diagnose", "healthy", "twice")
    rows = read(folder / "train.jsonl")
    shown = []
    for i in range(6000):
        task = rows[i % len(rows)]
        scratchpad, arrow, answer = worked_out(task).rpartition("=>")
        long = f"{scratchpad}{arrow}{scratchpad}{arrow}{answer}"
        text = long if draw.random() < 0.3 else demonstration(task, 0.0, draw)
        shown.append({**task, "id": f"{task['id']}#{i}", "demonstration": text})
    write(folder / "demonstrations.jsonl", shown)


def in_words(folder: Path, seed: int) -> None:
    """Write references as texts, and few demonstrations that are worked out: nobody can compare numbers with them."""
    worked_out_in(0.06)(folder, seed)
    for file in ROWS:
        write(folder / file, [{**r, "answer": f"{r['answer']} apples"} for r in read(folder / file)])


def fewer(train: int, held_out: int) -> Data:
    """Return what keeps the first rows of training and evaluation alone."""

    def apply(folder: Path, seed: int) -> None:
        for file, count in zip(ROWS, (train, held_out), strict=True):
            changed(file, first_rows(count))(folder, seed)

    return apply


without_fault = partial(Fault, cause="none", complaint="Nothing is wrong.", hurts=False)
"""Make a run in which nothing is planted."""

RECIPES = tuple(without_fault(name=n, healthy=n) for n in ("healthy", "healthy_two_domains", "healthy_ppo"))
KINDS = (
    without_fault(name="credit_for_digits", overrides=graded("digits")),
    without_fault(name="credit_for_closeness", overrides=graded("closeness")),
    without_fault(name="closeness_with_one_sample", overrides=(*graded("closeness"), "evaluation.k=1")),
    without_fault(
        name="close_and_seldom_right",
        overrides=(*graded("closeness"), "rl.optimizer.learning_rate=1e-4"),
        data=in_words,
        shares_sft=False,
    ),
    without_fault(
        name="digits_and_seldom_right",
        overrides=(*graded("digits"), "rl.optimizer.learning_rate=1e-4"),
        data=in_words,
        shares_sft=False,
    ),
    without_fault(name="small_bonus_for_short", overrides=(parts(short=0.1),)),
    without_fault(name="three_components", overrides=(parts(has_box=0.2, similar=0.1, short=0.1),)),
    without_fault(name="form_weighs_half", overrides=(parts(has_box=0.5),)),
    without_fault(name="right_is_worth_ten", overrides=(parts(right=9.0),)),
    without_fault(
        name="wrong_costs",
        overrides=("scoring.no_answer=-1", "scoring.truncated=-1", parts(wrong=-0.5)),
    ),
    without_fault(name="penalty_in_the_group", overrides=("rl.algorithm.group_length_penalty=0.1",)),
    without_fault(
        name="soft_penalty_at_the_limit",
        overrides=("rl.algorithm.overlong_buffer=0.2", "rl.algorithm.overlong_factor=1"),
    ),
    without_fault(name="hard_at_first", data=worked_out_in(0.06), shares_sft=False),
    without_fault(name="good_at_first", data=worked_out_in(0.75), shares_sft=False),
    without_fault(
        name="responses_grow",
        data=twice_worked_out,
        shares_sft=False,
        overrides=("rollout.max_response_tokens=32",),
    ),
    without_fault(name="two_hundred_prompts", data=fewer(200, 60), overrides=("evaluation.k=8",)),
    without_fault(name="two_steps_behind", overrides=("rollout.max_staleness=2", "rl.optimizer.learning_rate=1e-4")),
    without_fault(name="four_updates_a_batch", overrides=("rl.algorithm.num_minibatches=4",)),
    without_fault(name="lower_rate", overrides=("rl.optimizer.learning_rate=1e-4", "rl.steps_per_round=30")),
)
HEALTHY: tuple[Fault, ...] = (*RECIPES, *KINDS)

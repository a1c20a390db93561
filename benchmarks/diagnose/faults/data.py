"""Faults of the data: rows, demonstrations and prompts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from benchmarks.diagnose.fault import Data, Fault
from benchmarks.diagnose.rows import Row, demonstrations_of, operands, read, row, worked_out, write
from verizero.pipeline.seeds import stream


def changed(file: str, change: Callable[[list[Row], int], list[Row]]) -> Data:
    """Return what writes a file's rows again after a change; the change gets the rows and the seed."""

    def apply(folder: Path, seed: int) -> None:
        write(folder / file, change(read(folder / file), seed))

    return apply


def asked_in_words(folder: Path, seed: int) -> None:
    """Write the questions of training and evaluation in another form than the demonstrations have."""
    for file in ("train.jsonl", "evaluation.jsonl"):
        rows = [{**r, "question": f"what is {r['question'][:-1].replace('+', ' + ')}? "} for r in read(folder / file)]
        write(folder / file, rows)


def shifted(rows: list[Row], seed: int) -> list[Row]:
    """Give each row the answer of the next."""
    return [{**r, "answer": other["answer"]} for r, other in zip(rows, [*rows[1:], rows[0]], strict=True)]


def from_a_weak_model(rows: list[Row], seed: int) -> list[Row]:
    """Replace two thirds of the answers by guesses that are off by a little."""
    draw = stream(seed, "diagnose", "weak model")
    return [
        r if draw.random() < 1 / 3 else {**r, "answer": str(int(r["answer"]) + draw.choice((-10, -1, 1, 10)))}
        for r in rows
    ]


def products(rows: list[Row], seed: int) -> list[Row]:
    """Ask for products, which no demonstration shows."""
    out = []
    for r in rows:
        a, b = operands(r)
        out.append({**r, "id": f"{a}*{b}", "question": f"{a}*{b}=", "answer": str(a * b)})
    return out


def mostly_products(rows: list[Row], seed: int) -> list[Row]:
    """Ask for products in all but one row of 25."""
    return [products([r], seed)[0] if i % 25 else r for i, r in enumerate(rows)]


def of_three_digits(rows: list[Row], seed: int) -> list[Row]:
    """Ask for sums of three digits, which no demonstration shows."""
    draw = stream(seed, "diagnose", "three digits")
    pairs = draw.sample(range(900 * 900), len(rows))  # without repeats: two rows may not have one id
    return [row(100 + pair // 900, 100 + pair % 900) for pair in pairs]


def solved_doubles(folder: Path, seed: int) -> None:
    """Train on sums of a number with itself alone, all of which the demonstrations solve."""

    def is_double(task: Row) -> bool:
        a, b = operands(task)
        return a == b

    doubles = [row(a, a) for a in range(10, 60)]
    extra = [{**r, "id": f"{r['id']}/{i}", "demonstration": worked_out(r)} for i in range(30) for r in doubles]
    shown = [*(r for r in read(folder / "demonstrations.jsonl") if not is_double(r)), *extra]
    stream(seed, "diagnose", "doubles").shuffle(shown)
    write(folder / "demonstrations.jsonl", shown)
    write(folder / "train.jsonl", doubles)
    write(folder / "evaluation.jsonl", [r for r in read(folder / "evaluation.jsonl") if not is_double(r)])


def solved_before(folder: Path, seed: int) -> None:
    """Demonstrate nothing but worked-out answers, so that SFT leaves nothing to learn."""
    rows = demonstrations_of(read(folder / "train.jsonl"), 6000, 1.0, stream(seed, "diagnose", "solved"))
    write(folder / "demonstrations.jsonl", rows)


def first_rows(count: int) -> Callable[[list[Row], int], list[Row]]:
    """Return a change that keeps the first rows alone."""
    return lambda rows, seed: rows[:count]


def copied(rows: list[Row], seed: int) -> list[Row]:
    """Repeat twelve rows under other ids, as a mixture of files does that all hold the same tasks."""
    return [{**r, "id": f"{r['id']}/{i}"} for i in range(60) for r in rows[:12]]


def leaked(folder: Path, seed: int) -> None:
    """Put the held-out rows into training and into the demonstrations, as a scraped set would."""
    held_out = [{**r, "id": f"scraped/{r['id']}"} for r in read(folder / "evaluation.jsonl")]
    write(folder / "train.jsonl", [*held_out, *read(folder / "train.jsonl")[:300]])
    draw = stream(seed, "diagnose", "leak")
    shown = read(folder / "demonstrations.jsonl")
    extra = demonstrations_of(held_out, 1500, 1.0, draw)
    both = [*shown, *extra]
    draw.shuffle(both)
    write(folder / "demonstrations.jsonl", both)


FAULTS = (
    Fault(
        name="asked_in_words",
        cause="other_template",
        complaint="SFT's loss was low, and the first evaluation after it is near zero. RL has no reward to learn from.",
        data=asked_in_words,
    ),
    Fault(
        name="answers_of_the_next_row",
        cause="wrong_references",
        complaint="The samples look right to me, and nearly all are graded wrong. The file was joined from two tables.",
        data=changed("train.jsonl", shifted),
    ),
    Fault(
        name="answers_of_a_weak_model",
        cause="wrong_references",
        complaint="The reward stays low, and the policy hardly improves on held-out tasks. A model wrote the answers.",
        data=changed("train.jsonl", from_a_weak_model),
    ),
    Fault(
        name="products_instead_of_sums",
        cause="too_hard",
        complaint="The reward is zero from the first step to the last.",
        data=changed("train.jsonl", products),
    ),
    Fault(
        name="three_digits",
        cause="too_hard",
        complaint="I made the tasks harder, as the policy was good at the old ones. Now nothing is learned.",
        data=changed("train.jsonl", of_three_digits),
    ),
    Fault(
        name="hardly_any_sft",
        cause="too_hard",
        complaint="I wanted to start RL early, after a few steps of SFT. The reward does not leave zero.",
        overrides=("sft.steps=60",),
        shares_sft=False,
    ),
    Fault(
        name="solved_doubles",
        cause="too_easy",
        complaint="The reward is above 0.9 after a few steps, and the held-out tasks are far below.",
        data=solved_doubles,
        shares_sft=False,
        hurts=False,
    ),
    Fault(
        name="solved_before",
        cause="too_easy",
        complaint="RL ran for an hour and changed nothing.",
        data=solved_before,
        shares_sft=False,
        hurts=False,
    ),
    Fault(
        name="batches_skipped",
        cause="starvation",
        complaint="Most steps end without an update, and the run takes as long as ever.",
        overrides=("rl.select={keep: informative, max_refills: 0, fallback: skip}",),
        data=changed("train.jsonl", mostly_products),
    ),
    Fault(
        name="few_groups_left",
        cause="starvation",
        complaint="I turned dynamic sampling on. The reward curve is noise.",
        overrides=("rl.select={keep: informative, max_refills: 0}",),
        data=changed("train.jsonl", mostly_products),
    ),
    Fault(
        name="sixty_demonstrations",
        cause="sft_memorised",
        complaint="The loss of SFT is almost zero. The policy fails on every new task, and RL does not help.",
        data=changed("demonstrations.jsonl", first_rows(60)),
        shares_sft=False,
    ),
    Fault(
        name="scraped_evaluation",
        cause="evaluation_leak",
        complaint="Held-out accuracy is great, and users say that the model cannot do new tasks.",
        overrides=("data.overlap.on_overlap=report",),
        data=leaked,
        shares_sft=False,
        hurts=False,
    ),
    Fault(
        name="sixteen_prompts",
        cause="prompts_repeat",
        complaint="The reward goes up fast, the held-out tasks less so.",
        data=changed("train.jsonl", first_rows(16)),
        hurts=False,
    ),
    Fault(
        name="copied_prompts",
        cause="prompts_repeat",
        complaint="There are 720 rows in the file, and the policy seems to know all of them after a few steps.",
        data=changed("train.jsonl", copied),
    ),
    Fault(
        name="one_domain_drawn",
        cause="domain_imbalance",
        complaint="Sums improve, differences stay where they were, and both are in the data.",
        healthy="healthy_two_domains",
        overrides=("data.sampling.weights={sums: 0.98, differences: 0.02}",),
    ),
)

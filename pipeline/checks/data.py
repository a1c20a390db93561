"""Causes in the data: references, prompts and their template, demonstrations, and what is held out."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from shlex import quote
from statistics import fmean

from verizero.pipeline.checks.answers import MIN_OPEN, group_answers
from verizero.pipeline.checks.cause import also, cause
from verizero.pipeline.checks.finding import PASS, Evidence, Finding
from verizero.pipeline.checks.run_facts import INFO, METRICS, NUM_COMPARED, ROLLOUTS, RunFacts, Sample, by_group

OVERLAP_NOTE = re.compile(r"(\d+) of (\d+) evaluation prompts occur in training")
MAX_HALF_WIDTH, MOST_PROMPTS = 0.12, 60
"""Half of an interval of 95 %: gains of a run are often smaller. With more prompts it is small enough."""
MIN_UNANSWERED = 0.5
"""Share of responses without an answer that the verifier can read."""
TEMPLATE_FIELDS = ("name", "text", "system", "chat_arguments")
"""Fields of a template that decide the prompt."""
MAX_LOSS, MAX_PASS = 0.02, 0.3
"""Nats a token. Demonstrations that can be written in several ways leave a loss, unless they are memorised."""
MIN_AGREEING, MIN_GAP = 0.5, 0.15
MIN_GROUPS, MIN_REFUSED_GROUPS = 10, 0.1
MIN_MAJORITIES, MIN_REFUSED_MAJORITIES, MIN_REFUSED_TEXTS = 20, 0.75, 0.95
USUAL = 0.05
"""Share of the responses that an answer has which is a usual one."""
ONE_ANSWER, MIN_OTHERS = 0.98, 0.1
"""Share of the accepted responses with one answer, and share of all responses with others."""
MIN_UNSOLVED_MAJORITIES, MIN_SOLVED = 1 / 3, 0.25
"""Share of the clear majorities whose group has no right response, and share of right ones in groups that have any."""


@cause("take the held-out prompts out of the training data", needs="responses")
def evaluation_leak(run: RunFacts) -> Finding | None:
    """Prompts of the held-out evaluation are in the training data, so that pass@1 measures memory."""
    if run.setting("data", "on_overlap") == "drop":
        return None
    for note in run.notes:
        match = OVERLAP_NOTE.search(note)
        if match is None:
            continue
        shared, total = int(match[1]), int(match[2])
        if shared >= 0.02 * total:
            return Finding(
                min(1.0, 0.8 + shared / total),
                f"{shared} of {total} held-out prompts are in the training data.",
                (Evidence("run.json", 1, note[:160]),),
                "--set data.on_overlap=drop",
                level="problem" if shared > 0.2 * total else "warning",
            )
    return None


@cause("evaluate on more prompts", needs="evaluations")
def evaluation_too_small(run: RunFacts) -> Finding | None:
    """The held-out evaluation has so few prompts that its interval is wider than any likely gain."""
    for domain, after in [(d, e) for e in run.evaluations[-1:] for d, m in e.row.domains.items() if PASS in m]:
        measure, num_prompts = after.measure(domain), int(after.row.domains[domain].get("num_prompts", 0))
        half_width = (measure["high"] - measure["low"]) / 2
        if half_width > MAX_HALF_WIDTH and num_prompts < MOST_PROMPTS:
            return Finding(
                min(1.0, half_width / 0.25),
                f"{domain}: pass@1 {measure['value']:.2f} has an interval of {measure['low']:.2f} to "
                f"{measure['high']:.2f}, by {num_prompts} prompts.",
                (Evidence(METRICS, after.line, f"{after.row.label}: {num_prompts} prompts", PASS),),
                f"evaluate on at least {int(num_prompts * (half_width / 0.04) ** 2) + 1} prompts, or raise "
                "evaluation.k",
                level="warning",
            )
    return None


@cause("train on more prompts", needs="prompts/distinct")
def prompts_repeat(run: RunFacts) -> Finding | None:
    """The same few prompts come again and again, so that the policy learns them by heart.

    Either the data has few rows, or many rows with the same text. It costs nothing while held-out prompts are solved as
    often as those of training. Episodes may ask the same and differ in what their environment holds.
    """
    distinct, groups = run.series("prompts/distinct"), run.series("groups/sampled")
    if not distinct or not groups:
        return None
    rows = [s.row for s in run.samples if s.row.ending is None]
    ids, texts = ({getattr(row, key) for row in rows} for key in ("prompt_id", "prompt"))
    rows_per_text = len(ids) / len(texts) if len(ids) >= 20 else 1.0
    times = sum(p.value for p in groups) / max(1.0, distinct[-1].value)
    if max(times, times * rows_per_text) < 8:
        return None
    return Finding(
        min(1.0, times * rows_per_text / 20),
        f"Each prompt was sampled {times * rows_per_text:.0f} times on average; "
        f"{distinct[-1].value / rows_per_text:.0f} differ.",
        run.evidence("prompts/distinct", -1),
        "add rows to data.train; the gap between training reward and held-out pass@1 tells when it starts to cost",
        level="warning" if run.training_is_ahead(0.1) else "note",
    )


@cause("use more demonstrations, or fewer epochs of SFT", explains="too_hard learning_rate_low", needs="evaluations")
def sft_memorised(run: RunFacts) -> Finding | None:
    """SFT has learned its demonstrations by heart: its loss is near zero, and held-out prompts are not solved."""
    losses = [(line, row.step, row.metrics["loss"]) for line, row in run.imitation if "loss" in row.metrics]
    # Not the evaluation before the last stage: between the two, another stage may have made the policy worse.
    after = [e.row.domains for e in run.evaluations if run.imitation and e.row.stage == run.imitation[-1][1].stage][-1:]
    held_out = [domain["pass@1"]["value"] for domains in after for domain in domains.values() if "pass@1" in domain]
    if len(losses) < NUM_COMPARED or not held_out or min(held_out) > MAX_PASS:
        return None
    mean_loss = sum(loss for _, _, loss in losses[-NUM_COMPARED:]) / NUM_COMPARED
    if mean_loss > MAX_LOSS:
        return None
    line, step, loss = losses[-1]
    return Finding(
        min(1.0, 0.7 + MAX_PASS - min(held_out)),
        f"SFT ends with a loss of {mean_loss:.4f} nats a token, and pass@1 on held-out prompts is {min(held_out):.2f}.",
        (Evidence(METRICS, line, f"step {step}: loss={loss:.4g}", "loss"),),
        "use more demonstrations, of different tasks; fewer steps (sft.steps) help only where there are many",
    )


@cause(
    "use the chat template that the model was trained with",
    explains="too_hard false_negatives wrong_references learning_rate_low",
)
def other_template(run: RunFacts) -> Finding | None:
    """The prompt is written in another form than the policy was trained on, so it does not answer.

    Responses end by themselves and hold no final answer. A system prompt, a chat template of another model, or one more
    line break can do this: what the model saw in its training has to be written letter by letter.
    """
    missing = run.info.get("marks_missing")
    if not missing:
        return None
    return Finding(
        0.95,
        f"The chat template writes {', '.join(missing)}, which the tokenizer has no tokens for: it is that of another "
        "model.",
        (Evidence(INFO, 1, f"marks of the template: {', '.join(run.info.get('marks') or missing)}"),),
        "use the chat template that the model was trained with",
        frozenset({"end_token_missing", "length_cap"}),
    )


@also("other_template")
def other_than_the_models(run: RunFacts) -> Finding | None:
    """Find that the model's folder names another template, where no stage trains it on texts in the new one."""
    own, asked = run.info.get("model_template"), run.setting("data", "template")
    if not isinstance(own, dict) or not isinstance(asked, dict) or run.imitation:
        return None
    fields = [key for key in TEMPLATE_FIELDS if (own.get(key) or None) != (asked.get(key) or None)]
    if not fields:
        return None
    differences = ", ".join(f"{key} was {own.get(key)!r} and is {asked.get(key)!r}" for key in fields)
    change = ", ".join(f"{k}: {json.dumps(own[k])}" for k in TEMPLATE_FIELDS if own.get(k))
    return Finding(
        0.9,
        f"The model was trained with another template: {differences}.",
        (Evidence(INFO, 1, f"model_template: {own.get('name')!r}"),),
        f"--set {quote(f'data.template={{{change}}}')}",
    )


@also("other_template")
def other_ends_of_prompts(run: RunFacts) -> Finding | None:
    """Find that prompts end with more or fewer line breaks than those of the demonstrations did."""
    name = "prompt/spaces_at_end"
    demonstrations = [(line, row) for line, row in run.imitation if name in row.metrics][-NUM_COMPARED:]
    prompts = run.series(name)[:NUM_COMPARED]
    if not demonstrations or not prompts:
        return None
    in_sft, in_rl = fmean(r.metrics[name] for _, r in demonstrations), fmean(p.value for p in prompts)
    if abs(in_sft - in_rl) < 0.5:  # the mean over prompts of one template is a whole number
        return None
    line, row = demonstrations[-1]
    return Finding(
        0.8,
        f"Prompts of demonstrations ended with {in_sft:.0f} spaces or line breaks, and those of RL end with "
        f"{in_rl:.0f}.",
        (Evidence(METRICS, line, f"step {row.step}: {name}={in_sft:.3g}", name), *run.evidence(name, 0)),
        "make both prompts the same: data.template and the questions of data.train and data.demonstrations",
    )


@also("other_template")
def unread_answers(run: RunFacts) -> Finding | None:
    """Find that most of the first responses end by themselves and have no answer."""
    unanswered, cut = run.mean_at_start("verdict/no_answer"), run.mean_at_start("truncated")
    if unanswered is None or cut is None or unanswered < MIN_UNANSWERED or cut > 0.3 or run.has_learned:
        return None
    shown = [Evidence(ROLLOUTS, s.line, f"{s.row.prompt!r:.60} -> {s.row.response!r:.40}") for s in run.samples[:3]]
    return Finding(
        unanswered,
        f"{unanswered:.0%} of the first responses end without an answer that the verifier can read.",
        (*run.evidence("verdict/no_answer", 0), *shown),
        "compare a prompt of rollouts.jsonl with the model's training text: --set data.template.name=chat, or plain",
    )


@cause(
    "check some reference answers by hand, and which column they are read from",
    explains="too_hard learning_rate_low entropy_collapse",
    needs="responses",
)
def wrong_references(run: RunFacts) -> Finding | None:
    """The reference answers of training rows are wrong: samples agree with each other, and not with the reference.

    A policy that is right on held-out prompts and wrong on those it trains on, with most samples of a prompt giving the
    same answer, has probably read the prompt better than the data. The more samples agree, the surer that is.

    Without held-out prompts, groups show it that agree on an answer of which none is accepted, where other groups are
    solved often. If fewer than a third of the references are wrong, their prompts look like hard ones.
    """
    for domain, (before, _) in run.before_and_after().items():
        share_right, held_out = run.share_right(domain), before.measure(domain)
        if share_right is None or held_out["low"] - share_right < MIN_GAP or not run.has_comparable_prompts(domain):
            continue
        groups = [g for g in by_group(run.samples) if len(g) > 2 and g[0].row.domain == domain]
        refused_groups = [g for g in groups if _agrees(g)]
        if len(groups) < MIN_GROUPS or len(refused_groups) < MIN_REFUSED_GROUPS * len(groups):
            continue
        return Finding(
            min(1.0, 0.5 + held_out["low"] - share_right),
            f"{domain}: pass@1 was {held_out['value']:.2f} on held-out prompts, {share_right:.0%} of the first "
            f"training responses were right, and in {len(refused_groups)} of {len(groups)} groups most responses "
            "agree on an answer that is refused: references of the training rows are wrong.",
            run.evidence_of_right(domain, 0)
            + _refused([next(s for s in g if s.row.score == 0) for g in refused_groups[:3]]),
            "check some answers of data.train by hand, and the column that data.train[].mapping.answer names",
            frozenset({"false_negatives"}),
        )
    return None


@also("wrong_references")
def one_reference(run: RunFacts) -> Finding | None:
    """Find that all accepted responses, to whatever prompt, have one and the same answer, and others are usual too."""
    answers = group_answers(run)
    if answers is None or answers.accepted < MIN_MAJORITIES or len({s.row.prompt for s in run.samples}) < MIN_GROUPS:
        return None
    (value, times), *_ = answers.accepted_values.most_common(1)
    rest = answers.values.total() - answers.values[value]
    if times < ONE_ANSWER * answers.accepted_values.total() or rest < MIN_OTHERS * answers.values.total():
        return None
    accepted = next(s for s in run.samples if s.row.score >= 1)
    return Finding(
        0.9,
        f"Of {answers.accepted_values.total()} accepted responses, {times} answer {value!r}, whatever was asked: the "
        "references are all the same.",
        (Evidence(ROLLOUTS, accepted.line, f"{accepted.row.prompt!r:.40} accepted: {accepted.row.response!r:.40}"),),
        "check some reference answers by hand, and the column that they are read from",
        frozenset({"false_positives", "too_easy", "prompts_repeat"}),
    )


@also("wrong_references")
def choices_at_chance(run: RunFacts) -> Finding | None:
    """Find a choice among few answers that is right as often as a guess to the last, though responses agree on it."""
    answers = group_answers(run)
    if answers is None or answers.kind != "choice" or answers.clear_majorities < MIN_MAJORITIES:
        return None
    usual = sum(times >= USUAL * answers.values.total() for times in answers.values.values())
    last = [s.row.score for s in run.samples[-len(run.samples) // 3 :]]
    share, error = fmean(last), 0.5 / len(by_group(run.samples[-len(last) :])) ** 0.5
    if usual < 2 or run.has_learned or share > 1 / usual + error or answers.share_accepted > 1 / usual + error:
        return None
    return Finding(
        0.7,
        f"{usual} answers are usual, and {share:.0%} of the last responses are right, as guesses would be, although "
        f"most responses of {answers.clear_majorities} groups agree: the references do not belong to these prompts, or "
        "the model cannot do better than guess.",
        _refused(answers.refused_majorities) + run.evidence("reward/sampled"),
        "check some reference answers by hand, and the column that they are read from",
    )


@also("wrong_references")
def refused_majorities(run: RunFacts) -> Finding | None:
    """Find that most answers which groups agree on are refused, where no evaluation tells more.

    Or that many groups agree on a refused answer and have no right response, while others are solved often. A model
    that errs agrees with itself less the harder the prompt is, and is right now and then where it agrees. A wrong
    reference is met by nobody, however well the prompt is solved.
    """
    if run.before_and_after() or (answers := group_answers(run)) is None or run.is_cold:
        return None
    refused, is_number = answers.refused_majorities, answers.kind == "number"
    # A weak model prefers one of few texts, and is right by chance then.
    if not is_number and answers.distinct < MIN_OPEN and answers.accepted < MIN_GROUPS:
        return None
    least = MIN_REFUSED_MAJORITIES if is_number else MIN_REFUSED_TEXTS
    if answers.majorities >= MIN_MAJORITIES and len(refused) >= least * answers.majorities:
        share = len(refused) / answers.majorities
        return Finding(
            min(1.0, share),
            f"In {answers.majorities} groups half of the responses or more agree on an answer, and in {share:.0%} of "
            "these it is refused: references are probably wrong.",
            _refused(refused),
            "check some reference answers by hand, and the column that they are read from",
            frozenset({"false_negatives"}),
        )
    unsolved, clear = answers.unsolved_majorities, answers.clear_majorities
    if not is_number or clear < MIN_MAJORITIES or len(unsolved) < MIN_UNSOLVED_MAJORITIES * clear:
        return None
    if answers.solved is None or answers.solved < MIN_SOLVED:
        return None
    share = len(unsolved) / clear
    return Finding(
        min(1.0, 0.4 + share),
        f"In {clear} groups most responses agree on an answer. In {share:.0%} of these nobody is right, and where "
        f"anybody is, {answers.solved:.0%} are: references are probably wrong for a part of the rows, or a part of the "
        "prompts asks what the model always gets wrong.",
        _refused(unsolved),
        "check the reference answers of these prompts by hand",
        level="warning",
    )


def _refused(samples: Sequence[Sample]) -> tuple[Evidence, ...]:
    return tuple(
        Evidence(ROLLOUTS, s.line, f"{s.row.prompt!r:.40} refused: {s.row.extracted!r:.40}") for s in samples[:3]
    )


def _agrees(group: list[Sample]) -> bool:
    """Return True if most of a group agree on an answer that is refused."""
    answers = Counter(s.row.extracted for s in group if s.row.extracted is not None)
    if not answers:
        return False
    answer, times = answers.most_common(1)[0]
    return times >= MIN_AGREEING * len(group) and all(s.row.score == 0 for s in group if s.row.extracted == answer)

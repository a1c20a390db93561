"""Say findings in the words of the tool whose run it is: its files, its names of numbers, its options."""

from __future__ import annotations

import shlex
from dataclasses import replace

from verizero.pipeline.diagnosis.finding import Evidence, Finding
from verizero.pipeline.diagnosis.logs.facts import Reading
from verizero.pipeline.diagnosis.run_facts import INFO, METRICS, ROLLOUTS

ANY_TOOL = {
    "advantages_vanish": "sample at temperature 1 with 8 or more responses to a prompt, and read those of one prompt",
    "clip_stops_learning": "use the clip range of your algorithm's publication: 0.2 for ratios of tokens",
    "constant_reward": "call the reward function by hand with a right and a wrong response: verizero audit --reward",
    "critic_not_learning": "raise the critic's learning rate to ten times the policy's, or leave the critic out",
    "domain_imbalance": "give each domain a share of the batch",
    "end_token_missing": "compare the tokenizer's eos_token with the end of a turn in the chat template",
    "engine_mismatch": "give engine and trainer one number type",
    "entropy_collapse": "lower the learning rate, or add a small entropy bonus",
    "evaluation_leak": "take the held-out prompts out of the training data",
    "evaluation_too_small": "evaluate on more prompts",
    "false_negatives": "compare refused responses with their references, and correct the reward function",
    "false_positives": "compare accepted responses with their references, and correct the reward function",
    "gradients_always_clipped": "raise the limit of the gradient's norm to 1",
    "infrastructure_zeros": "let the reward function raise or retry where its service fails, in place of returning 0",
    "kl_too_strong": "lower the coefficient of the KL term, or leave the term out",
    "learning_rate_high": "lower the learning rate by a factor of ten",
    "learning_rate_low": "raise the learning rate by a factor of ten, or shorten the warm-up",
    "length_cap": "double the length limit of responses",
    "length_drift": "take what pays for length out of the reward, or give it a hundredth of the weight",
    "mask_leaves_end": "look at the mask of the response: its last token, the end, has to train",
    "mask_trains_prompt": "look at the mask of the response: tokens of the prompt must not train",
    "other_template": "use the chat template that the model was trained with",
    "overlong_penalty": "lower the penalty for long responses",
    "policy_lag": "update the rollout engine's weights more often",
    "prompts_repeat": "train on more prompts",
    "ratios_explode": "update once on each batch, with a clip",
    "reference_moves_too_often": "update the reference rarely, or not at all",
    "reference_never_moves": "update the reference now and then, or lower the KL coefficient",
    "reward_scales": "bring all reward functions to one scale, or give each a weight",
    "sampling_differs": "sample with top-p 1, without top-k, at the temperature that the trainer computes with",
    "seed_noise": "train longer, or compare several seeds",
    "sft_memorised": "use more demonstrations, or fewer epochs of SFT",
    "stale_engine_weights": "look at how the rollout engine gets the trainer's weights, and whether that fails",
    "starvation": "choose prompts that are solved sometimes",
    "too_easy": "use harder prompts, and leave out those that are always solved",
    "too_hard": "use easier prompts first, demonstrations before RL, or more responses to a prompt",
    "wrong_references": "check some reference answers by hand, and which column they are read from",
}
"""Cause -> what to do, in words of no tool; a tool's own table goes before."""


def in_words_of(reading: Reading, findings: list[Finding]) -> list[Finding]:
    """Return the findings with the tool's files, names and options."""
    return [
        replace(f, evidence=tuple(_evidence(reading, e) for e in f.evidence), remedy=remedy(reading, f))
        for f in findings
    ]


def remedy(reading: Reading, finding: Finding) -> str:
    """Return the rule's change with the tool's options, or the text of the tool's table."""
    tool = reading.tool
    changes = _changes(finding.remedy)
    options = {option.field: (name, option) for name, option in tool.options.items()}
    if changes and all(field in options for field in changes):
        written = []
        for field, value in changes.items():
            name, option = options[field]
            written.append(tool.written.format(option=name, value=_scaled(value, option.scale)))
        return f"set {', '.join(written)} in {tool.where}"
    return tool.remedies.get(finding.cause) or ANY_TOOL[finding.cause]


def _changes(text: str) -> dict[str, str]:
    """Return field -> value of a remedy that is nothing but `--set field=value`; empty for any other."""
    try:
        words = shlex.split(text)
    except ValueError:
        return {}
    if len(words) % 2 or any(w != "--set" for w in words[::2]) or any("=" not in w for w in words[1::2]):
        return {}
    return dict(w.split("=", 1) for w in words[1::2])


def _scaled(value: str, scale: float) -> str:
    return value if scale == 1.0 else f"{float(value) / scale:g}"


def _evidence(reading: Reading, evidence: Evidence) -> Evidence:
    """Return evidence with the file and line of the tool's own log, and its name of the number."""
    file, line = evidence.file, evidence.line
    if evidence.file == METRICS:
        places = reading.metric_places[evidence.line - 1]
        file, line = places.get(evidence.metric) or next(iter(places.values()))
    elif evidence.file == ROLLOUTS:
        file, line = reading.response_places[evidence.line - 1]
    elif evidence.file == INFO:
        file, line = reading.logged.files[0], 1
    theirs = reading.tool.theirs(evidence.metric)
    text = evidence.text.replace(evidence.metric, theirs) if evidence.metric else evidence.text
    return Evidence(file, line, text, evidence.metric)

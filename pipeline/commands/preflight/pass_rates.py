"""A few responses of the model that the recipe starts from, graded: all right, all wrong, cut off, or unread."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from verizero.pipeline.commands.preflight.checked import RECIPE, Checked, evidence_of, not_tried, spread
from verizero.pipeline.commands.preflight.graders import failing, grader_of, is_cheap
from verizero.pipeline.commands.preflight.local_parts import LocalParts, is_local
from verizero.pipeline.data.render import Renderer
from verizero.pipeline.diagnosis import end_token_missing, length_cap, other_template, too_easy, too_hard
from verizero.pipeline.diagnosis.finding import Evidence, Finding, Level
from verizero.pipeline.errors import ConfigError, IsolationError
from verizero.pipeline.run.data import prompt_room
from verizero.pipeline.run.graders import usable_cores
from verizero.pipeline.scoring.score import Grader, Scorer
from verizero.pipeline.types import Prompt, Rollout, ScoredRollout, Verdict

NAME = "pass rates"
NUM_PROMPTS, SAMPLES = 16, 4
FEWER_PROMPTS = (4, 1)
"""Prompts that are asked where the time does not allow NUM_PROMPTS of them, the first of these that it allows."""
BUDGET_S = 20.0
NOT_MEASURED = "not_measured"
"""The cause of pass rates that the time did not allow. No rule of runs has it."""
FEWEST_TOKENS = 16
"""The shortest limit of responses that is worth sampling with."""
MOST_GIB = 4.0
"""Weights that are loaded: more take longer than all other checks together."""
WROTE_END, MOST_CUT = 0.5, 0.1
"""Share of responses with a token inside that ends turns; share of cut ones above which no rate is told."""
ENOUGH, ROOM = 0.1, 0.8
"""The limit is long enough if this share of the responses is right, each in this share of its tokens."""

ENDS = re.compile(r"end|eo[dmst]|^</s>$|stop", re.IGNORECASE)
"""Names of added tokens that end a text, a message or a turn."""


@dataclass(frozen=True)
class Sampled:
    """Graded responses of the start model."""

    prompts: dict[str, Prompt]
    scored: list[ScoredRollout]
    limit: int
    """The longest response in tokens: the recipe's, or less where the time allows no more."""
    is_few: bool = False
    """True if the time allowed so few prompts that most may be cut, wrong or right by chance."""

    @property
    def cut(self) -> list[ScoredRollout]:
        """Responses that reached the limit."""
        return [s for s in self.scored if s.rollout.was_cut]

    @property
    def graded(self) -> list[ScoredRollout]:
        """Responses on which the verifier did not fail."""
        return [s for s in self.scored if not s.verdict.is_left_out]


def look(recipe: LocalParts) -> Checked:
    """Sample some training prompts from the start model, where it is at hand and the time allows it."""
    reason = _untried(recipe)
    if reason is not None:
        return not_tried(NAME, reason)
    graders, prompts, reason = _gradable(recipe)
    if not prompts:
        return not_tried(NAME, reason)
    sampled = sample(recipe, prompts, graders)
    if isinstance(sampled, str):
        return replace(not_tried(NAME, sampled), findings=(_not_measured(recipe, sampled),))
    return Checked(NAME, True, _told(recipe, sampled), tuple(judge(recipe, sampled)))


def judge(recipe: LocalParts, sampled: Sampled) -> list[Finding]:
    """Return what the responses show, and whether a verifier failed on them."""
    findings = _judge(recipe, sampled)
    of_key: dict[str, list[tuple[str, Prompt, Verdict]]] = {}
    for s in sampled.scored:
        prompt = sampled.prompts[s.rollout.prompt_id]
        of_key.setdefault(prompt.verifier, []).append((recipe.train.places[prompt.id], prompt, s.verdict))
    for key, graded in of_key.items():
        failed = [(place, prompt, v) for place, prompt, v in graded if v.is_infrastructure]
        findings += failing(key, failed, len(graded), "sampled responses")
    return findings


def _judge(recipe: LocalParts, sampled: Sampled) -> list[Finding]:
    """Return what the responses show; the limits are those of the rules for runs."""
    is_whole = sampled.limit == recipe.config.rollout.max_response_tokens
    cut = len(sampled.cut) / len(sampled.scored)
    if (finding := _not_ending(recipe, sampled, cut if is_whole else 0.0)) is not None:
        return [finding]
    if sampled.is_few:
        return []
    if is_whole and cut >= length_cap.MIN_CUT:
        return [_capped(recipe, sampled, cut)]
    if cut > MOST_CUT or not sampled.graded:
        return []
    silent = [s for s in sampled.graded if s.verdict.status == "no_answer"]
    if len(silent) >= other_template.MIN_UNANSWERED * len(sampled.graded):
        sentence = f"{_share(silent, sampled)} of the sampled responses end without an answer that the verifier reads."
        remedy = "compare a prompt with the model's training text"
        if recipe.tokenizer.chat_template:
            other = "plain" if recipe.config.data.template.name == "chat" else "chat"
            remedy += f", and with that of --set data.template={other}"
        return [_finding(recipe, "other_template", sampled, silent, sentence, remedy)]
    num, num_prompts = len(sampled.graded), len(sampled.prompts)
    if all(s.verdict.score == 0 for s in sampled.graded):
        sentence = f"All {num} responses to {num_prompts} prompts are wrong, so there is nothing to learn from."
        remedy = "train on easier prompts first, by SFT before RL, or with larger groups (group_size)"
        return [_finding(recipe, "too_hard", sampled, sampled.graded, sentence, remedy)]
    if all(s.verdict.is_correct for s in sampled.graded):
        sentence = f"All {num} responses to {num_prompts} prompts are right: these prompts teach nothing any more."
        remedy = "take harder prompts; `verizero rate` tells the pass rate of each"
        return [_finding(recipe, "too_easy", sampled, sampled.graded, sentence, remedy)]
    return []


def sample(recipe: LocalParts, prompts: Sequence[Prompt], graders: dict[str, Grader]) -> Sampled | str:
    """Return graded responses to some of the prompts, or the reason for which the time does not allow it."""
    from verizero.pipeline.config.machine import for_machine
    from verizero.pipeline.models.load import eos_ids, load_model
    from verizero.pipeline.rollout.engine import Sampling
    from verizero.pipeline.rollout.generate import Generation, generate_rollouts
    from verizero.pipeline.rollout.torch_engine import TorchEngine
    from verizero.pipeline.run.build import device_of, first_model_path
    from verizero.pipeline.run.sampling import seconds_per_token

    config = for_machine(recipe.config, 1, device_of(recipe.config))
    how, tokenizer = config.rollout, recipe.tokenizer
    # Whole, and as it is before it is put in bits.
    path, device = first_model_path(config), device_of(config)
    model = load_model(path, config.model.dtype, device, config.model.revision)
    engine = TorchEngine(model, eos_ids(model, tokenizer), tokenizer.pad_token_id, how.max_rows)
    engine.publish(0)
    by = Generation(engine, Renderer(tokenizer, recipe.config.data.template), recipe.config.seed)
    limit, seconds, some = 0, 0.0, list(prompts)
    for num in (NUM_PROMPTS, *FEWER_PROMPTS):
        some = spread(prompts, num)
        seconds = seconds_per_token(by, some, SAMPLES, how.max_response_tokens)
        limit = min(how.max_response_tokens, int(BUDGET_S / max(seconds, 1e-6)))
        # Of fewer prompts cut responses still tell something; most prompts are worth asking for whole ones only.
        if limit == how.max_response_tokens or (num < NUM_PROMPTS and limit >= FEWEST_TOKENS):
            break
    else:
        return f"a token of {len(some) * SAMPLES} responses takes {seconds:.1f} s here{_load()}"
    sampling = Sampling(limit, how.temperature, how.top_p, how.top_k)
    rollouts: list[Rollout] = generate_rollouts(by, some, SAMPLES, sampling, "before")
    scorer = Scorer(recipe.config.scoring, graders)
    by_id = {p.id: p for p in some}
    try:
        scored, _ = scorer.score(by_id, rollouts)
    finally:
        scorer.close()
    return Sampled(by_id, scored, limit, is_few=len(some) < min(NUM_PROMPTS, len(prompts)))


def _load() -> str:
    """Return the machine's load as words in brackets where it has more to do than cores; else nothing."""
    load, cores = os.getloadavg()[0], usable_cores()
    return f" (the load is {load:.0f} on {cores} cores)" if load > cores else ""


def _not_measured(recipe: LocalParts, reason: str) -> Finding:
    shown = Evidence(RECIPE, 1, f"rollout.max_response_tokens: {recipe.config.rollout.max_response_tokens}")
    return Finding(
        NOT_MEASURED,
        "note",
        1.0,
        f"The pass rates were not measured: {reason}. So nobody looked whether the prompts are too hard or too easy.",
        (shown,),
        "repeat this when the machine has less to do, or take the time for `verizero try` or `verizero rate`",
    )


def _untried(recipe: LocalParts) -> str | None:
    """Return the reason for which nothing can be sampled; None if it can."""
    if recipe.is_made_here:
        return "the model is made in this run"
    if recipe.config.begins_with_texts:
        return f"stage {recipe.config.stages[0].name} trains the model before any stage samples from it"
    if recipe.tokenizer is None:
        return recipe.no_tokenizer
    if not is_local(recipe.config):
        return f"{recipe.config.model.path} is no folder of this machine; `verizero rate` samples from it"
    from verizero.pipeline.run.build import first_model_path

    folder = Path(first_model_path(recipe.config))
    gib = sum(f.stat().st_size for pattern in ("*.safetensors", "*.bin") for f in folder.glob(pattern)) / 2**30
    if gib > MOST_GIB:
        return f"the model has {gib:.0f} GiB of weights, which take too long to load; `verizero rate` has the time"
    if not recipe.train.prompts:
        return recipe.train.why_none
    return None if any(p.verifier for p in recipe.train.prompts) else "no row is graded"


def _gradable(recipe: LocalParts) -> tuple[dict[str, Grader], list[Prompt], str]:
    """Return graders by key, the prompts that they can grade here and that have room, and why others cannot be."""
    graders: dict[str, Grader] = {}
    reasons: dict[str, str] = {}
    room = prompt_room(recipe.config, recipe.context)
    renderer = Renderer(recipe.tokenizer, recipe.config.data.template)
    fitting: list[Prompt] = []
    for prompt in spread([p for p in recipe.train.prompts if p.verifier], 8 * NUM_PROMPTS):
        key = prompt.verifier
        if key not in graders and key not in reasons:
            try:
                if is_cheap(recipe, key, [prompt]):
                    graders[key] = grader_of(recipe, key, [prompt])
                else:
                    reasons[key] = f"{key} needs a model, a service or an environment"
            except (IsolationError, ConfigError) as exc:
                reasons[key] = f"{key}: {exc}"
        if prompt.environment is not None:
            reasons[key] = "prompts are played with an environment"
        elif key in graders and (room is None or len(renderer.prompt_ids(prompt)) <= room):
            fitting.append(prompt)
    return graders, fitting, next(iter(reasons.values()), "no prompt has room")


def _not_ending(recipe: LocalParts, sampled: Sampled, cut: float) -> Finding | None:
    """Find that nearly all responses are cut, or that they hold a token that ends turns and continue behind it."""
    marks = {i: str(t) for i, t in recipe.tokenizer.added_tokens_decoder.items() if ENDS.search(str(t))}
    wrote = [s for s in sampled.cut if marks.keys() & set(s.rollout.response_ids)]
    if len(wrote) >= WROTE_END * len(sampled.scored):
        (name, _), *_ = Counter(marks[i] for s in wrote for i in s.rollout.response_ids if i in marks).most_common(1)
        number = recipe.tokenizer.convert_tokens_to_ids(name)
        sentence = (
            f"{_share(wrote, sampled)} of the sampled responses write {name} and continue: generation does not stop at "
            "it."
        )
        remedy = f"add {number} to eos_token_id in the generation_config.json of the model's folder"
        return _finding(recipe, "end_token_missing", sampled, wrote, sentence, remedy)
    if cut < end_token_missing.MIN_CUT:
        return None
    sentence = f"{cut:.0%} of the sampled responses are cut at {sampled.limit} tokens: the end token is hardly sampled."
    remedy = "compare the model's training text with a prompt, or teach it to end by SFT first"
    if recipe.config.data.template.name != "chat" and recipe.tokenizer.chat_template:
        remedy = f"for a model that was trained to chat: --set data.template=chat, else {remedy}"
    return _finding(recipe, "end_token_missing", sampled, sampled.cut, sentence, remedy)


def _capped(recipe: LocalParts, sampled: Sampled, cut: float) -> Finding:
    limit, longest = 2 * sampled.limit, max(len(s.rollout.prompt_ids) for s in sampled.scored)
    longest_prompt = recipe.config.data.max_prompt_tokens or longest
    remedy = f"--set rollout.max_response_tokens={limit}"
    if recipe.context is not None and max(longest_prompt, longest) + limit > recipe.context:
        remedy = "use a model with a longer context, or ask for shorter answers"
    right = [len(s.rollout.response_ids) for s in sampled.graded if s.verdict.is_correct]
    sentence = (
        f"{cut:.0%} of the sampled responses are cut at {sampled.limit} tokens, which counts as wrong; {len(right)} of "
        f"{len(sampled.scored)} are right within them."
    )
    # A model that is right well within the limit learns to keep it, as pretrained models do that chatter at first.
    keeps = len(right) >= ENOUGH * len(sampled.scored) and max(right) <= ROOM * sampled.limit
    level: Level = "note" if keeps else "problem" if cut >= 2 * length_cap.MIN_CUT else "warning"
    return _finding(recipe, "length_cap", sampled, sampled.cut, sentence, remedy, level)


EXPLAINS = {
    "end_token_missing": end_token_missing.EXPLAINS,
    "length_cap": length_cap.EXPLAINS,
    "other_template": other_template.EXPLAINS,
    "too_hard": too_hard.EXPLAINS,
    "too_easy": too_easy.EXPLAINS,
}


def _finding(
    recipe: LocalParts,
    cause: str,
    sampled: Sampled,
    shown: Sequence[ScoredRollout],
    sentence: str,
    remedy: str,
    level: Level = "problem",
) -> Finding:
    evidence: list[Evidence] = []
    for s in {s.rollout.prompt_id: s for s in shown}.values():
        text = f"{s.rollout.text!r:.50}: {s.verdict.status} {s.verdict.reason:.30}"
        evidence.append(evidence_of(sampled.prompts[s.rollout.prompt_id], recipe.train.places, text))
    # A few dozen responses: the rate that they leave possible, at 95 %, is 1 - 0.05 ** (1 / n).
    confidence = 0.05 ** (1 / len(shown))
    return Finding(cause, level, confidence, sentence, tuple(evidence[:3]), remedy, EXPLAINS[cause])


def _share(some: Sequence[Any], sampled: Sampled) -> str:
    return f"{len(some) / len(sampled.scored):.0%}"


def _told(recipe: LocalParts, sampled: Sampled) -> str:
    right = sum(s.verdict.is_correct for s in sampled.graded)
    text = f"{right} of {len(sampled.graded)} responses to {len(sampled.prompts)} training prompts are right"
    failed = len(sampled.scored) - len(sampled.graded)
    text += f", the verifier failed on {failed}" if failed else ""
    if sampled.is_few:
        text += f" (fewer prompts than {NUM_PROMPTS}, as those would take longer than {BUDGET_S:.0f} s here{_load()})"
    limit = recipe.config.rollout.max_response_tokens
    if sampled.limit < limit:
        return (
            f"{text}; {len(sampled.cut)} were cut at the {sampled.limit} of {limit} tokens that {BUDGET_S:.0f} s allow"
        )
    return f"{text}, {len(sampled.cut)} cut at {limit} tokens"

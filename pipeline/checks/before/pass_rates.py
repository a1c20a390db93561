"""A few responses of the model that the recipe starts from, graded: all right, all wrong, cut off, or unread."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from verizero.pipeline.checks.before.parts import LocalParts, is_local
from verizero.pipeline.checks.before.references import failing, grader_of
from verizero.pipeline.checks.cause import CAUSES
from verizero.pipeline.checks.data import MIN_UNANSWERED
from verizero.pipeline.checks.finding import RECIPE, Checked, Evidence, Finding, Level
from verizero.pipeline.checks.length import MIN_CUT, NEARLY_ALL_CUT
from verizero.pipeline.data.prompts import spread
from verizero.pipeline.data.render import Renderer
from verizero.pipeline.errors import ConfigError, IsolationError
from verizero.pipeline.scoring.score import Grader, Scorer
from verizero.pipeline.types import Prompt, Rollout, ScoredRollout, Verdict

NAME = "pass rates"
NUM_PROMPTS, SAMPLES = 16, 4
BUDGET_S = 20.0
FEWEST_TOKENS = 16
"""The shortest limit of responses that is worth sampling with, where the recipe's is longer."""
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

    recipe: LocalParts
    prompts: dict[str, Prompt]
    scored: list[ScoredRollout]
    limit: int
    """The longest response in tokens: the recipe's, or less where the time allows no more."""

    @property
    def cut(self) -> list[ScoredRollout]:
        """Responses that reached the limit."""
        return [s for s in self.scored if s.rollout.was_cut]

    @property
    def graded(self) -> list[ScoredRollout]:
        """Responses on which the verifier did not fail."""
        return [s for s in self.scored if not s.verdict.is_left_out]

    def share(self, some: Sequence[ScoredRollout]) -> str:
        """Return a part of the responses in percent."""
        return f"{len(some) / len(self.scored):.0%}"

    def finding(
        self, cause: str, shown: Sequence[ScoredRollout], sentence: str, remedy: str, level: Level = "problem"
    ) -> Finding:
        """Return a cause that some responses show, by the last one to each prompt."""
        evidence = [
            self.recipe.evidence(
                self.prompts[name], f"{s.rollout.text!r:.50}: {s.verdict.status} {s.verdict.reason:.30}"
            )
            for name, s in {s.rollout.prompt_id: s for s in shown}.items()
        ]
        # A few dozen responses: the rate that they leave possible, at 95 %, is 1 - 0.05 ** (1 / n).
        confidence, explains = 0.05 ** (1 / len(shown)), CAUSES[cause].explains
        return Finding(confidence, sentence, tuple(evidence[:3]), remedy, explains, cause=cause, level=level)


def look(recipe: LocalParts) -> Checked:
    """Sample some training prompts from the start model, where it is at hand and the time allows it."""
    reason = _untried(recipe)
    if reason is not None:
        return Checked(NAME, False, reason)
    graders, prompts, reason = _gradable(recipe)
    if not prompts:
        return Checked(NAME, False, reason)
    sampled = sample(recipe, prompts, graders)
    if not isinstance(sampled, str):
        return Checked(NAME, True, _told(sampled), tuple(judge(sampled)))
    limit = recipe.config.rollout.max_response_tokens
    finding = Finding(
        1.0,
        f"The pass rates were not measured: {sampled}. So nobody looked whether the prompts are too hard or too easy.",
        (Evidence(RECIPE, 1, f"rollout.max_response_tokens: {limit}"),),
        "repeat this when the machine has less to do, or take the time for `verizero try` or `verizero rate`",
        cause="not_measured",
        level="note",
    )
    return Checked(NAME, False, sampled, (finding,))


def judge(sampled: Sampled) -> list[Finding]:
    """Return what the responses show, and whether a verifier failed on them."""
    findings = _judge(sampled)
    of_key: dict[str, list[tuple[Prompt, Verdict]]] = {}
    for s in sampled.scored:
        prompt = sampled.prompts[s.rollout.prompt_id]
        of_key.setdefault(prompt.verifier, []).append((prompt, s.verdict))
    for key, graded in of_key.items():
        prompts, verdicts = zip(*graded, strict=True)
        findings += failing(sampled.recipe, key, prompts, verdicts, "sampled responses")
    return findings


def _judge(sampled: Sampled) -> list[Finding]:
    """Return what the responses show; the limits are those of the rules for runs."""
    is_whole = sampled.limit == sampled.recipe.config.rollout.max_response_tokens
    cut = len(sampled.cut) / len(sampled.scored)
    if (finding := _not_ending(sampled, cut if is_whole else 0.0)) is not None:
        return [finding]
    if is_whole and cut >= MIN_CUT:
        return [_capped(sampled, cut)]
    if cut > MOST_CUT or not sampled.graded:
        return []
    silent = [s for s in sampled.graded if s.verdict.status == "no_answer"]
    if len(silent) >= MIN_UNANSWERED * len(sampled.graded):
        sentence = f"{sampled.share(silent)} of the sampled responses end without an answer that the verifier reads."
        remedy = "compare a prompt with the model's training text"
        if sampled.recipe.model.tokenizer.chat_template:
            other = "plain" if sampled.recipe.config.data.template.name == "chat" else "chat"
            remedy += f", and with that of --set data.template={other}"
        return [sampled.finding("other_template", silent, sentence, remedy)]
    num, num_prompts = len(sampled.graded), len(sampled.prompts)
    if all(s.verdict.score == 0 for s in sampled.graded):
        sentence = f"All {num} responses to {num_prompts} prompts are wrong, so there is nothing to learn from."
        remedy = "train on easier prompts first, by SFT before RL, or with larger groups (group_size)"
        return [sampled.finding("too_hard", sampled.graded, sentence, remedy)]
    if all(s.verdict.is_correct for s in sampled.graded):
        sentence = f"All {num} responses to {num_prompts} prompts are right: these prompts teach nothing any more."
        remedy = "take harder prompts; `verizero rate` tells the pass rate of each"
        return [sampled.finding("too_easy", sampled.graded, sentence, remedy)]
    return []


def sample(recipe: LocalParts, prompts: Sequence[Prompt], graders: dict[str, Grader]) -> Sampled | str:
    """Return graded responses to some of the prompts, or the reason for which the time does not allow it."""
    from verizero.pipeline.config.machine import for_machine
    from verizero.pipeline.models.load import eos_ids, load_model, stop_at
    from verizero.pipeline.rollout.engine import Sampling
    from verizero.pipeline.rollout.generate import Generation, generate_rollouts
    from verizero.pipeline.rollout.torch_engine import TorchEngine
    from verizero.pipeline.run.algorithm import seconds_per_token
    from verizero.pipeline.run.build import device_of, first_model_path

    config = for_machine(recipe.config, 1, device_of(recipe.config))
    how, tokenizer = config.rollout, recipe.model.tokenizer
    # Whole, and as it is before it is put in bits.
    path, device = first_model_path(config), device_of(config)
    renderer = Renderer(tokenizer, recipe.config.data.template)
    model = stop_at(load_model(path, config.model.dtype, device, config.model.revision), renderer.closing[1])
    engine = TorchEngine(model, eos_ids(model, tokenizer), tokenizer.pad_token_id, how.max_rows)
    engine.publish(0)
    by = Generation(engine, renderer, recipe.config.seed)
    some = spread(prompts, NUM_PROMPTS)
    seconds = seconds_per_token(by, some, SAMPLES, how.max_response_tokens)
    limit = min(how.max_response_tokens, int(BUDGET_S / max(seconds, 1e-6)))
    if limit < min(FEWEST_TOKENS, how.max_response_tokens):
        return f"a token of {len(some) * SAMPLES} responses takes {seconds:.1f} s here"
    sampling = Sampling(limit, how.temperature, how.top_p, how.top_k)
    rollouts: list[Rollout] = generate_rollouts(by, some, SAMPLES, sampling, "before")
    scorer = Scorer(recipe.config.scoring, graders)
    by_id = {p.id: p for p in some}
    try:
        scored, _ = scorer.score(by_id, rollouts)
    finally:
        scorer.close()
    return Sampled(recipe, by_id, scored, limit)


def _untried(recipe: LocalParts) -> str | None:
    """Return the reason for which nothing can be sampled; None if it can."""
    if recipe.is_made_here:
        return "the model is made in this run"
    if recipe.config.begins_with_texts:
        return f"stage {recipe.config.stages[0].name} trains the model before any stage samples from it"
    if recipe.model.tokenizer is None:
        return recipe.model.no_tokenizer
    if not is_local(recipe.config):
        return f"{recipe.config.model.path} is no folder of this machine; `verizero rate` samples from it"
    from verizero.pipeline.run.build import first_model_path

    folder = Path(first_model_path(recipe.config))
    gib = sum(f.stat().st_size for pattern in ("*.safetensors", "*.bin") for f in folder.glob(pattern)) / 2**30
    if gib > MOST_GIB:
        return f"the model has {gib:.0f} GiB of weights, which take too long to load; `verizero rate` has the time"
    if not recipe.train:
        return recipe.why_none
    return None if any(p.verifier for p in recipe.train) else "no row is graded"


def _gradable(recipe: LocalParts) -> tuple[dict[str, Grader], list[Prompt], str]:
    """Return graders by key, the prompts that they can grade here, and why others cannot be."""
    graders: dict[str, Grader] = {}
    reasons: dict[str, str] = {}
    fitting: list[Prompt] = []
    for prompt in spread([p for p in recipe.train if p.verifier], 8 * NUM_PROMPTS):
        key = prompt.verifier
        if prompt.environment is not None:
            reasons[key] = "prompts are played with an environment"
            continue
        if key not in graders and key not in reasons:
            try:
                grader = grader_of(recipe, prompt, only_cheap=True)
            except (IsolationError, ConfigError) as exc:
                reasons[key] = f"{key}: {exc}"
            else:
                if grader is None:
                    reasons[key] = f"{key} needs a model or a service"
                else:
                    graders[key] = grader
        if key in graders:
            fitting.append(prompt)
    return graders, fitting, next(iter(reasons.values()), "no row is graded")


def _not_ending(sampled: Sampled, cut: float) -> Finding | None:
    """Find that nearly all responses are cut, or that they hold a token that ends turns and continue behind it."""
    marks = {i: str(t) for i, t in sampled.recipe.model.tokenizer.added_tokens_decoder.items() if ENDS.search(str(t))}
    wrote = [s for s in sampled.cut if marks.keys() & set(s.rollout.response_ids)]
    if len(wrote) >= WROTE_END * len(sampled.scored):
        (name, _), *_ = Counter(marks[i] for s in wrote for i in s.rollout.response_ids if i in marks).most_common(1)
        number = sampled.recipe.model.tokenizer.convert_tokens_to_ids(name)
        sentence = (
            f"{sampled.share(wrote)} of the sampled responses write {name} and continue: generation does not stop at "
            "it."
        )
        remedy = f"add {number} to eos_token_id in the generation_config.json of the model's folder"
        return sampled.finding("end_token_missing", wrote, sentence, remedy)
    if cut < NEARLY_ALL_CUT:
        return None
    sentence = f"{cut:.0%} of the sampled responses are cut at {sampled.limit} tokens: the end token is hardly sampled."
    remedy = "compare the model's training text with a prompt, or teach it to end by SFT first"
    if sampled.recipe.config.data.template.name != "chat" and sampled.recipe.model.tokenizer.chat_template:
        remedy = f"for a model that was trained to chat: --set data.template=chat, else {remedy}"
    return sampled.finding("end_token_missing", sampled.cut, sentence, remedy)


def _capped(sampled: Sampled, cut: float) -> Finding:
    limit, longest = 2 * sampled.limit, max(len(s.rollout.prompt_ids) for s in sampled.scored)
    longest_prompt = sampled.recipe.config.data.max_prompt_tokens or longest
    remedy = f"--set rollout.max_response_tokens={limit}"
    if sampled.recipe.model.context is not None and max(longest_prompt, longest) + limit > sampled.recipe.model.context:
        remedy = "use a model with a longer context, or ask for shorter answers"
    right = [len(s.rollout.response_ids) for s in sampled.graded if s.verdict.is_correct]
    sentence = (
        f"{cut:.0%} of the sampled responses are cut at {sampled.limit} tokens, which counts as wrong; {len(right)} of "
        f"{len(sampled.scored)} are right within them."
    )
    # A model that is right well within the limit learns to keep it, as pretrained models do that chatter at first.
    keeps = len(right) >= ENOUGH * len(sampled.scored) and max(right) <= ROOM * sampled.limit
    level: Level = "note" if keeps else "problem" if cut >= 2 * MIN_CUT else "warning"
    return sampled.finding("length_cap", sampled.cut, sentence, remedy, level)


def _told(sampled: Sampled) -> str:
    right = sum(s.verdict.is_correct for s in sampled.graded)
    text = f"{right} of {len(sampled.graded)} responses to {len(sampled.prompts)} training prompts are right"
    failed = len(sampled.scored) - len(sampled.graded)
    text += f", the verifier failed on {failed}" if failed else ""
    limit = sampled.recipe.config.rollout.max_response_tokens
    if sampled.limit < limit:
        return (
            f"{text}; {len(sampled.cut)} were cut at the {sampled.limit} of {limit} tokens that {BUDGET_S:.0f} s allow"
        )
    return f"{text}, {len(sampled.cut)} cut at {limit} tokens"

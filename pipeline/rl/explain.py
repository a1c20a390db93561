"""Explain an algorithm's objective in words and formulas, from its parts. Loads no tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from verizero.pipeline.rl import catalog
from verizero.pipeline.rl.catalog import OptionValue
from verizero.pipeline.rl.parts import Kl, Part, Parts
from verizero.pipeline.rl.rules import UNUSUAL


@dataclass(frozen=True, slots=True)
class Setting:
    """Choices of a recipe outside its algorithm that the page shows."""

    reference: str | None = None
    """Schedule of the reference in words; None: the algorithm's; "none": no reference is held."""
    reward_models: Sequence[str] = ()
    """The models among the recipe's verifiers, in words."""
    top_p: float = 1.0
    top_k: int = 0
    experts: bool = True
    """The policy may be a mixture of experts."""
    observation_coef: float = 0.0
    """Weight of the log-likelihood of what environments answered."""


DEFAULT_SETTING = Setting()


def explain(
    parts: Parts,
    *,
    name: str = "",
    source: str = "",
    departures: Iterable[str] = (),
    setting: Setting = DEFAULT_SETTING,
) -> str:
    """Return a page of text: the objective with its numbers, the models held in memory, departures from the paper.

    `name`, `source` and `departures` come from the algorithm's file.
    """
    lines = [f"algorithm   {name}" + (f"  ({source})" if source else "")] if name else []
    lines += [
        f"maximise    J = {_objective(parts, setting.observation_coef)}",
        *_where(parts.surrogate),
        f"advantage   {_formula(parts.advantage)[0]}",
        *_where(parts.advantage),
        *([f"credit      {_formula(parts.credit)[0]}", *_where(parts.credit)] if parts.credits_turns else []),
        f"ratio       {parts.ratio_entry.formula}",
        *(f"{label:<12}{text}" for label, text in _details(parts, setting)),
        f"models      {'; '.join(models(parts, setting))}",
    ]
    differs = [*departures, *(f"asked for: {UNUSUAL[key]}" for key in sorted(parts.allow))]
    lines += [f"departs     {text}" for text in differs] or ["departs     in nothing that is known"]
    return "\n".join(lines)


def models(parts: Parts, setting: Setting = DEFAULT_SETTING) -> list[str]:
    """Return the models that training holds in memory, each with its state, in words."""
    names = ["policy (trained)"]
    schedule = (
        setting.reference or {"frozen": "frozen", "every_round": "replaced by the policy every round"}[parts.reference]
    )
    if parts.needs_reference:
        names.append(f"reference ({schedule})")
    elif setting.reference != "none":
        names.append(f"reference ({schedule}; no term uses it, its KL is measured)")
    if parts.critic is not None:
        names.append(f"critic (trained, {'a head on the policy' if parts.critic.shared else 'a backbone of its own'})")
    return [*names, *(setting.reward_models or ["no reward model: rewards come from verifiers"])]


def _objective(parts: Parts, observation_coef: float) -> str:
    inner = _formula(parts.surrogate)[0]
    weights = "".join(f" {symbol}" for symbol in _weights(parts))
    terms = [f"({inner}){weights}" if weights else inner]
    if parts.kl.where == "loss":
        terms.append(f"- {parts.kl.coef:g} ({_estimate(parts.kl)})")
    length = "longest response" if parts.norm_length is None else str(parts.norm_length)
    text = f"{catalog.AGGREGATES[parts.aggregate].format(norm_length=length)} [ {' '.join(terms)} ]"
    if parts.terms.entropy_coef or parts.terms.entropy_target is not None:
        text += f" + {parts.terms.entropy_coef:g} mean token entropy"
    if parts.terms.ptx_coef:
        text += f" + {parts.terms.ptx_coef:g} mean log pi(SFT text)"
    if parts.terms.nll_coef:
        text += f" + {parts.terms.nll_coef:g} mean log pi(right responses)"
    if observation_coef:
        text += f" + {observation_coef:g} mean log pi(observations)"
    return text


def _estimate(kl: Kl) -> str:
    form = catalog.KL_FORMS[kl.form]
    return form if kl.cap is None else f"min({form}, {kl.cap:g})"


def _weights(parts: Parts) -> Iterator[str]:
    if parts.mismatch.level != "none":
        yield "w"
    if parts.masks.off_policy_delta is not None:
        yield "M"
    if parts.masks.high_entropy_share is not None:
        yield "H"


def _details(parts: Parts, setting: Setting) -> Iterator[tuple[str, str]]:
    kl, mismatch, masks, shaping, terms = parts.kl, parts.mismatch, parts.masks, parts.shaping, parts.terms
    if kl.where == "reward":
        yield "reward", f"r_t = [t = last] R - {kl.coef:g} ({_estimate(kl)}), d = log pi_ref - log pi_old"
    if kl.where == "loss":
        yield "kl", "d = log pi_ref - log pi"
    if kl.target is not None:
        yield "kl", f"the coefficient adapts to KL {kl.target:g} over {kl.horizon:g} responses"
    if mismatch.level != "none":
        what = "clamped to" if mismatch.action == "truncate" else "0 outside"
        mean = ", divided by its mean over the batch" if mismatch.normalize else ""
        yield "w", f"pi_old / pi_gen per {mismatch.level}, {what} [{mismatch.floor:g}, {mismatch.cap:g}]{mean}"
    for name, low, high in mismatch.reject:
        yield "mask", f"0 where {catalog.REJECTIONS[name]}, of pi_old against pi_gen, is outside [{low:g}, {high:g}]"
    if mismatch.m2 is not None:
        yield "mask", f"worst tokens are 0 until the mean of log(pi_old / pi_gen)^2 is below {mismatch.m2:g}"
    if mismatch.stale == "decoupled":
        how = "" if mismatch.prox == "recompute" else f", {mismatch.prox} between pi_gen and pi"
        yield "stale", f"on rows of an older policy pi_old is the policy at batch start{how}"
    elif mismatch.needs_rollout_logprobs:
        weight = ", and w is 1" if mismatch.level != "none" else ""
        yield "stale", f"on rows of an older policy the ratio is to pi_gen{weight}; masks compare pi_old to pi_gen"
    if masks.off_policy_delta is not None:
        yield "M", f"0 where A < 0 and mean_t log(pi_gen / pi) > {masks.off_policy_delta:g}, else 1"
    if masks.high_entropy_share is not None:
        yield "H", f"1 on the {masks.high_entropy_share:g} of all tokens with the highest entropy, else 0"
    if masks.overlong_filter:
        counted = ", and count in means over responses" if masks.overlong_counts else ""
        yield "mask", f"truncated responses train nothing{counted}"
    if masks.keep_routing:
        idle = "" if setting.experts else "; the policy has no experts, so there are none to replay"
        yield "routing", f"experts used while sampling are replayed in training{idle}"
    yield from _cut(masks.keep_sampling, setting)
    if shaping.reward_clip is not None:
        yield "reward", f"clamped to [-{shaping.reward_clip:g}, {shaping.reward_clip:g}]"
    if shaping.overlong_buffer is not None:
        share = shaping.overlong_buffer
        yield "length", f"reward falls by up to {shaping.overlong_factor:g} over the last {share:g} of the length limit"
    if shaping.token_budget is not None:
        yield "length", f"reward - {shaping.token_budget_penalty:g} past {shaping.token_budget} tokens"
    if shaping.group_length_penalty:
        yield "length", f"reward - {shaping.group_length_penalty:g} (mean of the group) |y_i| / (longest of the group)"
    if terms.entropy_target is not None:
        change = f"{terms.entropy_step:g} a step, up to {terms.entropy_max:g}"
        yield "entropy", f"the coefficient adapts to {terms.entropy_target:g} nats by {change}"
    if parts.critic is not None:
        clip = (
            "" if parts.critic.clip is None else f", values clipped at {parts.critic.clip:g} from those at batch start"
        )
        yield (
            "critic",
            f"{parts.critic.loss_coef:g} * 0.5 (V - return)^2{clip}; alone for {parts.critic.warmup_steps} steps",
        )
    if parts.dynamic_sampling:
        yield "sampling", "groups whose rewards are all equal are replaced by new prompts"
    if parts.temperature_end is not None:
        yield "sampling", f"temperature falls linearly to {parts.temperature_end:g}"
    yield from _updates(parts)


def _updates(parts: Parts) -> Iterator[tuple[str, str]]:
    updates = parts.updates
    stop = "" if updates.max_kl is None else f", until k3(pi_old, pi) > {updates.max_kl:g}"
    yield "updates", f"{updates.num_epochs} passes of {updates.num_minibatches} optimiser steps on each batch{stop}"
    if not parts.ratio_entry.is_one and updates.num_epochs * updates.num_minibatches == 1:
        yield "updates", "so pi is pi_old on rows of the newest policy: r is 1 there, and nothing that bounds r acts"


def _cut(keep: bool, setting: Setting) -> Iterator[tuple[str, str]]:
    cuts = [f"the {setting.top_k} most likely tokens"] if setting.top_k else []
    cuts += [f"the fewest of probability {setting.top_p:g}"] if setting.top_p < 1 else []
    if cuts:
        yield "sampling", f"among {', then '.join(cuts)}"
    if keep:
        idle = "" if cuts else "; top_p 1 and top_k 0 cut none off"
        yield "sampling", f"tokens cut off while sampling are cut off in pi, pi_old and pi_ref{idle}"


def _formula(part: Part) -> list[str]:
    """Return the formula, its explanation if there is one, and the options that neither names."""
    shown = {key: _show(value) for key, value in part.options.items()}
    if part.entry is None:
        return [f"{part.label}({', '.join(f'{key}={value}' for key, value in shown.items())})"]
    if part.options.get("length_alpha") is not None:
        # The length-adaptive lambda replaces the number, as in `advantages.gae`.
        shown["lam"] = f"(1 - 1 / ({shown.pop('length_alpha')} |y_i|))"
    template = part.entry.formula
    silent = ", ".join(f"{key} {value}" for key, value in shown.items() if "{" + key + "}" not in template)
    # The first semicolon divides the formula from its explanation; see `catalog.Entry`.
    return [*template.format_map(shown).split("; ", 1), *([silent] if silent else [])]


def _where(part: Part) -> list[str]:
    return [f"{'  where':<12}{text}" for text in _formula(part)[1:]]


def _show(value: OptionValue) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(f'{v:g}' for v in value)})"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return "none" if value is None else str(value)
    return f"{value:g}"

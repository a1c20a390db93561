"""Explain an algorithm's objective in words and formulas, from its parts. Loads no tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from verizero.pipeline.rl import catalog
from verizero.pipeline.rl.catalog import OptionValue
from verizero.pipeline.rl.parts import Part, Parts, PolicyParams
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
        f"maximise    J = {_objective(parts)}",
        *_where(parts.surrogate),
        f"advantage   {_formula(parts.advantage)[0]}",
        *_where(parts.advantage),
        *([f"credit      {_formula(parts.credit)[0]}", *_where(parts.credit)] if parts.credits_turns else []),
        f"ratio       {parts.ratio_entry.formula}",
        *(f"{label:<12}{text}" for label, text in _details(parts, setting)),
        f"models      {'; '.join(models(parts, setting))}",
    ]
    differs = [*departures, *(f"asked for: {UNUSUAL[key]}" for key in sorted(parts.params.allow))]
    lines += [f"departs     {text}" for text in differs] or ["departs     in nothing that is known"]
    return "\n".join(lines)


def models(parts: Parts, setting: Setting = DEFAULT_SETTING) -> list[str]:
    """Return the models that training holds in memory, each with its state, in words."""
    names = ["policy (trained)"]
    schedule = (
        setting.reference
        or {"frozen": "frozen", "every_round": "replaced by the policy every round"}[parts.params.schedule]
    )
    if parts.needs_reference:
        names.append(f"reference ({schedule})")
    elif setting.reference != "none":
        names.append(f"reference ({schedule}; no term uses it, its KL is measured)")
    if parts.critic is not None:
        names.append(f"critic (trained, {'a head on the policy' if parts.critic.shared else 'a backbone of its own'})")
    return [*names, *(setting.reward_models or ["no reward model: rewards come from verifiers"])]


def _objective(parts: Parts) -> str:
    inner = _formula(parts.surrogate)[0]
    weights = "".join(f" {symbol}" for symbol in _weights(parts))
    terms = [f"({inner}){weights}" if weights else inner]
    if parts.params.kl_place == "loss":
        terms.append(f"- {parts.params.kl_coef:g} ({_estimate(parts.params)})")
    length = "longest response" if parts.norm_length is None else str(parts.norm_length)
    text = f"{catalog.AGGREGATES[parts.aggregate].format(norm_length=length)} [ {' '.join(terms)} ]"
    if parts.params.entropy_coef:
        text += f" + {parts.params.entropy_coef:g} mean token entropy"
    if parts.params.ptx_coef:
        text += f" + {parts.params.ptx_coef:g} mean log pi(SFT text)"
    return text


def _estimate(params: PolicyParams) -> str:
    form = catalog.KL_FORMS[params.kl_form]
    return form if params.kl_cap is None else f"min({form}, {params.kl_cap:g})"


def _weights(parts: Parts) -> Iterator[str]:
    if parts.params.mismatch_level != "none":
        yield "w"
    if parts.params.off_policy_delta is not None:
        yield "M"
    if parts.params.high_entropy_share is not None:
        yield "H"


def _details(parts: Parts, setting: Setting) -> Iterator[tuple[str, str]]:
    params = parts.params
    if params.kl_place == "reward":
        yield "reward", f"r_t = [t = last] R - {params.kl_coef:g} ({_estimate(params)}), d = log pi_ref - log pi_old"
    if params.kl_place == "loss":
        yield "kl", "d = log pi_ref - log pi"
    if params.mismatch_level != "none":
        what = "clamped to" if params.mismatch_action == "truncate" else "0 outside"
        bounds = f"[{params.mismatch_floor:g}, {params.mismatch_cap:g}]"
        yield "w", f"pi_old / pi_gen per {params.mismatch_level}, {what} {bounds}"
    for name, low, high in params.criteria:
        yield "mask", f"0 where {catalog.REJECTIONS[name]}, of pi_old against pi_gen, is outside [{low:g}, {high:g}]"
    if params.mismatch_stale == "decoupled":
        yield "stale", "on rows of an older policy pi_old is the policy at batch start"
    elif params.compares_engine:
        weight = ", and w is 1" if params.mismatch_level != "none" else ""
        yield "stale", f"on rows of an older policy the ratio is to pi_gen{weight}; masks compare pi_old to pi_gen"
    if params.off_policy_delta is not None:
        yield "M", f"0 where A < 0 and mean_t log(pi_gen / pi) > {params.off_policy_delta:g}, else 1"
    if params.high_entropy_share is not None:
        yield "H", f"1 on the {params.high_entropy_share:g} of all tokens with the highest entropy, else 0"
    if params.overlong_filter:
        yield "mask", "truncated responses train nothing"
    if params.keep_routing:
        idle = "" if setting.experts else "; the policy has no experts, so there are none to replay"
        yield "routing", f"experts used while sampling are replayed in training{idle}"
    yield from _cut(params.keep_sampling, setting)
    if params.reward_clip is not None:
        yield "reward", f"clamped to [-{params.reward_clip:g}, {params.reward_clip:g}]"
    if params.overlong_buffer is not None:
        share = params.overlong_buffer
        yield "length", f"reward falls by up to {params.overlong_factor:g} over the last {share:g} of the length limit"
    if (critic := parts.critic) is not None:
        clip = "" if critic.clip is None else f", values clipped at {critic.clip:g} from those at batch start"
        yield "critic", f"{critic.loss_coef:g} * 0.5 (V - return)^2{clip}; alone for {critic.warmup_steps} steps"
    if params.dynamic_sampling:
        yield "sampling", "groups whose rewards are all equal are replaced by new prompts"
    yield "updates", f"{params.num_epochs} passes of {params.num_minibatches} optimiser steps on each batch"
    if not parts.ratio_entry.is_one and params.num_updates == 1:
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

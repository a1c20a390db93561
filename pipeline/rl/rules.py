"""Rules for combining parts: a wrong combination is refused, an unusual one needs its name in `allow`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from verizero.pipeline.errors import ConfigError
from verizero.pipeline.near import did_you_mean
from verizero.pipeline.rl import catalog
from verizero.pipeline.rl.catalog import Entry
from verizero.pipeline.rl.parts import Part, Parts

UNUSUAL: dict[str, str] = {
    "wide_sequence_clip": "a sequence-level ratio with a token-sized clip never clips (GSPO uses 3e-4 / 4e-4)",
    "narrow_token_clip": "a token-level ratio with a sequence-sized clip stops almost every token (PPO uses 0.2)",
    "sequence_ratio_token_mean": "a sequence-level ratio under a mean over tokens weights responses by their length",
    "token_advantage_sequence_ratio": "a sequence-level ratio takes one advantage per response; see sequence_token",
    "reuse_without_ratio": "several updates on one batch without an importance ratio are biased",
    "squared_with_std": "the squared surrogate regresses reward differences; a divided advantage changes their unit",
    "product_ratio_clip": "the product over a whole response leaves any clip range after a few tokens",
    "k1_in_loss": "the gradient of k1 is the same for every reference, 0 on average, and holds nothing; use k2 or k3",
    "stale_without_ratio": "responses of an older policy, without an importance ratio, bias the gradient",
    "cut_sampling": "the ratio is then to a distribution that was not sampled, and never 1 on-policy",
}

CAPPED_FORMS = ("k3", "k3_unbiased", "k3_ratio")
"""Forms of the KL that a cap is for: the value and the gradient of the others grow no faster than d^2."""

BY_RECIPE = frozenset({"stale_without_ratio", "cut_sampling"})
"""Unusual combinations of an algorithm with other sections of a recipe; the rules of recipes ask for their names."""


def check(parts: Parts) -> None:
    """Raise ConfigError for the first rule that the parts break, with field, value and remedy."""
    for name in parts.params.allow:
        if name not in UNUSUAL:
            raise ConfigError(f"allow has no {name!r}; known: {', '.join(sorted(UNUSUAL))}")
    _check_part("advantage", parts.advantage, catalog.ADVANTAGES)
    _check_part("surrogate", parts.surrogate, catalog.SURROGATES)
    if isinstance(parts.ratio, str):
        _check_name("ratio", parts.ratio, catalog.RATIOS)
    _check_name("aggregate", parts.aggregate, catalog.AGGREGATES)
    # One message at a time: the first wrong choice is often the cause of the next message.
    for wrong in (_wrong_credit, _wrong_surrogate, _wrong_kl, _wrong_advantage, _wrong_mismatch):
        for message in wrong(parts):
            raise ConfigError(message)
    for name in _unusual(parts):
        if name not in parts.params.allow:
            raise ConfigError(f"{UNUSUAL[name]}; change it, or ask for it with allow: [{name}]")


def _check_name(field: str, value: str, names: Iterable[str]) -> None:
    known = tuple(names)
    if value not in known:
        hint = did_you_mean(str(value), known, f"known: {', '.join(known)}")
        raise ConfigError(f"{field} has no {value!r}; {hint}")


def _check_part(field: str, part: Part, table: Mapping[str, Entry]) -> None:
    if not isinstance(part.name, str):
        return
    _check_name(field, part.name, table)
    options = table[part.name].options
    for key in part.options:
        if key not in options:
            takes = ", ".join(options) or "no options"
            raise ConfigError(f"{field} {part.name!r} has no option {key!r}; it takes {takes}")
    for key, option in options.items():
        if key not in part.options:
            raise ConfigError(f"{field} {part.name!r} needs option {key!r} ({option})")
        option.check(f"{field}.{key}", part.options[key])


def _wrong_credit(parts: Parts) -> Iterator[str]:
    credit, advantage = parts.params.credit, parts.advantage
    surrogate, entry = parts.surrogate_entry, parts.credit_entry
    for key in catalog.TURNS:
        if key not in entry.options and f"credit_{key}" in parts.params.model_fields_set:
            value = getattr(parts.params, f"credit_{key}")
            yield f"credit_{key} is {value!r} but credit {credit!r} does not use it; leave it out"
    if not parts.credits_turns:
        return
    if surrogate is not None and surrogate.whole_response:
        yield (
            f"credit {credit!r} gives one advantage per turn, and surrogate {parts.surrogate.label!r} takes one per "
            "response; set credit: outcome, or use surrogate clip"
        )
    if entry.replaces is not None:
        if advantage.name != entry.replaces:
            yield (
                f"credit {credit!r} is {entry.replaces} over turns, and advantage {advantage.label!r} is another "
                f"estimate; use advantage {entry.replaces} (algorithm ppo), or credit: turns"
            )
        if advantage.options.get("length_alpha") is not None:
            yield f"length_alpha counts tokens, and the steps of credit {credit!r} are turns; set length_alpha to null"
        return
    per_token = advantage.per_token or (parts.advantage_entry is not None and parts.advantage_entry.per_token)
    if per_token:
        instead = " with a critic set credit: turn_gae," if parts.needs_critic else ""
        yield (
            f"credit {credit!r} adds to one advantage per response, and advantage {advantage.label!r} credits each "
            f"token already;{instead} use group_norm or another response-level advantage, or set credit: outcome"
        )
    if parts.leaves_out_outcome:
        changed = {
            "overlong_buffer": parts.params.overlong_buffer is not None,
            "reward_clip": parts.params.reward_clip is not None,
            "kl_in": parts.params.kl_place == "reward",
        }
        for name in (name for name, is_set in changed.items() if is_set):
            yield (
                f"{name} changes the reward of the whole response, which credit {credit!r} with credit_outcome 0 "
                f"leaves out; set credit_outcome above 0, or drop {name}"
            )


def _wrong_surrogate(parts: Parts) -> Iterator[str]:
    entry, name = parts.surrogate_entry, parts.surrogate.label
    if entry is not None and not entry.takes(parts.ratio_entry):
        others = " or ".join(r.name for r in catalog.RATIOS.values() if entry.takes(r))
        yield f"surrogate {name!r} has no meaning with ratio {str(parts.ratio)!r}; use ratio {others}"
    if entry is not None and entry.whole_response and parts.token_advantage:
        yield (
            f"surrogate {name!r} takes one advantage per response, but advantage {parts.advantage.label!r} gives one "
            f"per token; use {'kl_credit: response' if 'kl_credit' in parts.advantage.options else 'group_norm'}, or "
            "another response-level advantage"
        )
    if entry is not None and entry.whole_response and parts.aggregate != "sequence_mean":
        yield f"surrogate {name!r} has one value per response, got aggregate {parts.aggregate!r}; use sequence_mean"
    if entry is not None and not entry.whole_response and parts.aggregate == "sequence_mean":
        yield f"aggregate 'sequence_mean' takes one value per response, but surrogate {name!r} gives one per token"
    options = parts.surrogate.options
    # Within the clip range such a bound would apply before the clip does.
    for key in ("dual", "delta"):
        limit, high = options.get(key), options.get("clip_high")
        if isinstance(limit, (int, float)) and isinstance(high, (int, float)) and limit <= 1 + high:
            yield f"surrogate.{key} must be > 1 + clip_high = {1 + high:g}, got {limit:g}"
    low, high = options.get("cov_low"), options.get("cov_high")
    if isinstance(low, (int, float)) and isinstance(high, (int, float)) and low > high:
        yield f"surrogate.cov_low must be <= cov_high = {high:g}, got {low:g}"
    if parts.norm_length is not None and parts.norm_length < 1:
        yield f"norm_length must be >= 1, got {parts.norm_length}"


def _wrong_kl(parts: Parts) -> Iterator[str]:
    params, place, form, coef = parts.params, parts.params.kl_place, parts.params.kl_form, parts.params.kl_coef
    if coef == 0 and params.kl_in != "none" and "kl_in" in params.model_fields_set:
        yield f"kl_in is {params.kl_in!r} but kl_coef is 0; set kl_coef above 0, or kl_in to none"
    if place == "none" and coef != 0:
        yield f"kl_coef is {coef:g} but kl enters nowhere, so no reference is held; set kl_in to loss or reward"
    if place == "reward" and form in ("k3_unbiased", "k3_ratio", "k1_plus", "k3_plus"):
        yield f"kl_form {form!r} corrects a gradient, and kl in the reward has none; use k1 or k3"
    if place == "loss" and form == "k3_ratio" and parts.ratio_entry.is_one:
        yield f"kl_form 'k3_ratio' takes the surrogate's ratio, which is {str(parts.ratio)!r}; use k3 or k3_unbiased"
    if params.kl_cap is not None and place == "none":
        yield f"kl_cap is {params.kl_cap:g} but kl enters nowhere; set kl_in, or kl_cap to null"
    if params.kl_cap is not None and form not in CAPPED_FORMS:
        forms = " and ".join(CAPPED_FORMS)
        yield f"kl_cap bounds {forms}, which grow as exp(d), and kl_form is {form!r}; set kl_cap to null"
    if params.schedule != "frozen" and place == "none":
        yield f"reference is {params.schedule!r} but no kl uses a reference; set kl_in, or reference to frozen"


def _wrong_advantage(parts: Parts) -> Iterator[str]:
    if parts.needs_critic and parts.critic is None:
        yield f"advantage {parts.advantage.label!r} needs a critic; give the critic's settings"
    if parts.critic is not None and not parts.needs_critic:
        yield f"a critic is held but advantage {parts.advantage.label!r} does not use it; use gae, or drop the critic"
    if parts.needs_no_negative:
        yield from _makes_negative(parts)
    entry = parts.advantage_entry
    if entry is None or "components" not in entry.needs:
        return
    sees = f"advantage {parts.advantage.label!r} sees reward components"
    if parts.params.kl_place == "reward":
        yield f"{sees}, which hold no kl; set kl_in to loss or none"
    if parts.params.overlong_buffer is not None or parts.params.reward_clip is not None:
        yield f"{sees}, which no shaping reaches; drop overlong_buffer and reward_clip, or make length a component"


def _makes_negative(parts: Parts) -> Iterator[str]:
    """Yield what makes rewards negative, for an advantage that divides by their mean."""
    if parts.params.overlong_buffer is not None:
        yield (
            f"overlong_buffer takes from rewards, and advantage {parts.advantage.label!r} divides by the mean of "
            "rewards of at least 0; set overlong_buffer to null, or use group_mean"
        )
    if parts.params.kl_place == "reward":
        yield (
            f"kl in the reward makes rewards negative, and advantage {parts.advantage.label!r} divides by their mean; "
            "set kl_in to loss or none"
        )


def _wrong_mismatch(parts: Parts) -> Iterator[str]:
    params = parts.params
    level, floor, cap = params.mismatch_level, params.mismatch_floor, params.mismatch_cap
    if level != "none" and not floor < cap:
        yield f"mismatch needs floor < cap, got floor {floor:g} and cap {cap:g}"
    for name, low, high in params.criteria:
        _check_name("mismatch_reject", name, catalog.REJECTIONS)
        if not low < high:
            yield f"mismatch_reject.{name} needs lowest < highest, got {low:g} and {high:g}"


def _unusual(parts: Parts) -> Iterator[str]:
    surrogate, advantage, options = parts.surrogate_entry, parts.advantage_entry, parts.surrogate.options
    clips = ("clip_low", "clip_high") if surrogate is not None and surrogate.checks_width else ()
    widths = [v for k in clips if isinstance(v := options.get(k), (int, float))]
    ratio = parts.ratio_entry
    # The mean of |y| log-ratios spreads far less than one of them, and their sum far more: no width fits all levels.
    if ratio.of == "mean" and widths and max(widths) > 0.05:
        yield "wide_sequence_clip"
    if ratio.of == "token" and widths and max(widths) < 0.01:
        yield "narrow_token_clip"
    if ratio.of == "sum" and widths:
        yield "product_ratio_clip"
    if ratio.of == "mean" and parts.aggregate == "token_mean":
        yield "sequence_ratio_token_mean"
    if ratio.per == "response" and parts.token_advantage:
        yield "token_advantage_sequence_ratio"
    if ratio.is_one and parts.params.num_updates > 1:
        yield "reuse_without_ratio"
    divided = advantage is not None and advantage.divides and parts.advantage.options.get("std") != "none"
    if parts.surrogate.name == "squared" and divided:
        yield "squared_with_std"
    if parts.params.kl_form == "k1" and parts.params.kl_place == "loss":
        yield "k1_in_loss"

"""The bytes of a base in bits on a rank, and what a plan counts of them."""

from __future__ import annotations

from typing import Any

from tests.checks.test_plan import recipe_of
from verizero.pipeline.checks.plan.memory import resident
from verizero.pipeline.checks.plan.shape import from_settings
from verizero.pipeline.models.lora import is_factor


def bytes_of_base(model: Any) -> int:
    of_rank = [getattr(p, "to_local", lambda p=p: p)() for n, p in model.named_parameters() if not is_factor(n)]
    return sum(p.nbytes for p in of_rank)


def bytes_of_weights(model: Any) -> int:
    """Those of the base, its scales, and the adapters, on this rank."""
    states = [p.quant_state for p in model.parameters() if hasattr(p, "quant_state")]
    of_states = sum(x.nbytes for state in states for x in (state.absmax, state.state2.absmax))
    return (
        of_states + bytes_of_base(model) + sum(p.to_local().nbytes for n, p in model.named_parameters() if is_factor(n))
    )


def planned(settings: Any) -> float:
    """What a plan counts of them on each of two GPUs."""
    model = {"quantize": "nf4", "dtype": "float32"}
    config = recipe_of("Qwen/Qwen3-8B", model=model, train={"backend": "fsdp", "lora": {"rank": 2, "alpha": 4}})
    return resident(config, from_settings(settings), 2)["weights"]

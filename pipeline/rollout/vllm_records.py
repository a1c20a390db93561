"""Sampling sets and experts that vLLM's second model runner records of a response, converted for training.

Written against the classes of vLLM 0.32; that runner needs Triton, so it was never run in our tests.
"""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Sequence
from typing import Any

import numpy

from verizero.pipeline.errors import ConfigError, EngineError
from verizero.pipeline.rollout.engine import Sampling
from verizero.pipeline.rollout.engine_model import Records
from verizero.pipeline.types import KeptTokens, Routing


def recording_arguments(records: Records) -> dict[str, Any]:
    """Return the arguments of vLLM's engine that turn the records on, by vLLM's names."""
    arguments: dict[str, Any] = {}
    if records.sampling:
        arguments["return_sampling_mask"] = True
    if records.routing:  # vLLM stores experts with the blocks of its prefix cache, and refuses to record without it
        arguments |= {"enable_return_routed_experts": True, "enable_prefix_caching": True}
    return arguments


def choose_runner(records: Records, why_not: str | None) -> None:
    """Choose the model runner that records. Raises: ConfigError if this build has none, with the reason `why_not`."""
    if not (records.sampling or records.routing):
        return
    if why_not is not None:
        field = "keep_sampling" if records.sampling else "keep_routing"
        raise ConfigError(
            f"rl.algorithm.{field} needs vLLM's second model runner, and {why_not}; set rollout.engine: torch, which "
            f"records it everywhere, or {field}: false"
        )
    os.environ.setdefault("VLLM_USE_V2_MODEL_RUNNER", "1")


def recordable_options(sampling: Sampling, vocabulary: int) -> dict[str, Any]:
    """Return the options with which sets are recorded: vLLM then needs temperature and top_k above 0."""
    if sampling.temperature == 0:  # greedy is a set of one token, whose log-prob is then 0
        return {"temperature": 1.0, "top_k": 1}
    return {"top_k": sampling.top_k or vocabulary}


def kept_tokens(sets: Sequence[Sequence[int]] | None, drawn: Sequence[int], sampling: Sampling) -> KeptTokens | None:
    """Return vLLM's sets, one per token drawn, as ours; None if `sampling` asks for none.

    Raises: EngineError if a token has no set or is outside its set, or if a set exceeds max_kept.
    """
    if not (sampling.is_cut and sampling.max_kept):
        return None
    if sets is None or len(sets) != len(drawn):
        num_sets = "none" if sets is None else str(len(sets))
        raise EngineError(
            f"vLLM returned {num_sets} of the sets of {len(drawn)} tokens; start it with return_sampling_mask"
        )
    for token, allowed in zip(drawn, sets, strict=True):
        if token not in allowed or len(allowed) > sampling.max_kept:
            raise EngineError(
                f"vLLM drew token {token} from a set of {len(allowed)} tokens that "
                + ("lacks it" if token not in allowed else f"exceeds rollout.max_kept={sampling.max_kept}")
            )
    # Training looks tokens up in sorted ids of little-endian int32, as the embedded engine writes them.
    ids = [numpy.sort(numpy.asarray(allowed, dtype="<i4")) for allowed in sets]
    return KeptTokens(tuple(map(len, sets)), b"".join(i.tobytes() for i in ids))


def routing(experts: Any, num_prompt: int, num_drawn: int, sampling: Sampling) -> Routing | None:
    """Return vLLM's experts [tokens, layers, top_k] as ours; None if `sampling` asks for none.

    Raises: EngineError unless there are experts of every token of prompt and response but the last.
    """
    if not sampling.keep_routing:
        return None
    num_computed = num_prompt + num_drawn - 1  # the last token drawn was never an input, so no expert computed it
    if experts is None or experts.ndim != 3 or len(experts) != num_computed:
        shape = "none" if experts is None else str(list(experts.shape))
        raise EngineError(
            f"vLLM returned experts of shape {shape} for a prompt of {num_prompt} and a response of {num_drawn} "
            f"tokens, which need {num_computed}; start it with enable_return_routed_experts"
        )
    _, layers, top_k = experts.shape
    return Routing(int(layers), int(top_k), numpy.ascontiguousarray(experts, dtype="<i2").tobytes())


def decode_array(text: str | None) -> Any:
    """Return the array of a `.npy` file in base64, as servers send it; None for None."""
    return None if text is None else numpy.load(io.BytesIO(base64.b64decode(text)), allow_pickle=False)

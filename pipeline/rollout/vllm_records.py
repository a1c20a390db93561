"""What vLLM's second model runner records of a response, and what it asks for in return.

Written against vLLM 0.32's interface and its classes; that runner needs Triton, so none of it was run here.
"""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy

from pipeline.errors import ConfigError, EngineError
from pipeline.rollout.engine import Sampling
from pipeline.types import KeptTokens, Routing


@dataclass(frozen=True, slots=True)
class Records:
    """What an engine is to record, for training to replay."""

    sampling: bool = False
    """The set of tokens that each was drawn from."""
    routing: bool = False
    """The experts that computed each token."""

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments of vLLM's engine for it, by vLLM's names."""
        asked: dict[str, Any] = {}
        if self.sampling:
            asked["return_sampling_mask"] = True
        if self.routing:  # kept with the blocks of the prefix cache, so vLLM asks for that too
            asked |= {"enable_return_routed_experts": True, "enable_prefix_caching": True}
        return asked


NOTHING = Records()


def prepare(records: Records, why_not: str | None) -> None:
    """Choose the model runner that records. Raises: ConfigError where this build of vLLM has none (`why_not`)."""
    if not (records.sampling or records.routing):
        return
    if why_not is not None:
        asked = "keep_sampling" if records.sampling else "keep_routing"
        raise ConfigError(
            f"rl.algorithm.{asked} needs what vLLM's second model runner records, and {why_not}; set rollout.engine: "
            f"torch, which records it everywhere, or {asked}: false"
        )
    os.environ.setdefault("VLLM_USE_V2_MODEL_RUNNER", "1")


def bounded(sampling: Sampling, vocabulary: int) -> dict[str, Any]:
    """Temperature and top_k of a response by an engine that records sets: vLLM wants both above 0 then.

    The likeliest token is the only one of a set of one; its log-prob is 0 then. A whole vocabulary is a set of all.
    """
    if sampling.temperature == 0:
        return {"temperature": 1.0, "top_k": 1}
    return {"top_k": sampling.top_k or vocabulary}


def kept_tokens(sets: Sequence[Sequence[int]] | None, drawn: Sequence[int], sampling: Sampling) -> KeptTokens | None:
    """Ours for vLLM's sets, one for each token drawn; None where none were asked for.

    Raises: EngineError where there is not one for each, a token is not of its own, or one is larger than asked.
    """
    if not (sampling.is_cut and sampling.max_kept):
        return None
    if sets is None or len(sets) != len(drawn):
        said = "none" if sets is None else str(len(sets))
        raise EngineError(
            f"vLLM returned {said} of the sets of {len(drawn)} tokens; start it with return_sampling_mask"
        )
    for token, some in zip(drawn, sets, strict=True):
        if token not in some or len(some) > sampling.max_kept:
            raise EngineError(
                f"vLLM drew token {token} from a set of {len(some)} tokens that "
                + ("lacks it" if token not in some else f"exceeds rollout.max_kept={sampling.max_kept}")
            )
    ids = [numpy.sort(numpy.asarray(some, dtype="<i4")) for some in sets]
    return KeptTokens(tuple(map(len, sets)), b"".join(one.tobytes() for one in ids))


def routing(experts: Any, num_prompt: int, num_drawn: int, sampling: Sampling) -> Routing | None:
    """Ours for vLLM's experts, an array [tokens, layers, top_k]; None where they were not asked for.

    Raises: EngineError where it is not of every token of prompt and response but the last.
    """
    if not sampling.keep_routing:
        return None
    wanted = num_prompt + num_drawn - 1
    if experts is None or experts.ndim != 3 or len(experts) != wanted:
        said = "none" if experts is None else str(list(experts.shape))
        raise EngineError(
            f"vLLM returned the experts {said} of a prompt of {num_prompt} and a response of {num_drawn} tokens, which "
            f"has {wanted}; start it with enable_return_routed_experts"
        )
    _, layers, top_k = experts.shape
    return Routing(int(layers), int(top_k), numpy.ascontiguousarray(experts, dtype="<i2").tobytes())


def unpacked(text: str | None) -> Any:
    """The array of a server's answer, which is a `.npy` file in base64; None for none."""
    return None if text is None else numpy.load(io.BytesIO(base64.b64decode(text)), allow_pickle=False)

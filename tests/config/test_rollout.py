"""The section `rollout`: GPUs of servers, transport of weights and rollouts in 8 bits, refused where they cannot be."""

from __future__ import annotations

from typing import Any

import pytest

from tests.stages.tiny import tiny
from verizero.pipeline.config.rollout import rank_gpus
from verizero.pipeline.config.sections import LaunchConfig, TrainConfig
from verizero.pipeline.errors import ConfigError

SERVERS = {"engine": "vllm_server"}
LOCAL = {"kind": "torchrun", "gpus_per_node": 6}
TWO = {"servers": 2, "devices": [[6], [7]]}
SHARED = {"devices": [[0]], "share_gpus": True}


def with_vllm(vllm: dict[str, Any], launch: dict[str, Any] | None = None, **more: Any) -> Any:
    changes = {"rollout": {**SERVERS, **more.pop("rollout", {}), "vllm": vllm}, "launch": launch or {}}
    return tiny({**changes, "train": {"device": "auto", **more.pop("train", {})}, **more})


def test_trainers_and_servers_have_gpus_of_their_own() -> None:
    config = with_vllm(TWO, LOCAL)
    assert config.rollout.vllm.devices == ((6,), (7,))
    assert rank_gpus(config.launch, config.train) == (0, 1, 2, 3, 4, 5)


@pytest.mark.parametrize(
    ("vllm", "launch", "named"),
    [
        ({**TWO, "devices": [[5], [6]]}, LOCAL, r"gpus_per_node=6 both use GPU 5.*share_gpus: true"),
        ({"devices": [[0]]}, {}, r"both use GPU 0"),
        ({**TWO, "servers": 3}, LOCAL, r"devices=\[\[6\], \[7\]\] is not one list for each of .*servers=3"),
        ({**TWO, "tensor_parallel": 2}, LOCAL, r"tensor_parallel=2 GPUs each"),
        ({"servers": 2, "devices": [[6], [6]]}, LOCAL, r"names a GPU twice"),
        ({"tensor_parallel": 2, "devices": [[6, 6]]}, LOCAL, r"names a GPU twice"),
        ({"devices": [[-1]]}, LOCAL, r"below 0"),
        ({"devices": [[6]], "urls": ["http://a:1"]}, LOCAL, r"has rollout\.vllm\.urls instead; drop devices"),
        ({"share_gpus": True}, {}, r"share_gpus=true without rollout\.vllm\.devices"),
    ],
)
def test_a_map_of_gpus_that_cannot_be_is_refused(vllm: dict[str, Any], launch: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        with_vllm(vllm, launch)


def test_engines_that_start_no_servers_have_no_map() -> None:
    with pytest.raises(ConfigError, match=r"rollout\.engine=torch starts none"):
        with_vllm({"devices": [[6]]}, rollout={"engine": "torch"})


def test_a_gpu_is_shared_where_the_recipe_says_so() -> None:
    assert with_vllm(SHARED).rollout.vllm.share_gpus
    assert with_vllm({"devices": [[0]]}, train={"device": "cpu"}).rollout.vllm.devices == ((0,),)
    assert rank_gpus(LaunchConfig(), TrainConfig(device="cuda:2")) == (2,)


@pytest.mark.parametrize(
    ("vllm", "launch", "train", "named"),
    [
        ({**TWO, "transfer": "nccl"}, LOCAL, {"device": "cpu"}, r"transfer=nccl moves weights between GPUs"),
        ({**SHARED, "transfer": "nccl"}, {}, {}, r"GPU 0 of rank 0, which sends.*transfer: gloo"),
    ],
)
def test_a_transport_that_cannot_work_is_refused(
    vllm: dict[str, Any], launch: dict[str, Any], train: dict[str, Any], named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        with_vllm(vllm, launch, train=train)


def test_transports_that_work_are_taken() -> None:
    for transfer in ("auto", "gloo", "nccl"):
        assert with_vllm({**TWO, "transfer": transfer}, LOCAL).rollout.vllm.transfer == transfer

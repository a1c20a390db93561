"""The GPU of a rank, torch's switches for it, and the widths of rows on it. No GPU is needed."""

import os
from typing import Any

import pytest
import torch

from tests.train.batches import (
    OPTIMIZER,
    backend_of,
    groups_of,
    head_of,
    parts_of,
    policy,
    settings_of,
)
from verizero.pipeline.config.sections import TrainConfig
from verizero.pipeline.errors import ConfigError, RunError
from verizero.pipeline.models import runs
from verizero.pipeline.models.runs import forward_width, padded_width
from verizero.pipeline.train.backend import Backend
from verizero.pipeline.train.collate import collate, micros_of
from verizero.pipeline.train.device import CUDNN_LAST, WORKSPACE, device_index, existing_device, fixed_order, switched
from verizero.pipeline.train.ranks import collectives, use_own_gpu
from verizero.pipeline.train.step import update


@pytest.mark.parametrize(
    ("environment", "size", "seen", "wanted"),
    [
        ({"LOCAL_RANK": "3"}, 8, 8, 3),
        ({"LOCAL_RANK": "3"}, 8, 1, 0),  # a task of Slurm or a pod that sees its own GPU alone
        ({"LOCAL_RANK": "3"}, 4, 2, 1),
        ({}, 1, 8, 0),
        ({}, 4, 1, 0),
    ],
)
def test_a_rank_takes_its_place_among_the_gpus_that_it_sees(environment, size, seen, wanted):
    assert device_index(size, seen, environment) == wanted


def test_ranks_that_would_share_a_gpu_are_refused(monkeypatch):
    with pytest.raises(RunError, match="WORLD_SIZE=2 and 8 GPUs are seen, but LOCAL_RANK is not set"):
        device_index(2, 8, {})
    with pytest.raises(
        RunError, match=r"train\.device=cuda:1 names one GPU and WORLD_SIZE=4.* Set train\.device: cuda"
    ):
        use_own_gpu(4, "cuda:1")


def test_the_libraries_are_told_the_same_gpu(monkeypatch):
    taken = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    monkeypatch.setenv("LOCAL_RANK", "5")
    use_own_gpu(8, "cuda")
    assert taken == [0]
    assert os.environ["LOCAL_RANK"] == "0"


@pytest.mark.parametrize(
    ("device", "wanted"), [("cpu", "gloo"), ("cuda", "cpu:gloo,cuda:nccl"), ("cuda:1", "cpu:gloo,cuda:nccl")]
)
def test_gradients_of_gpus_go_over_nccl_and_messages_over_gloo(device, wanted):
    assert collectives(device) == wanted


def switches():
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.utils.deterministic.fill_uninitialized_memory,
        torch.backends.cuda.cudnn_sdp_enabled(),
        torch.backends.cudnn.deterministic,
        os.environ.get(CUDNN_LAST),
        os.environ.get(WORKSPACE),
    )


@pytest.mark.parametrize(
    ("deterministic", "within"), [(True, (True, True, False, False, True, "1", ":4096:8")), (False, None)]
)
def test_switches_are_set_for_a_gpu_alone_and_restored(deterministic, within, monkeypatch):
    monkeypatch.delenv(CUDNN_LAST, raising=False)
    monkeypatch.delenv(WORKSPACE, raising=False)
    before, config = switches(), TrainConfig(deterministic=deterministic)
    with switched(config, "cpu"):
        assert switches() == before
    with switched(config, "cuda"):
        assert switches() == (within or (*before[:5], "1", None))
    assert switches() == before
    with pytest.raises(KeyError), switched(config, "cuda:0"):
        raise KeyError
    assert switches() == before


def test_a_choice_of_the_user_stays(monkeypatch):
    monkeypatch.setenv(CUDNN_LAST, "0")
    monkeypatch.setenv(WORKSPACE, ":16:8")
    with switched(TrainConfig(), "cuda"):
        assert switches()[-2:] == ("0", ":16:8")
    assert switches()[-2:] == ("0", ":16:8")


class TestBackward:
    def test_it_is_strict_where_a_gpus_kernels_are_deterministic(self):
        """Torch takes attention's repeatable backward only in strict mode; a forward pass stays lenient."""
        before = switches()
        with switched(TrainConfig(), "cuda"):
            lenient = switches()
            with fixed_order():
                assert switches()[:2] == (True, False)
            assert switches() == lenient
            with pytest.raises(RunError, match=r"train\.deterministic=true, .*histc .*=false"), fixed_order():
                raise RuntimeError("histc does not have a deterministic implementation")
            with pytest.raises(RuntimeError, match="out of memory"), fixed_order():
                raise RuntimeError("out of memory")
            assert switches() == lenient
        with fixed_order():
            assert switches() == before

    @pytest.mark.parametrize("name", ["grpo", "ppo"])
    def test_the_policy_and_its_critic_learn_within_it(self, name):
        parts, backend = parts_of(name), backend_of()
        if parts.critic is not None:
            backend.start_critic(parts.critic.shared, OPTIMIZER, 10)
        seen = []
        learners = [backend.model] if backend.critic is None else [backend.model, head_of(backend.critic)]
        for parameter in (next(m.parameters()) for m in learners):
            parameter.register_hook(lambda _: seen.append(torch.is_deterministic_algorithms_warn_only_enabled()))
        with switched(TrainConfig(), "cuda"):
            update(backend, parts, groups_of(), settings_of(parts))
        assert len(seen) >= len(learners)
        assert not any(seen)

    def test_each_forward_gives_a_thread_that_decodes_its_turn(self, monkeypatch):
        """`models/strictness.py` has the turns; within a backward pass there is none."""
        parts, turns = parts_of("grpo"), list[tuple[Any, ...]]()
        monkeypatch.setattr("verizero.pipeline.train.backend.give_way", lambda: turns.append(switches()[:2]))
        with switched(TrainConfig(), "cuda"):
            update(backend_of(), parts, groups_of(), settings_of(parts, 60))
        assert len(turns) > 3
        assert set(turns) == {(True, True)}

    def test_a_forward_that_is_computed_again_within_it_is_as_lenient_as_the_first(self):
        backend, parts = Backend(policy(), config=TrainConfig(gradient_checkpointing=True)), parts_of("grpo")
        backend.start(OPTIMIZER, 10)
        backend.refresh_reference()
        layer = backend.model.model.layers[0].mlp
        seen = []
        layer.register_forward_pre_hook(
            lambda *_: seen.append((torch._C._current_graph_task_id() >= 0, *switches()[1:2]))
        )
        with switched(TrainConfig(), "cuda"):
            lenient = switches()
            update(backend, parts, groups_of(), settings_of(parts))
            assert switches() == lenient
        assert set(seen) == {(False, True), (True, True)}, "before a backward pass and within it"


def test_few_widths_on_a_gpu_and_the_rows_own_on_the_cpu():
    found = {n: padded_width(n, "cuda") for n in range(1, 1000)}
    assert len(set(found.values())) == 17
    assert all(n <= w < n + 64 and w % 64 == 1 for n, w in found.items())
    assert [padded_width(n, "cpu") for n in range(5)] == list(range(5))
    assert [forward_width(n, "cuda") for n in (1, 64, 65)] == [64, 64, 128]


def test_micro_batches_of_wider_rows_hold_no_more_tokens_than_they_may(monkeypatch):
    """`test_cuts.py` has that they train alike."""
    monkeypatch.setattr(runs, "forward_width", lambda n, device: -(-n // 8) * 8)
    shapes = [tuple(m.input_ids.shape) for _, m, _ in micros_of(collate(groups_of(), 0), range(15), 60)]
    assert {w for _, w in shapes} == {9, 17}
    assert all(rows * w <= 60 or rows == 1 for rows, w in shapes)


@pytest.mark.parametrize(
    ("num", "asked", "said"),
    [
        (0, "cuda", r"train.device='cuda', but torch sees no GPU here; give auto or cpu"),
        (1, "cuda:1", r"train.device='cuda:1', but torch sees 1 GPU here, from cuda:0 on"),
    ],
)
def test_a_gpu_that_is_not_there_is_refused(num, asked, said, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: num > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: num)
    with pytest.raises(ConfigError, match=said):
        existing_device(asked, "train.device")
    assert existing_device("auto", "train.device") == ("cuda" if num else "cpu")
    assert existing_device(f"cuda:{num - 1}" if num else "cpu", "train.device") in ("cuda:0", "cpu")

"""torch's switch for deterministic kernels, with an update in one thread and an engine in another."""

import re
import threading
import time

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.models.families import tiny
from tests.processes import PATIENCE_S
from tests.rollout.stub_vllm import StubLlm, StubVllm
from verizero.pipeline.config.rollout import VllmConfig
from verizero.pipeline.models.decoder import decoder
from verizero.pipeline.models.strictness import deterministic, give_way, given_away, is_deterministic, turn
from verizero.pipeline.rollout import torch_engine
from verizero.pipeline.rollout.engine import Request, Sampling
from verizero.pipeline.rollout.engine_model import EngineModel
from verizero.pipeline.rollout.torch_engine import TorchEngine
from verizero.pipeline.rollout.vllm_engine import VllmEngine

OFF, WARNS, STRICT = (False, False), (True, True), (True, False)


def switch() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


@pytest.fixture
def on():
    """As in a run on a GPU."""
    before = switch()
    with deterministic():
        yield
    assert switch() == before
    assert not is_deterministic()


@pytest.mark.usefixtures("on")
def test_each_kind_of_work_has_its_setting_and_gives_back_the_last():
    assert switch() == WARNS
    with turn("ordered"):
        assert switch() == WARNS
        with turn("strict"):
            assert switch() == STRICT
            with turn("unswitched"):
                assert switch() == OFF
                assert is_deterministic()
            assert switch() == STRICT
        assert switch() == WARNS
    with pytest.raises(KeyError), turn("strict"):
        raise KeyError
    assert switch() == WARNS


@pytest.mark.usefixtures("on")
@pytest.mark.parametrize("mine", ["ordered", "strict", "unswitched"])
@pytest.mark.parametrize("theirs", ["ordered", "strict", "unswitched"])
def test_another_thread_waits_for_its_turn(mine, theirs):
    entered = threading.Event()

    def work():
        with turn(theirs):
            entered.set()

    thread = threading.Thread(target=work)
    with turn(mine):
        setting = switch()
        thread.start()
        assert not entered.wait(0.05)
        assert switch() == setting
        with given_away():
            assert entered.wait(PATIENCE_S)
        assert switch() == setting
    thread.join()


@pytest.mark.usefixtures("on")
def test_an_engine_that_never_pauses_takes_one_turn_at_a_time():
    """A lock of Python's lets the thread that gives it back take it again, several times."""
    num_steps, has_ended = 0, False

    def generate():
        nonlocal num_steps
        while not has_ended:
            with turn("unswitched"):
                time.sleep(0.001)
                num_steps += 1

    thread = threading.Thread(target=generate)
    thread.start()
    taken = []
    try:
        with turn("ordered"):
            while sum(taken) < 20:
                time.sleep(0.0005)  # the engine may not wait for its turn yet
                before = num_steps
                give_way()
                taken.append(num_steps - before)
    finally:
        has_ended = True
        thread.join()
    assert max(taken) == 1


@pytest.mark.usefixtures("on")
def test_a_thread_that_is_interrupted_while_it_waits_holds_up_no_other(monkeypatch):
    waits = threading.Event()

    def interrupted(self, predicate, timeout=None):
        waits.set()
        raise KeyboardInterrupt

    def work():
        with turn("unswitched"):
            pass

    def stopped():
        with pytest.raises(KeyboardInterrupt):
            work()

    thread = threading.Thread(target=work)
    with turn("strict"):
        with monkeypatch.context() as patch:
            patch.setattr(threading.Condition, "wait_for", interrupted)
            other = threading.Thread(target=stopped)
            other.start()
            other.join(PATIENCE_S)
            assert waits.is_set()
            assert not other.is_alive()
        thread.start()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()

    def update():  # loses its turn, and must end no other's
        with turn("ordered"), turn("strict"), monkeypatch.context() as patch:
            patch.setattr(threading.Condition, "wait_for", interrupted)
            give_way()

    with pytest.raises(KeyboardInterrupt):
        update()
    assert switch() == WARNS
    work()


@pytest.mark.usefixtures("on")
@pytest.mark.parametrize(
    ("kind", "within"), [("qwen2 tied", OFF), ("gpt2", WARNS), ("vllm", OFF)], ids=["fast", "slow", "vllm"]
)
def test_every_step_of_an_engine_has_its_setting(kind, within, monkeypatch):
    """The fast path and vLLM decode without the switch; transformers' own forward may need it."""
    seen = []

    def noting(owner, name):
        real = getattr(owner, name)

        def noted(*arguments):
            seen.append(switch())
            return real(*arguments)

        monkeypatch.setattr(owner, name, noted)

    if kind == "vllm":
        noting(StubVllm, "make_llm")
        engine = VllmEngine(EngineModel.of(tiny("qwen2 tied"), (5,)), VllmConfig(), 4, StubVllm())
        noting(StubLlm, "step")
    else:
        engine = TorchEngine(tiny(kind), (1,), 0, 4)
        noting(torch_engine._Decode, "_draw")
    engine.publish(1)
    engine.generate([Request((3, 4), (seed,)) for seed in range(12)], Sampling(20))
    engine.close()
    assert set(seen) == {within}
    assert switch() == WARNS


def _named_by_torch() -> set[str]:
    """The functions that torch's documentation says behave in another way with the switch."""
    names = re.findall(r":(?:func|class):`torch\.([\w.]+)`", torch.use_deterministic_algorithms.__doc__ or "")
    return {name.rpartition(".")[2].rstrip("_") for name in names}


class _Decoding(TorchDispatchMode):
    """Notes the operations, and checks that those which torch names have one result each time."""

    REPEATS = frozenset({"bmm", "gather", "index_select"})
    """Named by torch for sparse matrices, or for their gradients alone."""

    def __init__(self):
        super().__init__()
        self.named: set[str] = set()
        self.docs = _named_by_torch()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__.rstrip("_")
        if name in self.docs - self.REPEATS:
            self.named.add(name)
            check = getattr(self, f"_{name}", None)
            assert check is not None, f"{name} may differ each time on a GPU, and decode runs without torch's switch"
            check(*args)
        return func(*args, **(kwargs or {}))

    def _index_copy(self, _, dim, index, __):
        assert len(set(index.tolist())) == len(index), "two writes to one place: which is last?"

    def _scatter(self, _, dim, index, __):
        assert all(len(set(row)) == len(row) for row in index.tolist())

    def _cumsum(self, rows, dim, **_):
        assert not rows.is_floating_point() or rows.numel() > rows.shape[dim], "a single row is added up by many blocks"


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(12),
        Sampling(12, temperature=0),
        Sampling(12, top_p=0.9),
        Sampling(12, top_k=5, top_p=0.8, max_kept=4),
    ],
    ids=["plain", "greedy", "nucleus", "kept sets"],
)
@pytest.mark.parametrize("vocab", ["small", "blocks"])
@pytest.mark.parametrize("num_slots", [1, 4])
def test_what_decodes_without_the_switch_is_deterministic_by_itself(sampling, vocab, num_slots, monkeypatch):
    from verizero.pipeline.rollout import sampling as drawing

    monkeypatch.setattr(decoder, "habits_of", lambda device: decoder.ON_GPU)
    if vocab == "blocks":
        monkeypatch.setattr(drawing, "BLOCKS_FROM", 0)
        monkeypatch.setattr(drawing, "BLOCK", 4)
    engine = TorchEngine(tiny("qwen3 wide heads"), (1,), 0, num_slots)
    assert engine.is_fast
    assert not engine._decoder.needs_switch
    engine.publish(1)
    requests = [Request((3, 4, 5), (1, 2, 3)), Request((6,), (4,)), Request((7, 8), (5, 6))]
    with _Decoding() as noted:
        engine.generate(requests, sampling)
    assert {"index_copy"} <= noted.named <= {"index_copy", "cumsum", "scatter"}
    assert ("cumsum" in noted.named) == (sampling.temperature > 0)

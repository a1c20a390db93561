"""The fast decode path against the model's own forward, row by row; its products against torch's own."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from tests.models.families import FAST, SLOW, VOCAB, build, logits_after, scatter, tiny
from verizero.pipeline.models.decoder.cache import Room, room_of
from verizero.pipeline.models.decoder.decoder import ON_CPU, ON_GPU, Decoder, Habits, check_parity, habits_of
from verizero.pipeline.models.decoder.weights import packed, product, unsupported
from verizero.pipeline.rollout.hf_decoder import HfDecoder

PROMPTS = [[3, 4, 5, 6, 7], [8], [9, 10, 11], [12, 3, 12, 3, 12]]
REPEAT = [2, 1, 3, 1]
GROUPS = [3, 3, 1, 2]
"""Rows of each prompt: so many that a GPU shares prompts."""
TOLERANCE = 2e-4


def start(decoder: Any, prompts: list[list[int]], repeat: list[int], room: int) -> tuple[torch.Tensor, Any]:
    cache = decoder.open([len(p) for p in prompts], repeat, sum(repeat), room)
    logits = decoder.admit(cache, prompts, repeat, range(sum(repeat)))
    cache.resize(sum(repeat))
    return logits, cache


def keep_rows(cache: Any, keep: list[int]) -> None:
    """Leave those rows alone, in that order."""
    n = len(keep)
    gone = [row for row in range(cache.rows) if row not in keep]
    cache.leave(gone)
    order = list(range(cache.rows))
    holes = [row for row in gone if row < n]
    moved = [row for row in keep if row >= n]
    cache.move(moved, holes)
    for a, b in zip(moved, holes, strict=True):
        order[b] = a
    assert order[:n] == keep
    cache.resize(n)


def expect(model: Any, rows: list[list[int]], logits: torch.Tensor) -> None:
    wanted = logits_after(model, rows)
    assert wanted.std() > 0.3  # a flat model would agree with anything
    assert torch.allclose(logits, wanted, atol=TOLERANCE, rtol=TOLERANCE), (logits - wanted).abs().max()


SMALL = Habits(prefill_tokens=9, align=4)


@pytest.mark.parametrize(
    ("name", "habits", "repeat"),
    [
        *((name, ON_CPU, REPEAT) for name in (*FAST, *SLOW)),
        *((name, habits, GROUPS) for name in FAST for habits in (ON_GPU, SMALL)),
        ("llama", ON_GPU, REPEAT),
        ("llama", ON_CPU, GROUPS),
    ],
)
def test_logits_are_those_of_the_model_for_rows_that_come_and_go(name, habits, repeat):
    model = tiny(name)
    decoder = Decoder(model, habits) if name in FAST else HfDecoder(model)
    rows = [list(p) for p, n in zip(PROMPTS, repeat, strict=True) for _ in range(n)]
    logits, cache = start(decoder, PROMPTS, repeat, 8)
    if name in FAST:
        assert (cache.shared is not None) == (habits is ON_GPU and repeat is GROUPS)
    expect(model, rows, logits)
    generator = torch.Generator().manual_seed(5)
    for t in range(8):
        if t in (2, 5):  # both rows of a longest prompt go, then all but two of those left
            keep = [4, 6, 2, 3] if t == 2 else [0, 3]
            keep_rows(cache, keep)
            rows = [rows[i] for i in keep]
        if t in (3, 6) and decoder.refills:  # slots that rows have left take others, with another prompt
            slots = [len(rows) + 1, len(rows)]
            expect(model, [[5, 6, 7, 9]] * 2, decoder.admit(cache, [[5, 6, 7, 9]], [2], slots))
            rows += [[5, 6, 7, 9] for _ in slots]
        tokens = torch.randint(2, VOCAB, (len(rows),), generator=generator)
        for row, token in zip(rows, tokens.tolist(), strict=True):
            row.append(token)
        expect(model, rows, decoder.step(tokens, cache))


@pytest.mark.parametrize("name", list(FAST))
def test_a_change_of_weights_is_seen_after_refresh_and_not_before(name):
    model = tiny(name)
    decoder = Decoder.of(model)
    before, _ = start(decoder, PROMPTS, REPEAT, 1)
    scatter(model, seed=1)
    held, cache = start(decoder, PROMPTS, REPEAT, 1)
    assert torch.equal(held, before)
    decoder.refresh()
    rows = [list(p) for p, n in zip(PROMPTS, REPEAT, strict=True) for _ in range(n)]
    logits, cache = start(decoder, PROMPTS, REPEAT, 1)
    expect(model, rows, logits)
    expect(model, [[*row, 4] for row in rows], decoder.step(torch.full((len(rows),), 4), cache))


class Watched(Decoder):
    """Remembers the tokens of each piece of prompts."""

    tokens: list[int]

    def _prefill(self, ids, *rest):
        self.tokens.append(ids.numel())
        return super()._prefill(ids, *rest)


@pytest.mark.parametrize(("most", "pieces"), [(1, [5, 5, 5, 5]), (10, [10, 10]), (19, [5, 15]), (20, [20])])
def test_prompts_computed_in_pieces_have_the_same_bytes(most, pieces):
    """On the CPU, where equal recipes must give equal bytes; padding is that of all prompts together."""
    model = tiny("qwen3 wide heads")
    whole, cache = start(Decoder(model), PROMPTS, REPEAT, 3)
    decoder = Watched(model, replace(ON_CPU, prefill_tokens=most))
    decoder.tokens = []
    logits, own = start(decoder, PROMPTS, REPEAT, 3)
    assert sorted(decoder.tokens) == sorted(pieces) or max(decoder.tokens) <= most
    assert torch.equal(logits, whole)
    tokens = torch.full((7,), 4)
    for _ in range(3):
        assert torch.equal(decoder.step(tokens, own), Decoder.step(decoder, tokens, cache))


def test_a_device_reads_aligned_columns_and_the_cpu_no_more_than_it_needs():
    model = tiny("llama")
    assert habits_of(torch.device("cpu")) == ON_CPU
    assert habits_of(torch.device("cuda", 0)) == ON_GPU
    for habits, columns in ((ON_CPU, 16), (ON_GPU, 64), (Habits(align=4), 16), (Habits(align=1), 13)):
        _, cache = start(Decoder(model, habits), PROMPTS, REPEAT, 8)
        assert cache.keys.shape == cache.values.shape
        assert cache.keys.shape[3] == columns
        assert cache.open_column() == -(-6 // habits.align) * habits.align


def test_a_prompt_is_in_memory_once_however_many_rows_it_has():
    """On the CPU where it is long enough for its number of rows, on a GPU wherever two rows share it."""
    assert room_of([30, 20], [2, 2], 99, 8, gpu=True) == Room(4, 8, 4, 30)
    assert room_of([30, 20], [2, 2], 99, 8, gpu=False) == Room(4, 38)
    assert room_of([300, 20], [2, 2], 99, 8, gpu=False) == Room(4, 8, 4, 300)
    assert room_of([300] * 9, [1] * 9, 4, 8, gpu=True) == Room(4, 308), "a row each: nothing to share"
    assert room_of([99] * 9, [100, *[1] * 8], 64, 8, gpu=False) == Room(64, 107), "one large group among single rows"
    wide = room_of([40] * 64, [8] * 64, 128, 8, gpu=False)
    assert wide == Room(128, 8, 2 * 16 + 1, 40), "as many again as are new, for prompts whose last row still runs"
    model = tiny("llama")
    _, cache = start(Decoder(model, ON_GPU), [[2, 3, 4] * 6], [5], 8)
    assert cache.shared.keys.shape[1] < 5
    assert cache.lengths[:5].tolist() == [0] * 5


def test_long_decodes_grow_the_rotations():
    model = build("llama", {"max_position_embeddings": 512})
    decoder = Decoder.of(model)
    row = [(7 * i) % (VOCAB - 2) + 2 for i in range(300)]
    _, cache = start(decoder, [row[:250]], [1], 50)
    for token in row[250:-1]:
        decoder.step(torch.tensor([token]), cache)
    expect(model, [row], decoder.step(torch.tensor([row[-1]]), cache))


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "linear rope": ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}, "rotary"),
    "dynamic rope": (
        "qwen2",
        {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}},
        "rotary",
    ),
    "sliding window": ("mistral", {"sliding_window": 4}, "sliding_window"),
    "sliding layers": ("qwen2", {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}, "sliding"),
    "another activation": ("llama", {"hidden_act": "gelu"}, "hidden_act"),
    "bias in the mlp": ("llama", {"mlp_bias": True}, "mlp_bias"),
    "another family": ("gemma2", {"head_dim": 8}, "gemma2"),
}


@pytest.mark.parametrize("case", list(REFUSED))
def test_what_is_not_computed_is_refused_with_its_reason(case):
    model_type, changes, word = REFUSED[case]
    model = build(model_type, changes)
    assert Decoder.of(model) is None
    reason = unsupported(model.config)
    assert word in reason


def test_parity_holds_for_models_as_they_are():
    for name in FAST:
        decoder = Decoder.of(tiny(name))
        assert check_parity(decoder) < TOLERANCE


@pytest.mark.run
def test_in_sixteen_bits_the_rounding_of_many_layers_is_no_other_function():
    model = build("llama", {"hidden_size": 256, "num_hidden_layers": 8, "intermediate_size": 512}).to(torch.bfloat16)
    decoder = Decoder.of(model)
    assert 0.01 < check_parity(decoder) < 0.3


def lie_about_scale(model: Any) -> None:
    for layer in model.model.layers:
        layer.self_attn.scaling *= 2.0


def lie_about_norm(model: Any) -> None:
    norm = model.model.layers[1].post_attention_layernorm
    norm.forward = lambda x: x * norm.weight


def lie_about_rotation(model: Any) -> None:
    model.model.rotary_emb.inv_freq *= 0.5


def lie_about_head(model: Any) -> None:
    model.lm_head.register_forward_hook(lambda _module, _given, out: 3.0 * (out / 3.0).tanh())


@pytest.mark.parametrize("lie", [lie_about_scale, lie_about_norm, lie_about_rotation, lie_about_head])
@pytest.mark.parametrize("fresh", [False, True])
def test_parity_catches_a_model_that_computes_something_else(lie, fresh):
    """Also with the small weights of a model just made, whose logits are all but flat."""
    model = tiny("llama")
    if fresh:
        with torch.no_grad():
            for p in model.parameters():
                p.fill_(1.0) if p.dim() == 1 else p.normal_(0, 0.02, generator=torch.Generator().manual_seed(p.numel()))
    lie(model)
    decoder = Decoder.of(model)
    with pytest.raises(ValueError, match="fast decode differs"):
        check_parity(decoder)


@pytest.mark.parametrize("lie", [lie_about_scale, lie_about_norm, lie_about_rotation])
def test_parity_catches_it_in_sixteen_bits_too(lie):
    model = tiny("llama")
    lie(model)
    decoder = Decoder.of(model.to(torch.bfloat16))
    with pytest.raises(ValueError, match="fast decode differs"):
        check_parity(decoder)


def draws(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def assert_near(got: torch.Tensor, wanted: torch.Tensor) -> None:
    """Equal to float32's accuracy of a sum: relative to the greatest value."""
    assert got.shape == wanted.shape
    if got.numel():
        assert (
            float((got.detach().double() - wanted.detach()).abs().max())
            <= 2e-6 * float(wanted.detach().abs().max()) + 1e-6
        )


@pytest.mark.parametrize("lead", [(1,), (7,), (4, 9), (64, 70), (0,)])
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("threads", [1, 2])
def test_the_value_is_that_of_float64(lead, with_bias, threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    x, weight, bias = draws(*lead, 24), draws(40, 24), draws(40) if with_bias else None
    got = product(x, weight, bias)
    torch.set_num_threads(before)
    assert_near(got, F.linear(x.double(), weight.double(), None if bias is None else bias.double()))


@pytest.mark.parametrize("threads", [1, 2])
def test_packed_weights_give_the_same_bytes_for_each_row_however_many_there_are(threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    x, weight, bias = draws(70, 96), draws(50, 96), draws(50)
    own = packed(weight)
    wanted = product(x, own, bias)
    assert_near(wanted, F.linear(x.double(), weight.double(), bias.double()))
    for rows in (1, 2, 7, 16, 33, 70):
        torch.testing.assert_close(product(x[:rows], own, bias), wanted[:rows], rtol=0, atol=0)
        if rows > 1:
            torch.testing.assert_close(product(x[:rows], weight, bias), wanted[:rows], rtol=0, atol=0)
    torch.set_num_threads(before)


def test_packed_weights_are_copies_where_onednn_does_not_compute():
    weight = draws(5, 3).double()
    copied = packed(weight)
    torch.testing.assert_close(copied, weight, rtol=0, atol=0)
    weight.add_(1)
    assert not torch.equal(copied, weight)

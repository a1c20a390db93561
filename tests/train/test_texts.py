"""Texts: where they are packed, that none sees another, and demonstrations in an update of RL."""

import pytest
import torch

from tests.models.families import VOCAB, build, tiny
from tests.train.batches import backend_of, groups_of, parts_of, settings_of, watched
from verizero.pipeline.config.sections import TrainConfig
from verizero.pipeline.errors import ConfigError, DataError
from verizero.pipeline.seeds import stream
from verizero.pipeline.train.backend import Backend
from verizero.pipeline.train.step import update
from verizero.pipeline.train.texts import Row, row_after, text_gradient
from verizero.pipeline.train.trees import packed_paths


def texts(seed=0, count=40, longest=60):
    """Rows of many lengths; two spans of each are trained on. One has nothing to predict but its last token."""
    draw = torch.Generator().manual_seed(seed)
    rows = [row_after((3, 4), 1)]
    for _ in range(count):
        n = int(torch.randint(2, longest, (1,), generator=draw))
        a, b, c = sorted(int(torch.randint(1, n + 1, (1,), generator=draw)) for _ in range(3))
        spans = ((a, b), (c, n)) if b > a else ((min(a, n - 1), n),)
        rows.append(Row(tuple(torch.randint(0, VOCAB, (n,), generator=draw).tolist()), spans))
    return rows


@pytest.mark.parametrize(("longest", "packs"), [(60, True), (9, False)])
def test_texts_are_packed_where_much_would_be_padding(longest, packs):
    rows = [row_after(tuple(range(3, 3 + n)), 1) for n in range(8, longest + 1)]
    rows = [row_after((i, *row.ids), 1) for i, row in enumerate(rows)]  # that begin differently
    backend = Backend(tiny("qwen2 tied"))
    assert (packed_paths(backend, [row.ids for row in rows], texts=True)[0] is not None) is packs
    assert packed_paths(backend, [row.ids for row in rows])[0] is None, "rows of an update"


@pytest.mark.parametrize("name", ["gemma2 with softcapping", "mamba"])
def test_texts_of_a_model_that_cannot_be_packed_are_padded_and_counted(name):
    model = build("mamba", {"num_hidden_layers": 1, "state_size": 4}) if name == "mamba" else tiny(name)
    for packing, fallbacks in (("auto", 1.0), ("off", None)):
        backend = Backend(model, config=TrainConfig(packing=packing))
        assert text_gradient(backend, texts(count=3), 1.0, 0, 100).get("tree/fallbacks") == fallbacks
    with pytest.raises(ConfigError, match=rf"train\.packing=on: model type '{name.split()[0]}"):
        text_gradient(Backend(model, config=TrainConfig(packing="on")), texts(count=3), 1.0, 0, 100)


def test_an_update_with_demonstrations_is_the_sum_of_both_gradients():
    texts = (Row((3, 4, 5, 6), ((1, 2), (3, 4))), row_after((7, 8, 9), 2))

    def gradient(coef):
        parts, backend = parts_of("grpo", ptx_coef=coef, kl_coef=0.0), backend_of()
        how = settings_of(parts, texts=texts, texts_per_update=3)
        return watched(backend, lambda: update(backend, parts, groups_of(), how))[1][0]

    draw, policy = stream(5, "ptx", 2, 0), backend_of().model
    loss, num = torch.zeros((), dtype=torch.float64), 0
    for ids, spans in [draw.choice(texts) for _ in range(3)]:
        logits = policy(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
        for t in (t for begin, end in spans for t in range(begin, end)):
            loss, num = loss - logits[t - 1, ids[t]], num + 1
    wanted = torch.cat([g.flatten() for g in torch.autograd.grad(loss / num, list(policy.parameters()))])
    torch.testing.assert_close(gradient(0.5) - gradient(0.0), 0.5 * wanted, rtol=1e-5, atol=1e-7)


def test_demonstrations_are_wanted_where_there_are_none():
    parts = parts_of("grpo", ptx_coef=0.5)
    with pytest.raises(DataError, match=r"ptx_coef is 0\.5 and there are no demonstrations"):
        update(backend_of(), parts, groups_of(), settings_of(parts))

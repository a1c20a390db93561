"""Models in GGUF files, compared with the float32 weights that the files were written from."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import PreTrainedTokenizerFast

from tests.models.families import next_logits
from tests.models.gguf_files import CHARACTERS, tiny_llama, write_gguf
from tests.source import ROOT
from tests.warm import warm
from verizero.pipeline.data.tokenizer import character_tokenizer
from verizero.pipeline.errors import ConfigError
from verizero.pipeline.models import gguf_file
from verizero.pipeline.models.gguf_file import MADE, digest, located, model_folder, provenance, split_as
from verizero.pipeline.models.load import load_model, load_tokenizer

pytest.importorskip("gguf")


@pytest.fixture(scope="module")
def model():
    return tiny_llama()


@pytest.fixture(scope="module")
def plain(model, tmp_path_factory):
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf", model)


def test_a_float32_file_gives_the_weights_and_the_tokenizer_that_it_was_written_from(
    model, plain, tmp_path, monkeypatch
):
    trims = []
    monkeypatch.setattr("verizero.pipeline.models.gguf_file.trim_heap", lambda: trims.append(True))
    folder = model_folder(str(plain), tmp_path)
    assert trims == [True]  # the run that follows has the memory
    made, tokenizer, ours = load_model(folder), load_tokenizer(folder), character_tokenizer(CHARACTERS)
    want = model.state_dict()
    assert made.state_dict().keys() == want.keys()
    assert all(torch.equal(value, want[name]) for name, value in made.state_dict().items())
    text = 'Write {"a": 1} \\ for Ann.\n'
    ids = ours(text)["input_ids"]
    assert tokenizer(text)["input_ids"] == ids
    assert tokenizer.decode(ids) == text
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (ours.eos_token_id, ours.pad_token_id)
    torch.testing.assert_close(next_logits(made.eval(), ids), next_logits(model.eval(), ids))
    written = tokenizer.apply_chat_template([{"role": "user", "content": "x"}], tokenize=False)
    assert written == "user: x\n"
    assert provenance(Path(folder))["is_quantized"] is False


def test_a_quantised_file_gives_the_rounded_weights_and_says_so(model, tmp_path):
    """Q8_0 keeps 32 numbers as eight bits times one float16: no further off than half a step, and its rounding."""
    file = write_gguf(tmp_path / "small.gguf", model, quantized=True)
    folder = model_folder(str(file), tmp_path)
    made = load_model(folder).state_dict()
    for name, ours in model.state_dict().items():
        blocks, got = ours.double().reshape(-1, 32), made[name].double().reshape(-1, 32)
        step = blocks.abs().amax(1, keepdim=True) / 127
        assert made[name].dtype == torch.float32
        assert ((got - blocks).abs() <= (step / 2 + 127 * step * 2**-10 if ours.ndim == 2 else 0)).all(), name
        assert ours.ndim != 2 or not torch.equal(made[name], ours)
    facts = provenance(Path(folder))
    matrices = sum(p.numel() for p in model.parameters() if p.ndim == 2)
    share = matrices / sum(p.numel() for p in model.parameters())
    assert facts == {
        "file": "small.gguf",
        "sha256": digest(file),
        "bytes": file.stat().st_size,
        "architecture": "llama",
        "model": "Tiny",
        "licence": "apache-2.0",
        "types": {"Q8_0": round(share, 4), "F32": round(1 - share, 4)},
        "is_quantized": True,
    }


@pytest.mark.parametrize(
    ("name", "pieces"),
    [
        ("gpt-2", ["ab", "Ġ1234", "Ġ'", "s"]),
        ("smollm", ["ab", "Ġ", "1", "2", "3", "4", "Ġ'", "s"]),
        ("qwen2", ["ab", "Ġ", "1", "2", "3", "4", "Ġ'", "s"]),
        ("llama-bpe", ["ab", "Ġ", "123", "4", "Ġ'", "s"]),
        ("another", ["ab", "Ġ1234", "Ġ'", "s"]),
    ],
)
def test_texts_are_split_as_the_name_in_the_file_says(name, pieces):
    inner = Tokenizer(BPE())
    inner.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner)
    split_as(tokenizer, name)
    found = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str("ab 1234 's")
    assert [piece for piece, _ in found] == pieces


def test_a_file_is_converted_once_and_again_when_its_content_changes(model, plain, tmp_path):
    file = tmp_path / "x.gguf"
    file.write_bytes(plain.read_bytes())
    folder = Path(model_folder(str(file), tmp_path))
    (folder / "mark").touch()
    assert model_folder(str(file), tmp_path) == str(folder)
    assert (folder / "mark").exists()
    write_gguf(file, tiny_llama(1))
    other = Path(model_folder(str(file), tmp_path))
    assert other != folder
    assert not torch.equal(load_model(str(other)).lm_head.weight, load_model(str(folder)).lm_head.weight)


def test_whichever_rank_comes_first_writes_the_whole_model(model, plain, tmp_path):
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
    try:
        folder = model_folder(str(plain), tmp_path)
    finally:
        torch.distributed.destroy_process_group()
    assert load_model(folder).state_dict().keys() == model.state_dict().keys()


CONVERTS_AND_DIES = """
import os, pathlib, signal, sys
from verizero.pipeline.models import gguf_file

write = gguf_file._convert
gguf_file._convert = lambda *given: (write(*given), os.kill(os.getpid(), signal.SIGKILL))
gguf_file.model_folder(sys.argv[1], pathlib.Path(sys.argv[2]))
"""


@pytest.mark.run  # in a process of its own
@pytest.mark.nightly
def test_a_killed_conversion_leaves_nothing_half(plain, tmp_path):
    words = [sys.executable, "-c", CONVERTS_AND_DIES, str(plain), str(tmp_path)]
    ended = warm().call(subprocess.run, words, cwd=ROOT, check=False)
    assert ended.returncode == -9
    assert list((tmp_path / MADE).glob("*/config.json"))  # it was killed with files written
    assert not list((tmp_path / MADE).glob("tiny-*"))
    folder = Path(model_folder(str(plain), tmp_path))
    assert torch.equal(load_model(str(folder)).lm_head.weight, tiny_llama().lm_head.weight)
    assert [p.name for p in (tmp_path / MADE).iterdir() if p.is_dir()] == [folder.name]


def test_an_installed_packages_file_is_named_without_a_path(plain, tmp_path, monkeypatch):
    package = tmp_path / "weights_of_a_test"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('it was imported')")
    (package / "tiny.gguf").write_bytes(plain.read_bytes())
    monkeypatch.syspath_prepend(tmp_path)
    assert located("package:weights_of_a_test/tiny.gguf") == package / "tiny.gguf"
    with pytest.raises(ConfigError, match=r"no such file; it has tiny\.gguf"):
        located("package:weights_of_a_test/other.gguf")
    with pytest.raises(ConfigError, match=r"no package 'not_installed_here'.*install it"):
        located("package:not_installed_here/x.gguf")


def test_a_missing_file_and_a_missing_package_are_named_with_their_remedy(plain, tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match=r"nowhere\.gguf.*no such file"):
        model_folder(str(tmp_path / "nowhere.gguf"), tmp_path)
    monkeypatch.setattr(gguf_file, "NEEDS", ("gguf", "a_package_that_is_not_there"))
    with pytest.raises(ConfigError, match=r"a_package_that_is_not_there: pip install '\.\[real\]'"):
        model_folder(str(plain), tmp_path)
    assert not list((tmp_path / MADE).glob("tiny-*"))


@pytest.mark.parametrize("share", [0, 0.0001, 0.01, 0.05, 0.3, 0.7, 0.999])
def test_a_file_that_is_cut_off_is_refused_wherever_the_cut_is(share, plain, tmp_path):
    whole = plain.read_bytes()
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(ConfigError, match=r"(?s)cut\.gguf.*cut off.*get it again"):
        model_folder(str(cut), tmp_path)

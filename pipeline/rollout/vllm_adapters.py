"""Adapters in vLLM: it loads their base once, and then at each publish the adapters alone."""

from __future__ import annotations

import shutil
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from verizero.pipeline.errors import ConfigError, EngineError
from verizero.pipeline.models.lora import FOLDER, Adapted
from verizero.pipeline.models.saved_names import as_saved
from verizero.pipeline.models.streamed import Streamed

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Values of vLLM's argument `max_lora_rank`."""


class VllmAdapters:
    """The adapters of the trainer's policy, in vLLM under a new number at each publish."""

    def __init__(self, adapted: Adapted, vllm: Any) -> None:
        """`vllm`: the module that imports vLLM. Raises: ConfigError for a rank that vLLM does not compute."""
        self.adapted, self._vllm = adapted, vllm
        rank = adapted.config.r
        if rank > RANKS[-1]:
            raise ConfigError(
                f"train.lora.rank={rank}, and vLLM computes adapters of at most {RANKS[-1]}; lower it, or set "
                "rollout.engine: torch"
            )
        self.arguments = {
            "enable_lora": True,
            "max_loras": 1,
            "max_lora_rank": next(r for r in RANKS if r >= rank),
            "load_format": "auto",  # the base is in the folder
        }
        self.request: Any = None
        """Named in each request for a response; None before the first publish."""
        self._number = 0
        self._folder = tempfile.TemporaryDirectory(prefix="verizero-adapters-")

    def write_base(self, folder: str) -> None:
        """Write the base as a Hugging Face folder; of one in 4 bits the numbers that these stand for."""
        blocks = partial(self.adapted.plain_blocks, learned=False)
        name = partial(as_saved, self.adapted.twin)
        Streamed(self.adapted.twin, lambda: map(name, blocks()), True).save_pretrained(Path(folder))

    def publish(self, engine: Any, version: int) -> int:
        """Load the present adapters into vLLM's engine in place of the last ones, and return their bytes.

        Raises: EngineError if the engine does not report them and no others.
        """
        old, root = self.request, Path(self._folder.name)
        self._number += 1
        place = root / str(self._number)
        place.mkdir()
        self.adapted.save(place, is_first=True)
        if old is not None:
            engine.remove_lora(old.lora_int_id)
            shutil.rmtree(root / str(old.lora_int_id))
        self.request = self._vllm.lora_request(str(version), self._number, str(place / FOLDER))
        engine.add_lora(self.request)
        if set(engine.list_loras()) != {self._number}:
            raise EngineError(
                f"vLLM has the adapters {sorted(engine.list_loras())} after number {self._number} was published; "
                "restart the run"
            )
        return sum(p.nbytes for p in self.adapted.model.parameters() if p.requires_grad)

    def close(self) -> None:
        """Delete the folder."""
        self._folder.cleanup()

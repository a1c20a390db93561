"""Generation by our own decoder. The model is understood without it: other modules import only this."""

from __future__ import annotations

from verizero.pipeline.models.cpu.cache import room_of
from verizero.pipeline.models.cpu.decoder import Decoder, check_parity, habits_of
from verizero.pipeline.models.cpu.llama import unsupported
from verizero.pipeline.models.cpu.prefix import PrefixCache

__all__ = ["Decoder", "PrefixCache", "check_parity", "habits_of", "room_of", "unsupported"]

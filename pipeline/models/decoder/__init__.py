"""Generation by our own decoder. The model is understood without it: other modules import only this."""

from __future__ import annotations

from verizero.pipeline.models.decoder.cache import room_of
from verizero.pipeline.models.decoder.decoder import Decoder, check_parity, habits_of
from verizero.pipeline.models.decoder.weights import unsupported

__all__ = ["Decoder", "check_parity", "habits_of", "room_of", "unsupported"]

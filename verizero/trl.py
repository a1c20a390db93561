"""Scripts written for TRL: `from verizero.trl import GRPOConfig, GRPOTrainer`. docs/trl.md says what is kept."""

from __future__ import annotations

from verizero.pipeline.errors import ConfigError, boundary

with boundary(ConfigError, "verizero.trl"):  # says what to install where training's packages are missing
    from verizero.pipeline.library.trl.config import GRPOConfig
    from verizero.pipeline.library.trl.trainer import GRPOTrainer

__all__ = ["GRPOConfig", "GRPOTrainer"]

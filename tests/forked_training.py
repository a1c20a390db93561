"""What training programs import sooner or later, some of it when they save a model or draw a report."""

from __future__ import annotations

from contextlib import suppress

import accelerate.utils.other  # noqa: F401
import matplotlib.backends.backend_svg  # noqa: F401
import transformers.modeling_utils
import transformers.models.qwen2.modeling_qwen2  # noqa: F401

import pipeline.whole_run  # noqa: F401
from pipeline.models.load import quiet

quiet()
with suppress(ImportError):  # transformers imports it at the first save where it is installed
    import deepspeed  # noqa: F401

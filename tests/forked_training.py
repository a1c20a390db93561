"""What training programs import sooner or later, some of it when they grade, save a model or end."""

import importlib
import pkgutil

import tests.forked_libraries  # noqa: F401
import verizero.pipeline.algorithms
import verizero.pipeline.checks.page
import verizero.pipeline.data.generators.arithmetic
import verizero.pipeline.models.streamed
import verizero.pipeline.rl.explain
import verizero.pipeline.stages
import verizero.pipeline.whole_run
import verizero.verifiers.math
from verizero.pipeline.models.load import quiet

for parts in (verizero.pipeline.algorithms, verizero.pipeline.stages):
    for module in pkgutil.iter_modules(parts.__path__, f"{parts.__name__}."):
        importlib.import_module(module.name)
quiet()

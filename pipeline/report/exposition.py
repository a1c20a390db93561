"""Serve `/metrics` for Prometheus: the content of a run's metrics.jsonl, on this machine only."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from prometheus_client import generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from verizero.pipeline.errors import ConfigError, DataError
from verizero.pipeline.report.row_types import Alarm, EvaluationRow, MetricsRow, StepRow, metrics_row
from verizero.pipeline.report.summary import phases_of
from verizero.pipeline.types import STATUSES

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
GAUGES = {
    "reward": ("reward/sampled", "Mean reward of the responses that the last RL step sampled."),
    "kl": ("kl/k3", "KL to the reference in the last RL step, k3, nats a token."),
    "entropy": ("entropy", "Token entropy of the policy in the last step, nats."),
    "response_length_tokens": ("length/mean", "Mean length of the responses of the last RL step."),
    "truncated_ratio": ("truncated", "Share of the last RL step's responses that were cut."),
    "loss": ("loss", "Loss of the last step of next-token training."),
    "grad_norm": ("grad_norm", "Gradient norm of the last update, before clipping."),
    "learning_rate": ("learning_rate", "Learning rate of the last update."),
}
"""Prometheus metric -> its name in a step's metrics, and its help text."""
ALARMS = ("collapse", "verifier")
Labels = tuple[tuple[str, str], ...]


class MetricsCollector(Collector):
    """Reads new lines of metrics.jsonl at each request, and keeps gauges and counters of them."""

    def __init__(self, path: Path, run: str) -> None:
        """`run`: a label of every number."""
        self.path, self.run = path, run
        # Scrapes come in threads of their own, and one reading serves all.
        self._lock = threading.Lock()
        self._begin()

    def collect(self) -> list[Metric]:
        """Return all metrics of the file as it is now."""
        with self._lock:
            self.refresh()
            gauges = dict(self.gauges)
            if self.path.is_file():
                gauges["changed_timestamp_seconds"] = {(): round(self.path.stat().st_mtime, 3)}
            return [self._metric(*family) for family in (*gauges.items(), *self.counters.items())]

    def _metric(self, name: str, values: Mapping[Labels, float]) -> Metric:
        kind = "counter" if name.endswith("_total") else "gauge"
        metric = Metric(f"verizero_{name}".removesuffix("_total"), HELP[name], kind)
        for labels, value in values.items():
            metric.add_sample(f"verizero_{name}", {"run": self.run, **dict(labels)}, value)
        return metric

    def _begin(self) -> None:
        self.at = 0
        self.gauges: dict[str, dict[Labels, float]] = {}
        self.counters: dict[str, dict[Labels, float]] = {
            "alarms_total": {(("alarm", name),): 0.0 for name in ALARMS},
            "generated_tokens_total": {(): 0.0},
            "unreadable_lines_total": {(): 0.0},
        }

    def refresh(self) -> None:
        """Read the lines that were added; if the file became shorter (a resumed run), read all again."""
        if not self.path.is_file():
            return
        if self.path.stat().st_size < self.at:
            self._begin()
        with self.path.open("rb") as file:
            file.seek(self.at)
            for line in file:
                # The run is writing this line; it is read whole at a later request.
                if not line.endswith(b"\n"):
                    break
                self.at += len(line)
                try:
                    self.add(metrics_row(json.loads(line), str(self.path)))
                except (ValueError, TypeError, DataError):
                    # A damaged line must not end a server that answers while the run trains.
                    self._count("unreadable_lines_total", 1)

    def add(self, row: MetricsRow) -> None:
        """Add a row of metrics.jsonl."""
        for phase, seconds in phases_of(row.time).items():
            self._count("phase_seconds_total", seconds, stage=row.stage, phase=phase)
        if isinstance(row, Alarm):
            self._count("alarms_total", 1, alarm=row.TAG["alarm"])
        elif isinstance(row, EvaluationRow):
            self._evaluation(row)
        elif isinstance(row, StepRow):
            self._step(row)

    def _evaluation(self, row: EvaluationRow) -> None:
        for domain, measures in row.domains.items():
            for measure, name in (("pass@1", "pass_at_1"), ("score", "score"), ("pass@k", "pass_at_k")):
                if measure in measures:
                    self._set(name, measures[measure]["value"], domain=domain)
        for status, number in row.verdicts.items():
            self._count("verdicts_total", number, status=status, of="evaluation")

    def _step(self, row: StepRow) -> None:
        metrics = row.metrics
        self._set("step", row.step, stage=row.stage)
        self._set("round", row.round, stage=row.stage)
        for name, (key, _) in GAUGES.items():
            if key in metrics:
                self._set(name, metrics[key])
        for key, value in metrics.items():
            if key.startswith("reward/mean/"):
                self._set("domain_reward", value, domain=key.removeprefix("reward/mean/"))
            elif (status := key.removeprefix("verdict/")) in STATUSES:
                number = round(value * metrics.get("verdict/responses", 0.0))
                # A row has shares; a counter needs responses.
                self._count("verdicts_total", number, status=status, of="training")
        if "clip_fraction/low" in metrics:
            self._set("clip_fraction_ratio", metrics["clip_fraction/low"] + metrics.get("clip_fraction/high", 0.0))
        if "tokens/generated" in metrics:
            # Already a total in the row, so it is set and not added.
            self.counters["generated_tokens_total"][()] = metrics["tokens/generated"]

    def _set(self, name: str, value: float, **labels: str) -> None:
        self.gauges.setdefault(name, {})[tuple(labels.items())] = float(value)

    def _count(self, name: str, value: float, **labels: str) -> None:
        values, key = self.counters.setdefault(name, {}), tuple(labels.items())
        values[key] = values.get(key, 0.0) + value


HELP = {
    **{name: text for name, (_, text) in GAUGES.items()},
    "step": "Steps done, by stage.",
    "round": "Round of the last step, by stage.",
    "domain_reward": "Mean reward in the last RL step, by domain.",
    "clip_fraction_ratio": "Share of tokens clipped in the last update.",
    "pass_at_1": "Held-out pass@1 at the last evaluation, by domain.",
    "score": "Held-out mean score at the last evaluation, by domain.",
    "pass_at_k": "Held-out pass@k at the last evaluation, by domain.",
    "phase_seconds_total": "Seconds spent, by stage and phase.",
    "verdicts_total": "Responses graded, by status, in training and evaluation.",
    "generated_tokens_total": "Tokens generated in RL.",
    "alarms_total": "Alarms raised: a suspected collapse, graders that fail.",
    "unreadable_lines_total": "Lines of metrics.jsonl that are not rows of a run.",
    "changed_timestamp_seconds": "When metrics.jsonl last grew.",
}


@contextmanager
def exposed(folder: Path, run: str, port: int | None) -> Iterator[str | None]:
    """Serve `/metrics` of the run in `folder` until the block ends; yield its address, or None if `port` is None.

    Raises: ConfigError if the port cannot be had.
    """
    if port is None:
        yield None
        return
    from starlette.requests import Request
    from starlette.responses import Response

    from verizero.pipeline.service import Refused, Service

    reading = MetricsCollector(folder / "metrics.jsonl", run)

    def admits(path: str, key: str) -> None:
        if path != "/metrics":
            raise Refused(404, "only /metrics is here")

    def answer(request: Request, body: bytes) -> Response:
        return Response(generate_latest(reading), media_type=CONTENT_TYPE)

    try:
        service = Service(answer, port=port, admits=admits)
    except OSError as exc:
        raise ConfigError(
            f"report.metrics_port={port} cannot be had on this machine ({exc.strerror}); set another, or null for none"
        ) from exc
    with service:
        yield f"{service.address}/metrics"

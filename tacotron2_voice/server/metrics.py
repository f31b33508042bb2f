"""Count requests, texts and seconds of audio for Prometheus.

metrics = Metrics()
metrics.requests.labels("speech", "200").inc()
metrics.text()  # the content of /metrics
"""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import generate_latest

SECONDS = (0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 30, 60)
PREFIX = "tacotron2_voice"


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.requests = Counter(
            f"{PREFIX}_requests",
            "Number of requests, by protocol and result.",
            ["protocol", "result"],
            registry=self.registry,
        )
        self.texts = Gauge(
            f"{PREFIX}_texts",
            "Number of texts that are waiting or being synthesized.",
            registry=self.registry,
        )
        self.audio_seconds = Counter(
            f"{PREFIX}_audio_seconds", "Seconds of synthesized audio.", registry=self.registry
        )
        self.first_audio = Histogram(
            f"{PREFIX}_first_audio_seconds",
            "Seconds from a request to its first audio.",
            buckets=SECONDS,
            registry=self.registry,
        )

    def text(self) -> bytes:
        """Return all metrics in the Prometheus text format."""
        return generate_latest(self.registry)

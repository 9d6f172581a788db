"""A study as it is exported: two points, one of them with names that no tool may stumble over."""

from bitbench.features.exports.content import ExportedFigure, ExportedPoint, ExportedStudy

HOSTILE_NAME = 'w4 "quoted" \\ back\nline {x="1"}'


def exported_study() -> ExportedStudy:
    def point(id: str, variant: str, factor: float) -> ExportedPoint:
        figures = (
            ExportedFigure("output_throughput", "tok/s", "Tokens per second.", 100.5 * factor, 99.0, 102.25),
            ExportedFigure("ttft_p99", "s", "99th percentile of the first token.", 0.25 * factor, 0.2, None),
            ExportedFigure("peak_bytes", "bytes", "The most memory.", 1e9 * factor, None, None),
        )
        labels = {"variant": variant, "engine": "vllm", "workload": "chat"}
        return ExportedPoint(id, f"{variant} @ vllm · chat", labels, figures, {"concurrency": "8"})

    facts = {"bitbench_version": "0.1", "host_cpu_model": 'Xeon \\ "x"'}
    return ExportedStudy("study-1", facts, (point("a" * 16, "bf16", 1.0), point("b" * 16, HOSTILE_NAME, 2.0)))

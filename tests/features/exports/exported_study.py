"""A study as it is exported: two points, one of them with names that no tool may stumble over."""

from bitbench.features.exports.content import ExportedFigure, ExportedPoint

HOSTILE_NAME = 'w4 "quoted" \\ back\nline {x="1"}'


def exported_study() -> list[ExportedPoint]:
    def point(id: str, variant: str, factor: float) -> ExportedPoint:
        figures = (
            ExportedFigure("output_throughput", "", "tok/s", "Tokens per second.", 100.5 * factor),
            ExportedFigure("output_throughput", "_low", "tok/s", "Tokens per second.", 99.0),
            ExportedFigure("output_throughput", "_high", "tok/s", "Tokens per second.", 102.25),
            ExportedFigure(
                "ttft_p99", "", "s", "99th percentile of the first token.", 0.25 * factor
            ),
            ExportedFigure("ttft_p99", "_low", "s", "99th percentile of the first token.", 0.2),
            ExportedFigure("peak_bytes", "", "bytes", "The most memory.", 1e9 * factor),
        )
        labels = {"study": "study-1", "variant": variant, "engine": "vllm", "workload": "chat"}
        facts = {
            **labels,
            "bitbench_version": "0.1",
            "host_cpu_model": 'Xeon \\ "x"',
            "concurrency": "8",
        }
        return ExportedPoint(id, f"{variant} @ vllm · chat", labels, facts, figures)

    return [point("a" * 16, "bf16", 1.0), point("b" * 16, HOSTILE_NAME, 2.0)]

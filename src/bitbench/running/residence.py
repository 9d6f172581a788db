"""Decides which configs of a block are in memory together and take turns."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from bitbench.analysis.ranking import collect_baselines
from bitbench.ports import Engine
from bitbench.records.trial import TrialRecord
from bitbench.study.plan import Config, Plan, Point
from bitbench.study.study import Interleaving

# Of the available memory. The rest is for the load client, the page cache and a peak.
RESIDENT_SHARE = 0.85

Chunk = tuple[Config, ...]


class Residence:
    """A memory budget that splits a block into chunks which fit into this machine."""

    def __init__(
        self, plan: Plan, engines: Mapping[str, Engine], *, available_bytes: int, on_device: bool
    ) -> None:
        self._schedule = plan.study.measure.schedule
        self._configs = plan.configs
        self._baselines = collect_baselines(plan)
        self._setups = {setup.name: setup for setup in plan.study.engines}
        self._engines = {setup.name: engines[setup.engine] for setup in plan.study.engines}
        self._weight_bytes = {variant.name: variant.weight_bytes or 0 for variant in plan.variants}
        self._free_bytes = RESIDENT_SHARE * available_bytes
        self._on_device = on_device
        self._peaks: dict[Config, int] = {}  # bytes, as measured

    def add(self, trial: TrialRecord) -> None:
        """Register the peak memory of a config."""
        config = trial.point.config
        peak_bytes = trial.memory.peak_bytes
        if peak_bytes is not None:
            self._peaks[config] = max(self._peaks.get(config, 0), peak_bytes)

    def chunks(self, points: Collection[Point]) -> list[Chunk]:
        """Split the configs of these points into chunks, by model and in the plan's order.

        The same points give the same chunks in every block.
        """
        present = {point.config for point in points}
        by_baseline: dict[Config | None, list[Config]] = {}
        for config in self._configs:
            if config in present:
                by_baseline.setdefault(self._baselines.get(config), []).append(config)
        chunks: list[Chunk] = []
        for baseline, configs in by_baseline.items():
            chunks += self._split_model_configs(baseline, configs)
        return chunks

    def _split_model_configs(
        self, baseline: Config | None, configs: Sequence[Config]
    ) -> list[Chunk]:
        """Return one chunk if all configs fit, or else several that each contain the baseline.

        If a config does not fit next to the baseline, all configs run one after the other. Both
        ways in one block would have different variances.
        """
        if self._is_within_memory(configs):
            return [tuple(configs)]
        one_by_one: list[Chunk] = [(config,) for config in configs]
        others = [config for config in configs if config != baseline]
        if baseline is None or not others or baseline not in configs:
            return one_by_one
        chunks: list[Chunk] = []
        for config in others:
            if not self._is_within_memory([baseline, config]):
                return one_by_one
            if chunks and self._is_within_memory([*chunks[-1], config]):
                chunks[-1] = (*chunks[-1], config)
            else:
                chunks.append((baseline, config))
        return chunks

    def _is_within_memory(self, configs: Iterable[Config]) -> bool:
        """Return True if these configs may be in memory at once and take turns."""
        if self._schedule is Interleaving.VISITS:
            return False
        checks_turns = self._schedule is Interleaving.AUTO
        free_bytes = self._free_bytes
        for config in configs:
            if checks_turns and not self._is_freezable(config):
                return False
            free_bytes -= self._estimate_peak_bytes(config)
        return free_bytes >= 0

    def _is_freezable(self, config: Config) -> bool:
        """Return True if this config can take turns with others.

        Engines on a device would share its memory and clocks. An engine that cannot be frozen
        would disturb the others.
        """
        setup = self._setups[config.engine]
        return not self._on_device and self._engines[setup.name].can_freeze(setup)

    def _estimate_peak_bytes(self, config: Config) -> int:
        """Return the measured peak, or an estimate from the weights and the engine's overhead."""
        if config in self._peaks:
            return self._peaks[config]
        return self._engines[config.engine].overhead_bytes + 2 * self._weight_bytes[config.variant]

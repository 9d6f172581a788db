"""Which configs of a block are in memory together and take turns."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from bitbench.analysis.ranking import baselines_of
from bitbench.ports import Engine
from bitbench.records.trial import TrialRecord
from bitbench.study.plan import Config, Plan, Point
from bitbench.study.study import Interleaving

RESIDENT_SHARE = 0.85  # of the available memory: the rest is for the load client, page cache, and the peak of one

Chunk = tuple[Config, ...]


class Residence:
    """Cuts a block into chunks that fit into the memory of this machine."""

    def __init__(
        self, plan: Plan, engines: Mapping[str, Engine], *, available_bytes: int, on_device: bool
    ) -> None:
        self._schedule = plan.study.measure.schedule
        self._configs = plan.configs
        self._baselines = baselines_of(plan)
        self._setups = {setup.name: setup for setup in plan.study.engines}
        self._engines = {setup.name: engines[setup.engine] for setup in plan.study.engines}
        self._weight_bytes = {variant.name: variant.weight_bytes or 0 for variant in plan.variants}
        self._free_bytes = RESIDENT_SHARE * available_bytes
        self._on_device = on_device
        self._peaks: dict[Config, int] = {}  # bytes, as measured

    def add(self, trial: TrialRecord) -> None:
        """Take note of the memory that a config needed."""
        config, peak_bytes = trial.point.config, trial.memory.peak_bytes
        if peak_bytes is not None:
            self._peaks[config] = max(self._peaks.get(config, 0), peak_bytes)

    def chunks(self, points: Collection[Point]) -> list[Chunk]:
        """Cut the configs of these points by model, in the plan's order, so that the same ones meet in every block."""
        present = {point.config for point in points}
        of_model: dict[Config | None, list[Config]] = {}
        for config in self._configs:
            if config in present:
                of_model.setdefault(self._baselines.get(config), []).append(config)
        found: list[Chunk] = []
        for baseline, own in of_model.items():
            found += self._chunks_of_model(baseline, own)
        return found

    def _chunks_of_model(self, baseline: Config | None, configs: Sequence[Config]) -> list[Chunk]:
        """Return one chunk where all fit, else several that each hold the baseline.

        Where one does not fit beside the baseline, all run one after the other: both ways in one block would vary
        differently.
        """
        if self._fit(configs):
            return [tuple(configs)]
        one_by_one: list[Chunk] = [(config,) for config in configs]
        others = [config for config in configs if config != baseline]
        if baseline is None or not others or baseline not in configs:
            return one_by_one
        chunks: list[Chunk] = []
        for config in others:
            if not self._fit([baseline, config]):
                return one_by_one
            if chunks and self._fit([*chunks[-1], config]):
                chunks[-1] = (*chunks[-1], config)
            else:
                chunks.append((baseline, config))
        return chunks

    def _fit(self, configs: Iterable[Config]) -> bool:
        """Return whether these may be in memory at once and take turns."""
        if self._schedule is Interleaving.VISITS:
            return False
        free_bytes = self._free_bytes
        for config in configs:
            free_bytes -= self._peak_bytes(config)
            if free_bytes < 0 or (
                self._schedule is Interleaving.AUTO and not self._suits_turns(config)
            ):
                return False
        return True

    def _suits_turns(self, config: Config) -> bool:
        """Engines on a device would share its memory and clocks; one that cannot be frozen disturbs the others."""
        setup = self._setups[config.engine]
        return not self._on_device and self._engines[setup.name].can_freeze(setup)

    def _peak_bytes(self, config: Config) -> int:
        """As measured; before that, from its weights and what its engine usually takes besides."""
        if config in self._peaks:
            return self._peaks[config]
        return self._engines[config.engine].overhead_bytes + 2 * self._weight_bytes[config.variant]

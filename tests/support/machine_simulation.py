"""A simulated machine whose truth is known: starts that differ by luck, trials that vary, and slow spells in between.

`GALLERY` gives trials and starts about the spread that those of examples/gallery have; the others move what causes
it: more slow spells, starts with heavy tails, nothing but luck of the start, hardly anything at all, configs that
vary very differently, or a quiet machine whose baseline varies most.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from bitbench.analysis.pairs import LogSpeeds
from bitbench.study.plan import Config

Floats = npt.NDArray[np.float64]

START_S = 16  # start, warm-up and stop of one config
TRIAL_S = 2
SLOW_SPELL = np.log(1.4)
SPELL_S = (5, 60)
SPIKE = np.log(1.5)
WANDER_S = 900  # how long the slow wander remembers


@dataclass(frozen=True)
class Machine:
    """Relative standard deviations, and shares of the time or of the trials."""

    start_sd: float
    trial_sd: float
    slow_share: float = 0.0
    wander_sd: float = 0.0
    spike_share: float = 0.0
    heavy_starts: bool = False
    uneven_starts: tuple[float, float] = (
        1.0,
        1.0,
    )  # of the baseline and of the last, as shares of start_sd
    noisy_baseline: float = 1.0  # its starts vary so many times as much as those of the others


GALLERY = Machine(start_sd=0.057, trial_sd=0.085, slow_share=0.12, wander_sd=0.03, spike_share=0.02)
DRIFT = Machine(start_sd=0.057, trial_sd=0.085, slow_share=0.35, wander_sd=0.03, spike_share=0.02)
STARTS = Machine(
    start_sd=0.10,
    trial_sd=0.085,
    slow_share=0.12,
    wander_sd=0.03,
    spike_share=0.02,
    heavy_starts=True,
)
LUCK = Machine(start_sd=0.11, trial_sd=0.10)
CALM = Machine(start_sd=0.01, trial_sd=0.015)
UNEVEN = replace(GALLERY, start_sd=0.06, uneven_starts=(1 / 3, 2.0))
REVERSED = replace(GALLERY, start_sd=0.06, uneven_starts=(2.0, 1 / 3))
QUIET = Machine(start_sd=0.01, trial_sd=0.003)
MACHINES = {
    "gallery": GALLERY,
    "drift": DRIFT,
    "starts": STARTS,
    "luck": LUCK,
    "calm": CALM,
    "uneven": UNEVEN,
    "uneven, reversed": REVERSED,
    "quiet": QUIET,
    "quiet, baseline 3x": replace(QUIET, noisy_baseline=3.0),
    "quiet, baseline 5x": replace(QUIET, noisy_baseline=5.0),
}


@dataclass(frozen=True)
class Schedule:
    """`alternate`: all configs of a block are started, then their trials take turns. Else one after the other.

    `shift`: so many come at a time beside the baseline, which stays; 0: all of them.
    """

    blocks: int
    rounds: int
    alternate: bool = False
    shift: int = 0

    def seconds(self, configs: int) -> int:
        starts = configs + (configs // self.shift if self.shift else 0)
        return self.blocks * starts * (START_S + self.rounds * TRIAL_S)


def configs(count: int) -> tuple[Config, ...]:
    """The first is the baseline."""
    return tuple(Config(variant="none", engine=f"engine-{number}") for number in range(count))


class Simulation:
    """One study, block by block; its clock goes on with each."""

    def __init__(
        self, machine: Machine, speeds: Sequence[float], rng: np.random.Generator, seconds: int
    ) -> None:
        self._machine = machine
        self._speeds = np.log(np.asarray(speeds, dtype=np.float64))
        self._rng = rng
        self._sensitivities = rng.uniform(0.6, 1.4, len(speeds))
        self._mood = np.concatenate([[0.0], np.cumsum(_log_speed(machine, rng, seconds + 60))])
        self.clock_s = 0

    def block(
        self,
        live: Sequence[int],
        rounds: int,
        *,
        alternate: bool,
        shift: int = 0,
        start_s: int = START_S,
    ) -> Floats:
        """Log speeds, config × round; NaN for those that are not live."""
        self.clock_s += len(live) * (start_s - START_S)
        baseline, *others = live
        shifts = [
            [baseline, *others[first : first + shift]]
            for first in range(0, len(others), shift or len(others))
        ]
        parts = [
            self._shift(present, rounds, alternate=alternate)
            for present in (shifts if shift else [live])
        ]
        return np.concatenate(parts, axis=1) + (self._speeds + self._starts())[:, np.newaxis]

    def _shift(self, live: Sequence[int], rounds: int, *, alternate: bool) -> Floats:
        """What differs from trial to trial."""
        figures = np.full((len(self._speeds), rounds), np.nan)
        at = self._turns(len(live), rounds, alternate=alternate)
        order = self._rng.permutation(live)
        if alternate:
            order = self._rng.permuted(np.tile(order, (rounds, 1)), axis=1)
            places = order.T
        else:
            places = np.tile(order[:, np.newaxis], (1, rounds))
        round_of = np.broadcast_to(np.arange(rounds), places.shape)
        mood = (self._mood[at + TRIAL_S] - self._mood[at]) / TRIAL_S
        noise = self._rng.normal(0, self._machine.trial_sd, at.shape)
        noise -= SPIKE * (self._rng.random(at.shape) < self._machine.spike_share)
        figures[places, round_of] = noise + self._sensitivities[places] * mood
        self.clock_s += len(live) * (START_S + rounds * TRIAL_S)
        return figures

    def _turns(self, live: int, rounds: int, *, alternate: bool) -> npt.NDArray[np.intp]:
        """When each trial begins: place in the order × round."""
        place, turn = np.arange(live)[:, np.newaxis], np.arange(rounds)
        if alternate:
            return self.clock_s + live * START_S + (turn * live + place) * TRIAL_S
        return self.clock_s + place * (START_S + rounds * TRIAL_S) + START_S + turn * TRIAL_S

    def _starts(self) -> Floats:
        size = len(self._speeds)
        sd = self._machine.start_sd * np.linspace(*self._machine.uneven_starts, size)
        sd[0] *= self._machine.noisy_baseline
        if self._machine.heavy_starts:  # Student's t with 3 degrees of freedom has the variance 3
            drawn: Floats = self._rng.standard_t(3, size) / np.sqrt(3)
        else:
            drawn = self._rng.normal(size=size)
        starts: Floats = sd * drawn
        return starts


def simulate(
    machine: Machine, speeds: Sequence[float], schedule: Schedule, rng: np.random.Generator
) -> LogSpeeds:
    """A study with a fixed plan."""
    study = Simulation(machine, speeds, rng, schedule.seconds(len(speeds)))
    everyone = range(len(speeds))
    blocks = [
        study.block(everyone, schedule.rounds, alternate=schedule.alternate, shift=schedule.shift)
        for _ in range(schedule.blocks)
    ]
    return LogSpeeds(configs(len(speeds)), np.stack(blocks, axis=1))


def _log_speed(machine: Machine, rng: np.random.Generator, seconds: int) -> Floats:
    """Of the machine, second by second, around its long-run mean: there configs have their true speeds."""
    speed: Floats = _wander(machine.wander_sd, rng, seconds) + machine.slow_share * SLOW_SPELL
    if machine.slow_share == 0:
        return speed
    usual_gap = np.mean(SPELL_S) * (1 - machine.slow_share) / machine.slow_share
    count = int(3 * seconds / (usual_gap + np.mean(SPELL_S))) + 20
    gaps, spells = rng.exponential(usual_gap, count), rng.uniform(*SPELL_S, count)
    begins = np.cumsum(gaps + spells) - spells - rng.uniform(0, usual_gap)
    for begin, end in zip(begins.astype(int), (begins + spells).astype(int), strict=True):
        if begin >= seconds:
            break
        speed[max(begin, 0) : max(end, 0)] -= SLOW_SPELL
    return speed


def _wander(sd: float, rng: np.random.Generator, seconds: int) -> Floats:
    """A stationary first-order process, in steps of half a minute with straight lines between."""
    if sd == 0:
        return np.zeros(seconds)
    steps = seconds // 30 + 2
    keep = np.exp(-30 / WANDER_S)
    values = rng.normal(0, sd, steps)
    for step in range(1, steps):
        values[step] = keep * values[step - 1] + np.sqrt(1 - keep**2) * values[step]
    return np.asarray(np.interp(np.arange(seconds), 30 * np.arange(steps), values))

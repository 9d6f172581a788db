"""The bench's clocks. No GPU is needed: a fake stream shows what is sent to a device, in which order, and when."""

from types import ModuleType, SimpleNamespace

import pytest

from bitbench.features.kernels.device import FILLER_BYTES, MOST_FILLERS, Cpu, Cuda, open_device

FILLER_MS = 0.1


class FakeDevice:
    """A stream with two clocks: the host's moves while work is sent off, the device's while it is done, in order."""

    def __init__(self) -> None:
        self.host_ms = self.free_at_ms = 0.0
        self.sent: list[str] = []

    def send(self, name: str, host_ms: float, device_ms: float) -> float:
        """When the device is through with it."""
        self.sent.append(name)
        self.host_ms += host_ms
        self.free_at_ms = max(self.free_at_ms, self.host_ms) + device_ms
        return self.free_at_ms


class FakeEvent:
    def __init__(self, device: FakeDevice) -> None:
        self._device, self.done_at_ms = device, 0.0

    def record(self) -> None:
        self.done_at_ms = self._device.send("event", 0.001, 0.0)

    def query(self) -> bool:
        return self._device.host_ms >= self.done_at_ms

    def synchronize(self) -> None:
        self._device.host_ms = max(self._device.host_ms, self.done_at_ms)

    def elapsed_time(self, other: "FakeEvent") -> float:
        assert self._device.host_ms >= other.done_at_ms, "not waited for"
        return other.done_at_ms - self.done_at_ms


def fake_torch(
    device: FakeDevice, *, l2_bytes: int = 40 * 2**20, sees_gpu: bool = True
) -> ModuleType:
    def event(*, enable_timing: bool) -> FakeEvent:
        assert enable_timing
        return FakeEvent(device)

    def empty(size: int, *, dtype: object, device: str) -> SimpleNamespace:
        assert device == "cuda"
        sizes.append(size)
        return SimpleNamespace(zero_=lambda: stream.send("filler", 0.005, FILLER_MS))

    stream, sizes = device, list[int]()
    torch = ModuleType("torch")
    properties = SimpleNamespace(name="A fake GPU", L2_cache_size=l2_bytes)
    torch.__dict__.update(
        __version__="2.13.0",
        version=SimpleNamespace(cuda="13.0"),
        uint8="uint8",
        empty=empty,
        filler_sizes=sizes,
        cuda=SimpleNamespace(
            Event=event, get_device_properties=lambda _: properties, is_available=lambda: sees_gpu
        ),
    )
    return torch


def test_the_time_is_the_devices_own_in_seconds() -> None:
    device = FakeDevice()
    seconds = Cuda(fake_torch(device)).seconds(lambda: device.send("work", 0.05, 0.02))
    assert seconds == pytest.approx(20e-6)
    assert device.sent == ["filler", "event", "work", "event"]


def test_the_device_is_kept_busy_until_all_of_a_slow_call_is_sent_off() -> None:
    """A call of five launches, 0.1 ms each for the host: the device would wait for the host between them."""
    device = FakeDevice()

    def work() -> None:
        for _ in range(5):
            device.send("work", 0.1, 0.004)

    assert Cuda(fake_torch(device)).seconds(work) == pytest.approx(20e-6)
    assert device.sent.count("filler") == 1 + 2 + 4 + 8
    assert device.sent[-7:] == ["event", *["work"] * 5, "event"]


def test_what_always_waits_for_the_host_is_timed_with_it_after_a_limited_number_of_tries() -> None:
    device = FakeDevice()
    seconds = Cuda(fake_torch(device)).seconds(lambda: device.send("work", 1000.0, 1.0))
    assert seconds == pytest.approx(1.0, abs=0.01)
    assert device.sent.count("filler") == 2 * MOST_FILLERS - 1


def test_each_call_has_a_time_of_its_own() -> None:
    device = FakeDevice()
    clock = Cuda(fake_torch(device))
    times = [clock.seconds(lambda ms=ms: device.send("work", 0.01, ms)) for ms in (0.5, 0.25, 1.0)]  # type: ignore[misc]
    assert times == pytest.approx([5e-4, 2.5e-4, 1e-3])


@pytest.mark.parametrize(
    ("l2_bytes", "wanted"), [(40 * 2**20, FILLER_BYTES), (400 * 2**20, 800 * 2**20)]
)
def test_the_filler_is_larger_than_the_devices_cache(l2_bytes: int, wanted: int) -> None:
    torch = fake_torch(FakeDevice(), l2_bytes=l2_bytes)
    device = open_device("cuda", torch)
    assert torch.filler_sizes == [wanted]
    assert device.cache_bytes == l2_bytes


def test_a_record_names_the_gpu() -> None:
    facts = open_device("cuda", fake_torch(FakeDevice())).facts()
    assert facts == {"device": "cuda", "device_name": "A fake GPU", "cuda": "13.0"}


def test_a_torch_that_sees_no_gpu_is_an_error_with_the_next_step_unless_the_processor_was_asked_for() -> (
    None
):
    torch = fake_torch(FakeDevice(), sees_gpu=False)
    with pytest.raises(
        RuntimeError,
        match=r"torch 2\.13\.0 sees no CUDA device; .*bitbench env create transformers",
    ):
        open_device("cuda", torch)
    assert open_device("cpu", torch).facts() == {"device": "cpu", "device_name": None, "cuda": None}


def test_the_processors_clock_times_the_call_itself() -> None:
    calls: list[int] = []
    assert 0 < Cpu().seconds(lambda: calls.append(1)) < 5
    assert calls == [1]

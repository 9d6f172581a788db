"""Which devices can be planned for: what their vendor publishes about them.

Peak rates are dense ones (the half of those that datasheets give "with sparsity"), of the tensor cores; memory is what
the driver reports, which is less than the number in the name.
"""

from bitbench.features.gpu_plan.types import DeviceClass
from bitbench.util.errors import UsageError
from bitbench.util.near_miss import did_you_mean

_GB = 1e9
_TERA = 1e12
_MIB = 2**20

DEVICE_CLASSES = {
    device.name: device
    for device in (
        DeviceClass(
            name="h100-80gb",
            title="NVIDIA H100 SXM 80 GB",
            capability="9.0",
            memory_bytes=81_559 * _MIB,
            read_bytes_per_s=3_350 * _GB,
            flops_per_s=989 * _TERA,
            int8_ops_per_s=1_979 * _TERA,
            fp8_flops_per_s=1_979 * _TERA,
        ),
        DeviceClass(
            name="a100-80gb",
            title="NVIDIA A100 SXM 80 GB",
            capability="8.0",
            memory_bytes=81_920 * _MIB,
            read_bytes_per_s=2_039 * _GB,
            flops_per_s=312 * _TERA,
            int8_ops_per_s=624 * _TERA,
        ),
        DeviceClass(
            name="l4",
            title="NVIDIA L4",
            capability="8.9",
            memory_bytes=23_034 * _MIB,
            read_bytes_per_s=300 * _GB,
            flops_per_s=121 * _TERA,
            int8_ops_per_s=242 * _TERA,
            fp8_flops_per_s=242 * _TERA,
        ),
        DeviceClass(
            name="t4",
            title="NVIDIA T4",
            capability="7.5",
            memory_bytes=15_360 * _MIB,
            read_bytes_per_s=320 * _GB,
            flops_per_s=65 * _TERA,
            int8_ops_per_s=130 * _TERA,
        ),
    )
}


def device_class(name: str) -> DeviceClass:
    """Raises UsageError."""
    if name not in DEVICE_CLASSES:
        raise UsageError(
            f"--device-class {name}: {did_you_mean(name, DEVICE_CLASSES)}known are {', '.join(DEVICE_CLASSES)}"
        )
    return DEVICE_CLASSES[name]

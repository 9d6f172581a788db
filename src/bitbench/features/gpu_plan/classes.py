"""Which devices can be planned for: what their vendor publishes about them.

Peak rates are dense ones (the half of those that datasheets give "with sparsity"), of the tensor cores, which
add up in 32 bits (on GeForce cards that halves them); memory is what the driver reports, which is less than the number
in the name.
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
            name="b200",
            title="NVIDIA B200 180 GB",
            capability="10.0",
            memory_bytes=183_359 * _MIB,
            read_bytes_per_s=8_000 * _GB,
            flops_per_s=2_250 * _TERA,
            int8_ops_per_s=4_500 * _TERA,
            fp8_flops_per_s=4_500 * _TERA,
        ),
        DeviceClass(
            name="h200",
            title="NVIDIA H200 SXM 141 GB",
            capability="9.0",
            memory_bytes=143_771 * _MIB,
            read_bytes_per_s=4_800 * _GB,
            flops_per_s=989 * _TERA,
            int8_ops_per_s=1_979 * _TERA,
            fp8_flops_per_s=1_979 * _TERA,
        ),
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
            name="l40s",
            title="NVIDIA L40S",
            capability="8.9",
            memory_bytes=46_068 * _MIB,
            read_bytes_per_s=864 * _GB,
            flops_per_s=362 * _TERA,
            int8_ops_per_s=733 * _TERA,
            fp8_flops_per_s=733 * _TERA,
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
            name="a10",
            title="NVIDIA A10",
            capability="8.6",
            memory_bytes=23_028 * _MIB,
            read_bytes_per_s=600 * _GB,
            flops_per_s=125 * _TERA,
            int8_ops_per_s=250 * _TERA,
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
        DeviceClass(
            name="rtx5090",
            title="NVIDIA GeForce RTX 5090",
            capability="12.0",
            memory_bytes=32_607 * _MIB,
            read_bytes_per_s=1_792 * _GB,
            flops_per_s=209.5 * _TERA,
            int8_ops_per_s=838 * _TERA,
            fp8_flops_per_s=419 * _TERA,
        ),
        DeviceClass(
            name="rtx4090",
            title="NVIDIA GeForce RTX 4090",
            capability="8.9",
            memory_bytes=24_564 * _MIB,
            read_bytes_per_s=1_008 * _GB,
            flops_per_s=165.2 * _TERA,
            int8_ops_per_s=660.6 * _TERA,
            fp8_flops_per_s=330.3 * _TERA,
        ),
        DeviceClass(
            name="rtx3090",
            title="NVIDIA GeForce RTX 3090",
            capability="8.6",
            memory_bytes=24_576 * _MIB,
            read_bytes_per_s=936 * _GB,
            flops_per_s=71 * _TERA,
            int8_ops_per_s=284 * _TERA,
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

"""Whether the chip is throttled while it is timed, as its management library tells. Optional.

Only reads; never sets clocks or limits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

# Bits of nvmlDeviceGetCurrentClocksEventReasons that mean «slower than asked»; idle and application clocks do not.
_REASONS = {
    0x4: "power cap",
    0x8: "hardware slow-down",
    0x20: "thermal (software)",
    0x40: "thermal (hardware)",
    0x80: "power brake",
}


@dataclass(frozen=True)
class ChipState:
    """Reasons why the chip is slowed now (empty: none), and its SM and memory clocks in MHz where known."""

    reasons: tuple[str, ...] = ()
    sm_mhz: int | None = None
    memory_mhz: int | None = None


def sm_clocks(states: Iterable[ChipState]) -> list[int]:
    """The SM clocks that are known, in MHz, from the lowest to the highest."""
    return sorted(state.sm_mhz for state in states if state.sm_mhz)


def median_sm_clock(states: Iterable[ChipState]) -> int | None:
    """The SM clock of the median state that tells one, in MHz; None where none does."""
    clocks = sm_clocks(states)
    return clocks[len(clocks) // 2] if clocks else None


class Governor(Protocol):
    """Whoever can tell the chip's state."""

    def state(self) -> ChipState | None:
        """The state now, or None if it is not known."""


class NoGovernor:
    """For devices whose state nobody can tell."""

    def state(self) -> ChipState | None:
        """Not known."""
        return None


class NvmlGovernor:
    """The NVIDIA management library, through `pynvml` (package nvidia-ml-py)."""

    def __init__(self, library: Any, handle: Any) -> None:
        self._nvml = library
        self._handle = handle

    def state(self) -> ChipState | None:
        """Reasons and clocks now."""
        nvml = self._nvml
        try:
            bits = int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle))
            sm = int(nvml.nvmlDeviceGetClockInfo(self._handle, nvml.NVML_CLOCK_SM))
            memory = int(nvml.nvmlDeviceGetClockInfo(self._handle, nvml.NVML_CLOCK_MEM))
        except nvml.NVMLError:
            return None
        return ChipState(tuple(text for bit, text in _REASONS.items() if bits & bit), sm, memory)


def make_governor(device: str) -> Governor:
    """The governor of a device; `NoGovernor` where there is no library or no permission."""
    if not device.startswith("cuda"):
        return NoGovernor()
    try:
        import pynvml
        import torch

        pynvml.nvmlInit()
        index = torch.device(device).index or 0
        # Indices of the two libraries differ once CUDA_VISIBLE_DEVICES is set; the UUID does not.
        uuid = f"GPU-{torch.cuda.get_device_properties(index).uuid}"
        return NvmlGovernor(pynvml, pynvml.nvmlDeviceGetHandleByUUID(uuid))
    except Exception:  # an optional reader must never stop a measurement
        return NoGovernor()

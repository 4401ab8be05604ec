"""Processes that end with the process that started them: a killed one leaves none behind."""

from __future__ import annotations

import ctypes
import signal
import sys

_SET_PARENT_DEATH_SIGNAL = 1
"""`PR_SET_PDEATHSIG` in Linux' sys/prctl.h."""
_C = ctypes.CDLL(None) if sys.platform == "linux" else None


def end_with_parent(number: int = signal.SIGKILL) -> None:
    """Let Linux send this process a signal when its parent ends, however that happens.

    Also after `exec`, so it may be called between fork and exec. A launcher that is killed cannot
    end its processes itself. Elsewhere than on Linux nothing changes.
    """
    if _C is not None:
        _C.prctl(_SET_PARENT_DEATH_SIGNAL, int(number), 0, 0, 0)

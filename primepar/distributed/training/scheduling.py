"""How the operating system schedules the threads of a process that communicates by gloo.

A thread that posts a message holds a lock of gloo while it writes to the socket. The write wakes
the thread of gloo that receives, which tries the lock again and again until it is free. Where there
are more processes than cores, Linux often lets the woken thread preempt the one that has the lock.
Then it spins for the rest of its time slice, up to some milliseconds. A thread under SCHED_BATCH
does not preempt when it is woken.
"""

from __future__ import annotations

import os
from contextlib import suppress


def schedule_as_batch() -> None:
    """Run this thread, and the threads that it starts from now on, under SCHED_BATCH on Linux.

    Call it before gloo starts its threads. It needs no rights. Where the operating system does not
    have the policy, or does not allow it, nothing changes.
    """
    if hasattr(os, "SCHED_BATCH"):
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))

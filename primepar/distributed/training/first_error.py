"""One line about a failure in the middle of a run, whichever ranks it reaches."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from primepar.distributed.training.agreement import is_first
from primepar.distributed.training.failures import failure_of, is_lost_peer
from primepar.distributed.training.watchdog import Watchdog
from primepar.errors import PrimeParError

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store


@contextmanager
def first_error(store: Store, rank: int, watchdog: Watchdog) -> Iterator[None]:
    """Report an error that ranks meet on their own once: the first rank to fail raises it.

    A rank that fails later, or because another has ended, waits for the launcher to end the job,
    and exits without a message. Where nobody ends it, it reports the other's end itself. An error
    that is no user's error, with its traceback, is raised on each rank.
    """
    try:
        yield
    except Exception as raised:
        where = watchdog.activity.text
        watchdog.activity.fail()
        error = raised if isinstance(raised, PrimeParError) else failure_of(raised, rank, where)
        lost = is_lost_peer(raised)
        if lost:
            time.sleep(watchdog.grace)
        # Without the store the watchdog still knows whether a rank has reported an error before.
        first = not watchdog.exchange.failed and is_first(store, watchdog.reports_alone)
        if first or error is None:
            watchdog.leaving = True  # this rank has a message, and must not be ended before it
        if error is None:
            raise
        if not first:
            time.sleep(0.0 if lost else watchdog.grace)
            raise SystemExit(error.exit_code) from None
        raise error from None

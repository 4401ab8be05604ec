"""The scheduling policy of processes that communicate by gloo."""

import os
import subprocess
import sys

import pytest

SCRIPT = """
import os, threading
from primepar.distributed.training.scheduling import schedule_as_batch
schedule_as_batch()
policies = [os.sched_getscheduler(0)]
thread = threading.Thread(target=lambda: policies.append(os.sched_getscheduler(0)))
thread.start()
thread.join()
print(policies == [os.SCHED_BATCH] * 2)
"""


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="a policy of Linux")
def test_a_process_and_its_later_threads_run_as_batch_work() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_nothing_changes_where_the_policy_is_not_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    from primepar.distributed.training.scheduling import schedule_as_batch

    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    before = os.sched_getscheduler(0)
    monkeypatch.setattr(os, "sched_setscheduler", refuse, raising=False)
    schedule_as_batch()
    assert os.sched_getscheduler(0) == before

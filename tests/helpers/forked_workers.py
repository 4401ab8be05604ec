"""`pytest --workers N`: tests are collected once, then N forks run them, a file at a time.

A worker that is a new process (pytest-xdist) imports and collects everything again, which takes as
long as a twentieth of all tests. A fixture of a module is made once, as its tests are in one fork.
"""

from __future__ import annotations

import os
import sys
from array import array
from itertools import groupby, zip_longest
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, Never
from warnings import WarningMessage

import pytest

MOST = 200
"""Tests of a file that one fork runs; the others of a longer one are left to the next fork."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the number of forks."""
    parser.addoption("--workers", type=int, default=0, help="forks that run the tests; 0: none")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Fork the workers, and report what they send; without workers pytest goes on as ever."""
    config = session.config
    if not config.option.workers or config.option.collectonly or session.testsfailed:
        return None
    config.pluginmanager.getplugin("terminalreporter").showfspath = False
    if "distributed_ranks" in sys.modules:  # a test that was collected needs ranks
        sys.modules["distributed_ranks"].serve_forks()
    config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]  # one for all forks
    of_files = [list(items) for _, items in groupby(session.items, lambda item: item.path)]
    files = [items[start : start + MOST] for items in of_files
             for start in range(0, len(items), MOST)]  # fmt: skip
    queue, fill = os.pipe()
    os.write(fill, array("H", range(len(files))).tobytes())  # a pipe holds 32,768 of them
    os.close(fill)
    workers = {}
    for _ in range(config.option.workers):
        here, there = Pipe(duplex=False)
        pid = os.fork()
        if pid == 0:
            _work(session, files, queue, there)
        there.close()
        workers[here] = pid
    begun = dict[Connection, pytest.Item]()
    while workers:
        for end in wait(list(workers)):
            assert isinstance(end, Connection)
            try:
                what, given = end.recv()
            except EOFError:
                what, given = "end", os.waitstatus_to_exitcode(os.waitpid(workers.pop(end), 0)[1])
                if end in begun:
                    _died(begun[end], given)
            if what == "begin":
                begun[end] = session.items[given]
            elif what == "warning":
                config.hook.pytest_warning_recorded.call_historic(kwargs=given)
            elif what == "report":
                report = config.hook.pytest_report_from_serializable(config=config, data=given)
                config.hook.pytest_runtest_logreport(report=report)
                if report.when == "teardown":
                    item = begun.pop(end)
                    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    if session.shouldfail:
        raise session.Failed(session.shouldfail)
    return True


def _died(item: pytest.Item, code: int) -> None:
    text = f"the worker ended with {code} in this test, and runs no other one of its file"
    report = pytest.TestReport(item.nodeid, item.location, {}, "failed", text, "call")
    item.ihook.pytest_runtest_logreport(report=report)


class _Sender:
    """Takes the place of the terminal in a fork."""

    def __init__(self, config: pytest.Config, end: Connection) -> None:
        self.config, self.end = config, end

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self.config.hook.pytest_report_to_serializable(config=self.config, report=report)
        self.end.send(("report", data))

    def pytest_warning_recorded(
        self, warning_message: WarningMessage, when: str, nodeid: str, location: Any
    ) -> None:
        warning_message.source = None  # the object that was not closed stays here
        given = {"warning_message": warning_message, "when": when, "nodeid": nodeid}
        self.end.send(("warning", {**given, "location": location}))


def _work(
    session: pytest.Session, files: list[list[pytest.Item]], queue: int, end: Connection
) -> Never:
    """Run files until none is left, or a test failed that is to be the last one."""
    code = 1
    try:
        plugins = session.config.pluginmanager
        capture = plugins.getplugin("capturemanager")
        capture.stop_global_capturing()  # its files are the parent's, and those of other forks
        capture.start_global_capturing()
        plugins.unregister(name="terminalreporter")
        plugins.register(_Sender(session.config, end))
        places = {item: place for place, item in enumerate(session.items)}
        while taken := os.read(queue, 2):
            items = files[array("H", taken)[0]]
            for item, following in zip_longest(items, items[1:]):
                end.send(("begin", places[item]))
                session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                if session.shouldfail:
                    os.read(queue, 65_536)  # the others begin no other file
                    break
        code = 0
    finally:
        os._exit(code)

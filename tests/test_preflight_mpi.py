"""Scripts of mpi4py, unmodified: proved, and refuted with the line that was changed."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import run

from primepar.errors import CaptureError
from primepar.preflight.mpi import capture
from primepar.preflight.mpi.capture import preflight_mpi
from primepar.preflight.mpi.stand_in import compute_dims
from primepar.schedule.program import Group, Program, Recv, SplitCommunicator
from primepar.verify.report import Report

SCRIPTS = Path(__file__).with_name("preflight_scripts") / "mpi"
HEAD = "import numpy as np\nfrom mpi4py import MPI\ncomm = MPI.COMM_WORLD\nrank = comm.rank\n"


def judged(path: Path, ranks: int, *arguments: str) -> tuple[Program, Report]:
    return preflight_mpi(path, arguments, ranks, limit=20, timeout=20)


def script(folder: Path, text: str) -> Path:
    path = folder / "script.py"
    path.write_text(HEAD + text)
    return path


def deadlock(report: Report) -> str:
    result = report["deadlock-freedom"]
    assert result.verdict == "refuted"
    return result.counterexample or ""


def test_a_ring_is_proved_by_the_command() -> None:
    done = run("preflight", "--mpi", "-n", "3", str(SCRIPTS / "ring.py"))
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[0].endswith("ring.py: proved on 3 ranks, 21 instructions")


def test_a_ring_with_two_lines_exchanged_is_refuted_with_them(tmp_path: Path) -> None:
    text = (SCRIPTS / "ring.py").read_text()
    receive, wait = [line for line in text.splitlines() if ".Recv(" in line or ".Wait(" in line]
    path = tmp_path / "ring.py"
    path.write_text(text.replace(f"{receive}\n{wait}", f"{wait}\n{receive}"))
    _, report = judged(path, 3)
    assert deadlock(report).splitlines()[1] == (
        f"  rank 0 waits in instruction 1 (wait request0) at {path}:14 for rank 1 to reach "
        f"instruction 2 (recv buffer1 <- 0) at {path}:15"
    )


def test_a_master_is_run_once_for_each_order_of_its_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program, report = judged(SCRIPTS / "workers.py", 3, "2")
    assert report.verdict == "proved"
    assert any(isinstance(node, Recv) and node.peer == -1 for node in program.programs[0])
    monkeypatch.setattr(capture, "MOST_RUNS", 1)
    bounded = judged(SCRIPTS / "workers.py", 3, "2")[1]
    assert bounded.verdict == "unknown"
    assert bounded["matchings"].reason == ("its receives from any rank match in more than 1 ways")


def test_a_branch_that_only_one_order_takes_is_found(tmp_path: Path) -> None:
    path = script(tmp_path, """
if rank == 0:
    first = comm.recv(source=MPI.ANY_SOURCE)
    second = comm.recv(source=2, tag=0 if first == 1 else 5)
else:
    comm.send(rank, dest=0)
""")  # fmt: skip
    assert deadlock(judged(path, 3)[1]) == (
        f"rank 0, instruction 1 (recv object1 <- 2) at {path}:8: expected a send to rank 0 on rank "
        "2 with tag 5 to match, got none that is left: add it there, or remove this one\n"
        f"  where rank 0, instruction 0 (recv object0 <- any) at {path}:7 takes rank 2, "
        f"instruction 0 (send object0 -> 0) at {path}:10\n"
        f"  the run stops with rank 0 in instruction 1 (recv object1 <- 2) at {path}:8"
    )


EVERYTHING = """
size = comm.size
mine = np.array([rank + 1, 10 * (rank + 1)], dtype="i4")
total, all_of_it = np.empty(2, "i4"), np.empty((size, 2), "i4")
comm.Allreduce([mine, MPI.INT], [total, MPI.INT], op=MPI.SUM)
assert total.tolist() == [6, 60]
comm.Iallreduce(MPI.IN_PLACE, mine.copy(), op=MPI.MAX).Wait()
comm.Allgather(mine, all_of_it)
assert all_of_it[:, 0].tolist() == [1, 2, 3]
before = np.zeros(2, "i4")
comm.Exscan(mine, before)
assert before.tolist() == [[0, 0], [1, 10], [3, 30]][rank]
comm.Scan(mine, before)
assert before[0] == [1, 3, 6][rank]
out = np.arange(6, dtype="i4") if rank == 1 else None
part = np.empty(rank + 1, "i4")
comm.Scatterv([out, (1, 2, 3), (0, 1, 3), MPI.INT], part, root=1)
assert part.tolist() == [[0], [1, 2], [3, 4, 5]][rank]
back = np.empty(6, "i4") if rank == 2 else None
comm.Gatherv(part, [back, (1, 2, 3)], root=2)
assert rank != 2 or back.tolist() == list(range(6))
sent, got = np.arange(3.0) + 10 * rank, np.empty(3)
comm.Alltoall(sent, got)
assert got.tolist() == [rank, rank + 10, rank + 20]
small = np.empty(1)
comm.Reduce_scatter_block(np.ones(3) * rank, small)
assert small[0] == 3
values = comm.alltoall([(rank, other) for other in range(size)])
assert values == [(other, rank) for other in range(size)]
assert comm.scan(rank) == [0, 1, 3][rank] and comm.exscan(1) == [None, 1, 2][rank]
assert comm.gather(rank, root=1) == ([0, 1, 2] if rank == 1 else None)
assert comm.scatter([[5], [6], [7]] if rank == 0 else None) == [5 + rank]
assert comm.bcast({"a": 1} if rank == 2 else None, root=2) == {"a": 1}
assert comm.reduce(2.0, op=MPI.PROD) == (8.0 if rank == 0 else None)

grid = comm.Create_cart([3], periods=[True])
left, right = grid.Shift(0, 1)
assert (left, right) == ((rank - 1) % 3, (rank + 1) % 3)
assert grid.sendrecv(rank, dest=right, source=left) == left
line = comm.Create_cart([3])
assert line.Shift(0, 1)[0] == (MPI.PROC_NULL if rank == 0 else rank - 1)
line.Sendrecv_replace(small, dest=line.Shift(0, 1)[1], source=line.Shift(0, 1)[0])
low = comm.Split(color=0 if rank < 2 else MPI.UNDEFINED, key=-rank)
assert low is None or low.allgather(rank) == [1, 0]
pair = comm.Get_group().Incl([0, 2])
if rank != 1:
    assert comm.Create_group(pair).allreduce(rank) == 2
starts = [comm.Send_init(mine, dest=right, tag=3), comm.Recv_init(before, source=left, tag=3)]
for _ in range(2):
    MPI.Prequest.Startall(starts)
    MPI.Request.Waitall(starts)
status = MPI.Status()
requests = [comm.irecv(source=left, tag=8), comm.isend("x" * rank, dest=right, tag=8)]
assert MPI.Request.waitall(requests)[0] == "x" * left
request = comm.Ibcast(total, root=0)
comm.Bsend(mine, dest=right, tag=1)
comm.Recv(before, source=left, tag=1, status=status)
assert (status.Get_source(), status.Get_tag(), status.Get_count(MPI.INT)) == (left, 1, 2)
request.Wait()
"""


def test_every_call_has_its_values(tmp_path: Path) -> None:
    program, report = judged(script(tmp_path, EVERYTHING), 3)
    assert report.verdict == "proved", str(report)
    kinds = {type(node) for nodes in program.programs for node in nodes}
    assert {Group, SplitCommunicator} <= kinds


WRONG = {
    "comm.Bcast(np.empty(2), root=rank)": "expected root 0 as in rank 0, instruction 0",
    "comm.Bcast(np.empty(2 + rank), root=0)": "expected count 2 as in rank 0, instruction 0",
    "comm.Ibarrier().Wait() if rank else comm.Barrier()": "MPI matches neither with the other",
    "comm.Send(np.ones(3), 1) if rank == 0 else comm.Recv(np.empty(2))":
        "expected count 3 as in rank 0, instruction 0 (send buffer0 -> 1)",
    "comm.send([1], 1) if rank == 0 else comm.Recv(np.empty(2), 0)":
        "expected dtype pickled object as in rank 0, instruction 0 (send object0 -> 1)",
    "comm.Recv(np.empty(1), 1 - rank, tag=2); comm.Send(np.ones(1), 1 - rank, tag=2)":
        "expected a send to rank 0 on rank 1 with tag 2 to match",
    "comm.allreduce(1, op=MPI.PROD if rank else MPI.SUM)": "expected dtype pickled object as in",
}  # fmt: skip


@pytest.mark.parametrize("line", WRONG)
def test_what_ranks_do_not_agree_on_is_refuted(tmp_path: Path, line: str) -> None:
    assert WRONG[line] in deadlock(judged(script(tmp_path, line), 2)[1])


def test_what_is_not_modelled_is_named_and_proves_nothing(tmp_path: Path) -> None:
    path = script(tmp_path, "comm.barrier()\nMPI.Win.Allocate(8)\n")
    report = judged(path, 2)[1]
    assert report.verdict == "unknown"
    assert report["modelled"].reason == f"{path}:6: rank 0 uses MPI.Win, which is not modelled"
    tested = script(tmp_path, "comm.isend(1, 1 - rank).test()\ncomm.recv(source=1 - rank)\n")
    assert judged(tested, 2)[1]["modelled"].reason == (
        f"{path}:5: rank 0 tests whether a request is done, which depends on the time"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 / (1 - rank)", "{}: expected rank 1 to run to its end, got ZeroDivisionError: division "
         "by zero at {}:5: correct it there, or give the script its arguments after its name"),
        ("pass", "{}: expected a script that communicates through mpi4py, got no call on any of 2 "
         "ranks: call it at the top level"),
        ("while rank:\n    pass", "{}: expected rank 1 to end within 0.5 s, got no end at {}:{}: "
         "run fewer steps, or give more time with --limit"),
    ],
)  # fmt: skip
def test_a_wrong_script_ends_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = script(tmp_path, text)
    with pytest.raises(CaptureError) as caught:
        preflight_mpi(path, (), 2, limit=0.5, timeout=5)
    assert str(caught.value) in {message.format(path, path, line) for line in (5, 6)}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--repair", "x.json"), "--repair: expected a script of torch, as mpi4py's calls have no "
         "order of streams and no recorded dependence of data, got x.json with --mpi: leave it "
         "out"),
        ((), "--ranks: expected the number of ranks of {}, got none: write -n 4 before it"),
    ],
)  # fmt: skip
def test_wrong_options_end_in_one_line(arguments: tuple[str, ...], message: str) -> None:
    path = SCRIPTS / "ring.py"
    done = run("preflight", "--mpi", *arguments, str(path))
    assert (done.code, done.err.strip()) == (2, "primepar: error: " + message.format(path))


def test_dims_are_as_equal_as_can_be() -> None:
    assert [compute_dims(12, 2), compute_dims(8, 3), compute_dims(12, [0, 3])] == [
        [4, 3], [2, 2, 2], [4, 3],
    ]  # fmt: skip

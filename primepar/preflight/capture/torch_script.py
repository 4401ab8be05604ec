"""Runs a script of torch on one rank, with a process group that only records.

The script finds what torchrun would give it: `RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `MASTER_ADDR` and
`MASTER_PORT`. The name of its backend is kept for those who ask, such as FSDP.
"""

from __future__ import annotations

import os
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial, wraps
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import Distribution, DistributionFinder, MetadataPathFinder
from importlib.util import spec_from_file_location
from linecache import getline
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from zlib import crc32

import numpy.random
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, _resolve_process_group
from torch.distributed import _symmetric_memory
from torch.distributed import distributed_c10d as c10d
from torch.distributed.algorithms.join import Join
from torch.distributed.distributed_c10d import GroupName
from torch.nn.parallel import DistributedDataParallel

from primepar.preflight.capture.marked_numbers import watch_numbers
from primepar.preflight.capture.pretended_files import PretendedFiles
from primepar.preflight.capture.pretended_gpu import PretendedGpus
from primepar.preflight.capture.process_group import RecordedGroup
from primepar.preflight.capture.recorder import RankRecorder, RanOutOfMemoryError
from primepar.preflight.capture.runner import NeverComesError, RankLink
from primepar.preflight.capture.source_lines import caller, is_users, line_of, shown, source_line
from primepar.preflight.capture.user_code import run_user_code
from primepar.preflight.capture.watched_operations import WatchedOperations
from primepar.preflight.meaning.hooks import GradientHooks
from primepar.preflight.recording import GroupCreation, RankRecording, Turns

BACKEND = "preflight"
_STAND_INS = Path(__file__).parents[1] / "stand_ins"


def run_script(
    script: Path, arguments: Sequence[str], rank: int, ranks: int, link: RankLink, gpu: bool = True,
    turns: Turns | None = None, folder: Path | None = None, shrink: bool = False,
) -> RankRecording:  # fmt: skip
    """Return what a script does on one rank, until its end or where it raises.

    `turns` are the values that are others; what it writes goes into a `folder`. What it prints is
    not shown, as sums over ranks are other numbers here. With `shrink` large tensors have none.
    """
    recorder = RankRecorder(link, rank, turns)
    recorder.shrinks = shrink
    _environment(rank, ranks)
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.parent))
    torch.set_num_threads(1)
    # Ranks are forked from one process; those of a run do not draw the same numbers by themselves.
    torch.default_generator.manual_seed(2**32 + rank)
    numpy.random.seed(rank)
    random.seed(rank)
    _StandIns(recorder, rank, ranks).install()
    gpus = PretendedGpus(recorder.buffers, ranks) if gpu else None
    if gpus is not None:
        gpus.install()
        recorder.recording.pretended = gpus.asked
        sys.meta_path.append(StandInPackages(gpus.note))
    numbers = watch_numbers(recorder)
    if folder is not None:
        files = PretendedFiles(folder, recorder)
        files.install()
        recorder.publish = files.publish
    try:
        GradientHooks(recorder.terms).install()
        with WatchedOperations(recorder, gpus), numbers:
            run_user_code(script, recorder)
    except NeverComesError:
        pass
    except SystemExit as end:
        if end.code not in (None, 0):
            _ended(recorder.recording, end)
    except Exception as error:
        _ended(recorder.recording, error)
    recorder.finish()
    return recorder.recording


@cache
def importers() -> dict[str, list[ModuleType]]:
    """The modules of torch that have imported what is replaced; asked once, before ranks fork."""
    names = ("init_process_group", "new_group", "get_backend", "batch_isend_irecv")
    originals = {name: getattr(c10d, name) for name in names}
    torches = [vars(one) | {"": one} for name, one in sys.modules.copy().items()
               if name.startswith("torch") and isinstance(one, ModuleType)]  # fmt: skip
    return {
        name: [module[""] for module in torches if module.get(name) is original]
        for name, original in originals.items()
    }


def _environment(rank: int, ranks: int) -> None:
    os.environ |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(ranks),
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(ranks),
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
        "TORCHDYNAMO_DISABLE": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)


def _ended(recording: RankRecording, error: BaseException) -> None:
    """Note the exception that ended a script, and the innermost line of it in the user's files."""
    traceback, source = error.__traceback__, ""
    causes = [error]
    while causes[-1].__context__ is not None:
        causes.append(causes[-1].__context__)
    while traceback is not None:
        path = traceback.tb_frame.f_code.co_filename
        text = getline(path, traceback.tb_lineno).strip() if is_users(path) else ""
        recording.ended_by_script = text.startswith(("raise", "assert")) or "exit(" in text
        if is_users(path):
            source = f"{shown(path)}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    recording.ended_by_script |= any(isinstance(cause, RanOutOfMemoryError) for cause in causes)
    source = source or line_of(error.__traceback__.tb_frame if error.__traceback__ else None)
    if isinstance(error, SyntaxError) and error.filename:
        source = f"{error.filename}:{error.lineno}"
    message = " ".join(str(error).split())
    kind = type(error).__name__
    recording.ended, recording.ended_at = f"raises {kind}: {message}" if message else kind, source


class StandInPackages(MetaPathFinder, Loader):
    """Finds what needs a GPU to be installed, and is not, in `stand_ins`: one file for a package.

    Each of its sub-modules has the same names. Libraries that can do without are given none, but
    for flash_attn, which a script chooses by an option of theirs.
    """

    def __init__(self, note: Callable[[str], None]) -> None:
        self.note = note

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        """Called after all other finders have failed."""
        package, _, inside = fullname.partition(".")
        file = str(_STAND_INS / f"{package}.py")
        if inside:
            spec = getattr(sys.modules.get(package), "__spec__", None)
            same = spec is not None and spec.origin == file
            return ModuleSpec(fullname, self, is_package=True) if same else None
        if not Path(file).is_file() or not (package == "flash_attn" or is_users(caller())):
            return None
        self.note(f"package {package}")
        return spec_from_file_location(package, file, submodule_search_locations=[])

    def create_module(self, spec: ModuleSpec) -> None:
        """A plain module."""

    def exec_module(self, module: ModuleType) -> None:
        """Give a sub-module the names of its package."""
        names = vars(sys.modules[module.__name__.partition(".")[0]])
        kept = {n: one for n, one in names.items() if n == "__getattr__" or n[:2] != "__"}
        vars(module).update(kept)

    def find_distributions(self, context: Any = None) -> Iterable[Distribution]:
        """The versions of what they take the place of."""
        place = DistributionFinder.Context(name=context and context.name, path=[str(_STAND_INS)])
        return MetadataPathFinder.find_distributions(place)


class _StandIns:
    """Functions of `torch.distributed` that need other processes, and their replacements."""

    def __init__(self, recorder: RankRecorder, rank: int, ranks: int) -> None:
        self.recorder, self.rank, self.ranks = recorder, rank, ranks
        self.asked_backend = "gloo"
        self.created: Counter[tuple[int, ...]] = Counter()
        """Members -> the groups that they have."""

    def install(self) -> None:
        """Replace them, in all modules that have their names already."""
        if BACKEND not in dist.Backend.backend_list:
            dist.Backend.register_backend(
                BACKEND, self._create, extended_api=True, devices=["cpu", "cuda", "meta"]
            )
        torch.cuda.nccl.version = lambda: (0, 0, 0)
        for name, modules in importers().items():
            original = getattr(c10d, name)
            stand_in = wraps(original)(partial(getattr(self, f"_{name}"), original))
            for module in modules:
                setattr(module, name, stand_in)
        for module in (torch.multiprocessing, sys.modules["torch.multiprocessing.spawn"]):
            vars(module)["spawn"] = self._spawn
        # Its memory is the rank's own here. Torch's functions are found when they are called.
        vars(_symmetric_memory).update(
            empty=lambda *size, **named: torch.empty(*size, **named), rendezvous=self._rendezvous
        )
        # DDP under `Join` posts these, and waits for none.
        joins: Any = Join
        joins.notify_join_context = staticmethod(self._dropping(Join.notify_join_context))
        replicas: Any = DistributedDataParallel
        name = "_check_global_requires_backward_grad_sync"
        setattr(replicas, name, self._dropping(getattr(replicas, name)))

    def _dropping(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def posts(*args: Any, **named: Any) -> Any:
            before = len(self.recorder.open_works)
            result = original(*args, **named)
            for work in self.recorder.open_works[before:]:
                work.waits_itself = True
            return result

        return posts

    def _create(self, options: Any, _: Any) -> RecordedGroup:
        members = tuple(options.global_ranks_in_group) or tuple(range(self.ranks))
        # A group is known by its members and its place among theirs. Its name in torch counts all
        # creations of a process, so that ranks that create others would never meet.
        name = "world" if not options.global_ranks_in_group else (
            f"{crc32(str(members).encode()):08x}.{self.created[members]}"
        )  # fmt: skip
        self.created[members] += 1
        return RecordedGroup(self.recorder, name, members)

    def _init_process_group(
        self, original: Callable[..., None], backend: str | None = None,
        init_method: str | None = None, timeout: Any = None, world_size: int = -1, rank: int = -1,
        store: Any = None, *_: Any, **__: Any,
    ) -> None:  # fmt: skip
        self.asked_backend = (backend or "gloo").lower()
        original(
            BACKEND,
            store=HashStore(),
            rank=self.rank if rank == -1 else rank,
            world_size=self.ranks if world_size == -1 else world_size,
        )

    def _new_group(
        self, original: Callable[..., Any], ranks: Any = None, timeout: Any = None,
        backend: Any = None, pg_options: Any = None, use_local_synchronization: bool = False,
        *rest: Any, **named: Any,
    ) -> Any:  # fmt: skip
        members = tuple(range(self.ranks)) if ranks is None else tuple(ranks)
        if not use_local_synchronization:
            self.recorder.recording.groups.append(GroupCreation(members, source_line()))
        if self.rank not in members:  # a mesh of many ranks has many groups of others
            return dist.GroupMember.NON_GROUP_MEMBER
        group = original(ranks, None, None, None, use_local_synchronization, *rest, **named)
        if isinstance(group, RecordedGroup) and backend:
            group.asked_backend = str(backend).lower()
        return group

    def _rendezvous(self, _: torch.Tensor, group: Any) -> SimpleNamespace:
        """Exchange the handles of symmetric memory: all members of the group wait for one another.

        What others hold in theirs is not to be read.
        """
        members = _resolve_process_group(GroupName(group)) if isinstance(group, str) else group

        def barrier(*_: Any, **__: Any) -> None:
            members.barrier().wait()

        barrier()
        return SimpleNamespace(rank=members.rank(), world_size=members.size(), barrier=barrier)

    def _spawn(
        self, fn: Callable[..., None], args: Sequence[Any] = (), nprocs: int = 1, *_: Any, **__: Any
    ) -> None:
        """Be one of the processes that a script starts: this rank's."""
        if nprocs != self.ranks:
            raise ValueError(f"spawns {nprocs} processes, of {self.ranks} ranks: start it with "
                             f"-n {nprocs}")  # fmt: skip
        fn(self.rank, *args)

    def _get_backend(self, original: Callable[..., str], group: Any = None) -> str:
        original(group)
        name = getattr(group, "asked_backend", "") or self.asked_backend
        return name.rpartition(":")[2] if ":" in name else name

    def _batch_isend_irecv(
        self, _: Callable[..., Any], p2p_op_list: list[dist.P2POp]
    ) -> list[dist.Work]:
        """Start messages together: one work, as with NCCL, once for each of them."""
        c10d._check_p2p_op_list(p2p_op_list)
        group = p2p_op_list[0].group or c10d._get_default_group()
        assert isinstance(group, RecordedGroup)
        return [group.batch(p2p_op_list)] * len(p2p_op_list)

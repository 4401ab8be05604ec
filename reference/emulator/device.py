"""An emulated device: a private memory that no other device can read.

Data leaves it only in messages. A block that a message uses is in flight from its post to its wait.
A block being sent may be read but not changed; one being received may not be used at all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate, combinations

from primepar.errors import DeviceMemoryError, InFlightError, MissingBlockError, WrongDataError
from primepar.reference.emulator.contents import Array, Block, Contents, overlap


@dataclass
class LedgerEntry:
    """Elements of a block that one instruction added to a device's memory, or took from it."""

    time: float
    """Of the device's logical clock."""
    block: str
    elements: int


class EmulatedDevice:
    """One rank: blocks on the device, blocks evicted to its host, and a logical clock."""

    def __init__(
        self,
        rank: int,
        contents: Contents,
        memory: Mapping[str, Array],
        host: Mapping[str, Array],
    ) -> None:
        self.rank = rank
        self.clock = 0.0
        self._contents = contents
        self.__memory = {name: contents.datum(name, rank, memory[name]) for name in memory}
        self.__host = {name: contents.datum(name, rank, host[name]) for name in host}
        self.__sending: Counter[str] = Counter()
        self.__receiving: dict[str, tuple[LedgerEntry, Block | None]] = {}
        self.__ledger: list[LedgerEntry] = []
        self.__live = 0
        bound = contents.program.memory
        self.__limit = None if bound is None else bound.device
        for name, block in self.__memory.items():
            self._enter(name, block.size, block.size)
        self._check_host()

    @property
    def peak(self) -> int:
        """Largest number of live elements, including buffers of posted receives."""
        return self.peak_bytes(1, 1)

    def peak_bytes(self, item: int, wide_item: int) -> int:
        """Largest number of live bytes, with the bytes of an element, and of one of a wide tensor.

        Buffers of posted receives are included.
        """
        tensors = self._contents.program.tensors or {}
        wide = {name for name, tensor in tensors.items() if tensor.wide}
        entries = (
            entry.elements
            * (wide_item if entry.block.rstrip("'").rpartition("[")[0] in wide else item)
            for entry in self.__ledger
        )
        return max(accumulate(entries, initial=0))

    @property
    def ledger(self) -> tuple[LedgerEntry, ...]:
        """What each instruction changed in this device's memory, in order; first what it had."""
        return tuple(self.__ledger)

    def _enter(self, name: str, size: int, added: int) -> LedgerEntry:
        """Enter a block of some size and the elements that it adds to those that are live.

        Raises `DeviceMemoryError` beyond the program's bound. A bound is in the program's elements:
        where a block has others, there is nothing to compare.
        """
        entry = LedgerEntry(self.clock, name, added)
        self.__ledger.append(entry)
        self.__live += added
        if self.__limit is not None and self._contents.meaning.elements(name) != size:
            self.__limit = None
        if self.__limit is not None and self.__live > self.__limit and added >= 0:
            raise DeviceMemoryError(
                f"expected at most {self.__limit} live elements on this device, got {self.__live} "
                f"with {name}: free or evict a block before, or allow more in memory"
            )
        return entry

    def _check_host(self) -> None:
        """Raise `DeviceMemoryError` beyond the program's bound on the host's memory."""
        bound, elements = self._contents.program.memory, self._contents.meaning.elements
        if bound is None or bound.host is None:
            return
        if all(block.size == elements(name) for name, block in self.__host.items()):
            held = sum(block.size for block in self.__host.values())
            if held > bound.host:
                raise DeviceMemoryError(
                    f"expected at most {bound.host} live elements on this device's host, got "
                    f"{held} with {[*self.__host][-1]}: fetch one before, or allow more in memory"
                )

    def memories(self) -> tuple[dict[str, Block], dict[str, Block]]:
        """Return the blocks on the device and on its host after the last instruction."""
        return dict(self.__memory), dict(self.__host)

    def holds(self, name: str) -> bool:
        """Return whether a block with this name is in memory and not being received."""
        return name in self.__memory

    def read(self, name: str) -> Block:
        """Return the block with this name.

        Raises `MissingBlockError`, `InFlightError` while it is being received, or
        `WrongDataError` if it holds terms of another block than that of its name.
        """
        if name in self.__receiving:
            raise InFlightError(
                f"expected {name} to have arrived, got a read of it before its wait: "
                "move the wait before this instruction"
            )
        if name not in self.__memory:
            raise MissingBlockError(
                f"expected {name} in this device's memory, got {self._inventory()}: "
                "receive or compute it before this instruction"
            )
        block = self.__memory[name]
        home = self._contents.home(name)
        if home is not None and block.terms and block.homes != {home}:
            expected, got = name.removesuffix("'"), self._contents.text(block.terms)
            raise WrongDataError(f"expected {expected} under the name {name}, got {got}")
        return block

    def write(self, name: str, block: Block) -> None:
        """Store a block under a name.

        Raises `InFlightError` while a message uses the name, and `WrongDataError` if the old block
        has another shape. Notes a doubt if the name means another block.
        """
        self._check_still(name, "changed")
        home = self._contents.home(name)
        if home is not None and not block.homes <= {home}:
            expected, got = name.removesuffix("'"), self._contents.text(block.terms)
            self._contents.note_doubt(
                f"expected terms of {expected} to write into {name}, got {got}"
            )
        old = self.__memory.get(name)
        self._check_shape(name, old, block)
        self.__memory[name] = block
        self._enter(name, block.size, block.size - (old.size if old else 0))

    def free(self, name: str) -> Block:
        """Remove a block from memory. Raises `InFlightError` or `MissingBlockError`."""
        return self._take(name, "freed")

    def evict(self, name: str) -> None:
        """Move a block to the host. Raises `InFlightError` or `MissingBlockError`."""
        self.__host[name] = self._take(name, "evicted")
        self._check_host()

    def fetch(self, name: str) -> None:
        """Move a block from the host. Raises `InFlightError` or `MissingBlockError`."""
        if name not in self.__host:
            raise MissingBlockError(
                f"expected {name} in this device's host memory, got none there: evict it first"
            )
        self.write(name, self.__host.pop(name))

    def check_apart(self, names: tuple[str, ...]) -> None:
        """Raise `InFlightError` if two received blocks of a collective share tensor elements."""
        places = ((name, self._contents.meaning.place(name)) for name in names)
        homes = {name: home for name, home in places if home is not None}
        tensors = {name.partition("[")[0] for name in homes}
        if len(tensors) <= 1 and len(set(homes.values())) == len(homes):
            return  # one cut of one tensor: its blocks are disjoint
        for (first_name, first), (second_name, second) in combinations(homes.items(), 2):
            if overlap(first, second):
                raise InFlightError(
                    f"expected disjoint blocks from one collective, got {first_name} and "
                    f"{second_name}, "
                    f"which share elements of {first.tensor}: name blocks of one cut"
                )

    def begin_send(self, name: str) -> Block:
        """Return a block for a message; it may not change until `end_send`."""
        block = self.read_any(name)
        self.__sending[name] += 1
        return block

    def read_any(self, name: str) -> Block:
        """Return a block that is sent or added, without a check of its content: readers do that."""
        if name in self.__memory and name not in self.__receiving:
            return self.__memory[name]
        return self.read(name)

    def end_send(self, name: str) -> None:
        """End a send: the block may change again."""
        self.__sending[name] -= 1

    def begin_receive(self, name: str) -> None:
        """Reserve a name for a message; no instruction may use it until `end_receive`."""
        self._check_still(name, "received into")
        old = self.__memory.pop(name, None)
        # Its buffer is in use from here on; where the program does not define its size, that comes
        # with the block: isend x (4), irecv y (?), free x (-4), wait: entries 4, 4, -4, and a peak
        # of 8, not of 4.
        size = self._contents.meaning.elements(name) or 0
        self.__receiving[name] = self._enter(name, size, size - (old.size if old else 0)), old

    def end_receive(self, name: str, block: Block) -> None:
        """Store the received block. Raises `WrongDataError` if it has another shape."""
        entry, old = self.__receiving.pop(name)
        self._check_shape(name, old, block)
        self.__memory[name] = block
        added = block.size - (old.size if old else 0)
        self.__live += added - entry.elements
        entry.elements = added

    def _take(self, name: str, done: str) -> Block:
        self._check_still(name, done)
        if name not in self.__memory:
            raise MissingBlockError(
                f"expected {name} in this device's memory to be {done}, got {self._inventory()}"
            )
        block = self.__memory.pop(name)
        self._enter(name, block.size, -block.size)
        return block

    def _check_still(self, name: str, done: str) -> None:
        in_flight = "sent" if self.__sending[name] else "received" * (name in self.__receiving)
        if in_flight:
            raise InFlightError(
                f"expected {name} to be left alone while it is being {in_flight}, got it {done}: "
                "move the wait before this instruction"
            )

    @staticmethod
    def _check_shape(name: str, old: Block | None, new: Block) -> None:
        # A block of zeros without terms takes the shape of the first block written into it.
        if old is not None and old.terms and new.terms and old.array.shape != new.array.shape:
            raise WrongDataError(
                f"expected a block of shape {old.array.shape} for {name}, got {new.array.shape}"
            )

    def _inventory(self) -> str:
        """Return at most six names of the blocks in memory."""
        names = sorted(self.__memory)
        return ", ".join(names[:6]) + f" and {len(names) - 6} more" * (len(names) > 6) or "nothing"

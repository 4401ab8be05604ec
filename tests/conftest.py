"""What every test may use: hypothesis profiles and golden texts."""

from __future__ import annotations

import gc
import os
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import lowered_steps
import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers
from profiles import IS_LONG

from primepar.reference.emulator import model

settings.register_profile("dev", max_examples=15, deadline=None, derandomize=True)
settings.register_profile("ci", max_examples=500, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))
# Else it also draws numbers from the source of each module that happens to be loaded.
setattr(providers, "is_local_module_file", lambda _: False)  # noqa: B010

pytest_plugins = ["forked_workers"]
GOLDEN = Path(__file__).parent / "golden"


@dataclass(frozen=True)
class Golden:
    """Compares a text with `<folder>/<name>.txt`, or writes it there when `update` is set."""

    folder: Path
    update: bool

    def __call__(self, name: str, text: str) -> None:
        """Fail unless the kept text is `text` (a newline at the end does not count)."""
        path = self.folder / f"{name}.txt"
        got = text.rstrip("\n") + "\n"
        if self.update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(got, encoding="utf-8")
        advice = "if the new text is right, run: pytest --update-golden, and read the diff"
        assert path.exists(), f"no golden text {path.name}; {advice}"
        assert got == path.read_text(encoding="utf-8"), f"{path.name} differs; {advice}"


def pytest_configure(config: pytest.Config) -> None:
    """Make the folder that workers share, also for proofs that are kept; they inherit its name."""
    folder = tempfile.TemporaryDirectory(prefix="primepar-ranks-")
    os.environ["PRIMEPAR_TEST_RANKS"] = folder.name
    os.environ["XDG_CACHE_HOME"] = str(Path(folder.name) / "cache")
    config.add_cleanup(folder.cleanup)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what the short profile has no time for (`profiles.few`)."""
    if IS_LONG:
        return
    cases = defaultdict[str, list[pytest.Item]](list)
    for item in items:
        if item.get_closest_marker("few"):
            cases[item.nodeid.partition("[")[0]].append(item)
    left_out = {item for group in cases.values() for item in group[1:-1]}
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = [item for item in items if item not in left_out]


def pytest_collection_finish() -> None:
    """Collect garbage seldom: programs are millions of small tuples, and hold no circles."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 50)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the switch that rewrites golden texts."""
    parser.addoption(
        "--update-golden", action="store_true", help="write tests/golden/*.txt anew, to be reviewed"
    )


@pytest.fixture(autouse=True, scope="session")
def steps_lowered_once() -> Iterator[None]:
    """Emulated models take the programs that other tests lower, and leave theirs to them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "lower_step", lowered_steps.lower_step)
        yield


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """Give `golden(name, text)`, which compares a text with tests/golden/<name>.txt."""
    return Golden(GOLDEN, update=request.config.getoption("--update-golden"))

"""The attack on the prover of primitives: its oracle, its maps, its alterations and its counts."""

from __future__ import annotations

from functools import cache
from multiprocessing.pool import ThreadPool
from pathlib import Path
from random import Random
from unittest.mock import patch

import attack
import attack_scales
import attack_score
import long_runs
import msgspec
import pytest
from attack import AttackModule, Limit
from attack_alterations import KINDS, altered
from attack_certificates import Offer, answered, forged, loaded, offered, written
from attack_maps import NAME, Map, generated
from attack_mesh import Mesh, TooLargeError, WrongMeshError
from attack_methods import METHODS
from attack_oracle import axes_of, load, meshes, oracle
from long_runs import Store, TaskResult
from profiles import few

from primepar.api.target import load_primitive
from primepar.errors import PrimeParError
from primepar.partition import PRIMITIVES
from primepar.partition.summa import Summa
from primepar.reference.check import check
from primepar.schedule import Sequence

HERE = Path(__file__).resolve().parents[1]


@few
@pytest.mark.parametrize("method", METHODS)
def test_the_oracle_finds_every_method_right(method: str) -> None:
    assert oracle(METHODS[method].source(NAME), NAME).verdict == "right"


@cache
def rulings() -> dict[str, tuple[str, str]]:
    verdicts = {}
    for path in sorted(HERE.glob("wrong/*.py")):
        name = path.stem.title().replace("_", "")
        verdicts[path.name] = oracle(path.read_text(encoding="utf-8"), name)[:2]
    return verdicts


def test_the_oracle_finds_every_wrong_primitive_wrong_and_why() -> None:
    verdicts = rulings()
    assert {verdict for verdict, _ in verdicts.values()} == {"wrong"}
    properties = {what for _, what in verdicts.values()}
    assert properties >= {"coverage", "placement", "alignment", "home"}
    assert verdicts["no_last_step.py"] == ("wrong", "alignment")
    assert verdicts["nobody_sends.py"] == ("wrong", "placement")
    assert verdicts["input_on_the_diagonal.py"] == ("wrong", "home")
    assert verdicts["late.py"] == ("wrong", "coverage")


def moving(lines: str) -> str:
    """A primitive of one dim on one axis."""
    return f"from primepar import Primitive\n\n\nclass A(Primitive):\n    axes = ('d',)\n{lines}"


@pytest.mark.parametrize(
    ("lines", "verdict", "what"),
    [
        ("    def forward(self, d, t, s): return dict(N=d)\n"
         "    def steps(self, s): return 1\n", "right", ""),
        ("    def forward(self, d, t, s): return dict(N=d)\n"
         "    def steps(self, s): return 0\n", "wrong", "map"),
        ("    def forward(self, d, t, s): return dict(N=-d)\n"
         "    def steps(self, s): return 1\n", "wrong", "map"),
        ("    def forward(self, d, t, s): return dict(L=d)\n"
         "    def steps(self, s): return 1\n", "wrong", "map"),
        ("    def forward(self, d, t, s): return dict(M=d, N=t)\n", "wrong", "placement"),
        ("    def forward(self, d, t, s): return dict(K=(d, t))\n", "wrong", "placement"),
    ],
)  # fmt: skip
def test_the_oracle_looks_at_steps_slices_and_dims(lines: str, verdict: str, what: str) -> None:
    assert oracle(moving(lines), "A")[:2] == (verdict, what)


def test_who_keeps_a_sum_that_few_go_on_with_is_open() -> None:
    """Devices 0 and 1 leave a sum that device 2 alone goes on with: one of them keeps its part."""
    mesh = Mesh(load(METHODS["by-N"].source(NAME), NAME)(), {"d": "s"}, (3,))
    one, none = frozenset([(0,)]), frozenset[tuple[int, ...]]()
    mesh.__dict__["_held"] = {("forward", "O"): [[one, one, none], [none, none, one]]}
    assert mesh.holders("forward", "O", (0,), stay=False) == {2}
    assert mesh.holders("forward", "O", (0,), stay=True) == {0, 1, 2}


@pytest.mark.parametrize("trick", ["state", "luck"])
def test_the_oracle_calls_what_is_no_function_wrong(trick: str) -> None:
    body = {
        "state": "        self.n = getattr(self, 'n', 0) + 1\n"
        "        return dict(K=d) if self.n < 100 else dict(M=d)\n",
        "luck": "        return dict(K=d) if __import__('random').random() < 0.5 else dict(M=d)\n",
    }[trick]
    source = moving("    def steps(self, s): return 1\n    def forward(self, d, t, s):\n" + body)
    assert oracle(source, "A", twice=True).verdict == "wrong"


def agreed(made: Map, folder: Path, most: int = 8) -> int:
    """Number of small meshes; oracle and emulator have the same result for each."""
    path = folder / f"attack{made.seed}.py"
    path.write_text(made.source, encoding="utf-8")
    plain, primitive = load(made.source, NAME)(), load_primitive(f"{path}:{NAME}")
    count = 0
    for sides in meshes(axes_of(plain)):
        mesh = Mesh(plain, axes_of(plain), sides)
        if len(mesh.devices) > most:
            break
        try:
            is_right = mesh.check(48)
        except TooLargeError:
            continue
        except WrongMeshError:
            is_right = False
        try:
            equal = check(Sequence.of(primitive, *sides)).equal
        except PrimeParError:
            equal = False
        assert equal == is_right, (made.source, sides)
        count += 1
    return count


def test_the_oracle_agrees_with_the_emulator(tmp_path: Path) -> None:
    drawn = (generated(seed) for seed in range(20))
    kept = [made for made in drawn if made.in_language]
    assert sum(agreed(made, tmp_path) for made in kept) > 40


@pytest.mark.parametrize(
    "method", ["mixed-NKN", "mixed-NMN", "mixed-NNM", "mixed-NKM", "mixed-KKM"]
)
def test_so_it_does_where_a_tensor_moves_between_phases(method: str, tmp_path: Path) -> None:
    source = METHODS[method].source(NAME)
    assert agreed(Map(0, method, (), source, True, True), tmp_path, 6) == 6


def test_a_seed_gives_one_map_and_what_is_meant_to_be_right_is() -> None:
    drawn = [generated(seed) for seed in range(40)]
    assert drawn == [generated(seed) for seed in range(40)]
    meant = [made for made in drawn if made.is_right]
    assert len(meant) >= 7
    assert {oracle(made.source, NAME).verdict for made in meant} == {"right"}
    assert sum(made.has_threshold for made in meant) >= len(meant) / 2


def test_what_is_proved_is_right() -> None:
    scored = [attack_score.decide(seed) for seed in range(8)]
    columns = {column.split()[0] for one in scored for column in one.numbers}
    assert columns >= {"right", "wrong"}
    assert not [one for one in scored if one.is_wrong]


@pytest.mark.parametrize(
    ("verdict", "ruling", "in_language", "is_early", "how"),
    [
        ("proved", "right", True, True, ""),
        ("refuted", "wrong", True, True, ""),
        ("refused", "right", False, True, ""),
        ("unknown", "wrong", True, True, "unknown and wrong"),
        ("unknown", "right", True, True, "unknown and right"),
        ("proved", "wrong", True, True, "proved and wrong"),
        ("proved", "wrong", False, False, "proved and wrong later"),
        ("refuted", "right", True, True, "refuted and right"),
        ("refused", "right", True, True, "refused and right"),
        ("crashed", "right", True, True, "crashed"),
    ],
)
def test_prover_and_oracle_contradict_each_other_where_one_of_them_is_wrong(
    verdict: str, ruling: str, in_language: bool, is_early: bool, how: str
) -> None:
    assert attack_score.contradicts(verdict, ruling, in_language, is_early) == how


CERTIFICATE = written(Summa())


def test_the_certificate_that_is_altered_holds() -> None:
    assert CERTIFICATE is not None
    assert offered(CERTIFICATE, Summa()) == "accepted"
    assert offered(CERTIFICATE, PRIMITIVES["primepar"]()) == "refused"


def test_slices_with_fewer_digits_than_the_maps_certify_nothing() -> None:
    twice = loaded(METHODS["by-K"].source(NAME).replace("K=d", "K=(d, d)"))
    given = written(PRIMITIVES["by-output"]())
    assert given is not None
    over = forged(given, twice)
    assert over is None or offered(over, twice) == "refused"


@few
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_alteration_changes_a_certificate(kind: str) -> None:
    assert CERTIFICATE is not None
    other = written(PRIMITIVES["output-stays"]())
    assert other is not None
    drawn = [altered(CERTIFICATE, kind, Random(seed), other) for seed in range(40)]
    changed = [tree for tree in drawn if tree is not None]
    assert changed
    assert CERTIFICATE not in changed
    assert not [
        outcome for tree in changed[:3] if (outcome := offered(tree, Summa())).startswith("cr")
    ]


OFFER = Offer("number", "summa", "summa", 0)


@pytest.mark.parametrize(
    ("outcome", "is_wrong"),
    [
        (answered(OFFER, True, "accepted", ".steps: 1 -> 2"), False),
        (answered(OFFER, False, "refused"), False),
        (answered(OFFER, False, "unwritten: KeyError: 1"), False),
        (answered(OFFER, False, "accepted"), True),
        (answered(OFFER, True, "crashed: KeyError: 1"), True),
        (answered(OFFER, True, "accepted", also_wrong=("late.py",)), True),
    ],
)
def test_a_certificate_that_is_accepted_for_a_wrong_primitive_is_wrong(
    outcome: TaskResult, is_wrong: bool
) -> None:
    assert outcome.is_wrong == is_wrong


RIGHT = TaskResult(
    {"way": "wrong peer"}, {"mutants": 1, "harmful": 1, "caught": 1, "seconds": 0.25}
)


def attacked(
    path: Path, results: dict[str, TaskResult | None], most: float = 1.0, skipped: str = ""
) -> int:
    """What the command ends with if tasks end so; it must not decide the `skipped` ones."""
    kind = AttackModule("attack_scales", 1, (Limit("caught / harmful", "caught", "harmful", most),))
    with (
        patch.object(attack_scales, "tasks", lambda _: [*skipped, *results]),
        patch.object(attack_scales, "decide", results.__getitem__),
        patch.dict(attack.ATTACKS, {"scales": kind}),
        patch.object(attack, "fingerprint", lambda: "now"),
        patch.object(long_runs, "Pool", ThreadPool),
    ):
        return attack.main(["scales", "--kept", str(path), "--jobs", "1"])


def test_an_attack_prints_what_became_of_it_and_equal_results_count_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    same = msgspec.structs.replace(RIGHT, same="a")
    noted = msgspec.structs.replace(RIGHT, note="unknown", rows={"way": "wrong tag"})
    results = {"0": RIGHT, "1": same, "2": same, "3": None, "4": noted}
    assert attacked(tmp_path, results) == 0
    assert capsys.readouterr().out == (
        "way                    mutants   harmful    caught   seconds\n"
        "wrong peer                   2         2         2       0.5\n"
        "wrong tag                    1         1         1       0.2\n"
        "all                          3         3         3       0.8\n\n"
        "caught / harmful: 3 / 3 = 100 %\n"
        "4: unknown\n"
        "scales: 0 of 3 are wrong\n\n"
    )


def test_a_contradiction_is_listed_and_ends_with_1_and_so_does_too_large_a_share(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = msgspec.structs.replace(RIGHT, is_wrong=True, note="races should fail; proved")
    assert attacked(tmp_path, {"0": RIGHT, "1": wrong}) == 1
    assert "WRONG 1: races should fail; proved" in capsys.readouterr().out.splitlines()
    assert attacked(tmp_path, {"0": RIGHT}, 0.9) == 1


def test_a_stopped_run_goes_on_and_other_code_starts_anew(tmp_path: Path) -> None:
    path = tmp_path / "scales.jsonl"
    with Store(path, "now") as store:
        store.keep("0", RIGHT)
    whole = path.read_bytes()
    path.write_bytes(whole + whole.splitlines()[1][:40])
    assert attacked(tmp_path, {"1": None}, skipped="0") == 0
    with Store(path, "now") as store:
        assert store.kept == {"0": RIGHT, "1": None}
    with Store(path, "new") as store:
        assert store.kept == {}

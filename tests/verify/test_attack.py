"""The attack on the prover of primitives: its oracle, its maps, its alterations and its counts."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from random import Random
from unittest.mock import patch

import attack_certificates
import attack_score
import msgspec
import pytest
from attack_alterations import KINDS, altered
from attack_certificates import Answered, Offer, forged, loaded, offered, written
from attack_maps import NAME, Map, generated
from attack_mesh import Mesh, TooLargeError, WrongMeshError
from attack_methods import METHODS
from attack_oracle import axes_of, load, meshes, oracle
from attack_score import Scored, score
from long_runs import Store
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


def test_what_is_proved_is_right(tmp_path: Path) -> None:
    scored = [score(seed) for seed in range(8)]
    assert {score.ruling for score in scored} == {"right", "wrong"}
    assert not [score for score in scored if score.bad in ("proved-wrong", "crashed")]


SCORED = Scored(0, "summa", "devices", True, True, "right", "", (), True, "proved", (), "", 0.1)
"""A right map that is proved."""


def change(scored: Scored, **changes: object) -> Scored:
    return msgspec.structs.replace(scored, **changes)


@pytest.mark.parametrize(
    ("one", "code"),
    [
        ({}, 0),
        ({"ruling": "wrong", "verdict": "refuted"}, 0),
        ({"in_language": False, "verdict": "refused"}, 0),
        ({"ruling": "wrong", "verdict": "unknown"}, 0),
        ({"ruling": "wrong"}, 1),
        ({"ruling": "wrong", "in_language": False}, 1),
        ({"ruling": "wrong", "in_language": False, "is_early": False}, 0),
        ({"verdict": "refuted"}, 1),
        ({"verdict": "refused"}, 1),
        ({"verdict": "crashed"}, 1),
        ({"verdict": "unknown"}, 1),
    ],
)  # fmt: skip
def test_the_score_ends_with_1_where_prover_and_oracle_contradict_each_other(
    one: dict[str, object], code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "attack.jsonl"
    with Store[Scored](kept, "now", Scored) as store:
        store.keep([SCORED, change(SCORED, key=1, **one)])
    arguments = ["attack_score.py", "--maps", "2", "--jobs", "1", "--kept", str(kept)]
    with (
        patch.object(sys, "argv", arguments),
        patch.object(attack_score, "fingerprint", lambda: "now"),
    ):
        assert attack_score.main() == code
    bad = change(SCORED, **one).bad
    files = [path.name for path in (tmp_path / "attack").iterdir()]
    assert files == ([f"{bad}-1.py"] if bad else [])
    assert "devices" in capsys.readouterr().out


def test_unknown_right_maps_count_from_3_percent_on() -> None:
    most = [change(SCORED, key=seed) for seed in range(97)]
    unknown = [change(SCORED, key=seed, verdict="unknown") for seed in range(97, 101)]
    assert attack_score.report([*most, *unknown[:3]]) == 0
    assert attack_score.report([*most, *unknown]) == 1


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


ACCEPTED = Answered(Offer("number", "summa", "summa", 0), True, "accepted", ".steps: 1 -> 2")


@pytest.mark.parametrize(
    ("one", "code"),
    [
        (ACCEPTED, 0),
        (ACCEPTED._replace(is_right=False, answer="refused"), 0),
        (ACCEPTED._replace(is_right=False, answer="unwritten: KeyError: 1"), 0),
        (ACCEPTED._replace(is_right=False), 1),
        (ACCEPTED._replace(answer="crashed: KeyError: 1"), 1),
        (ACCEPTED._replace(also_wrong=("late.py",)), 1),
    ],
)
def test_a_certificate_that_is_accepted_for_a_wrong_primitive_ends_with_1(
    one: Answered, code: int
) -> None:
    assert attack_certificates.report([one, ACCEPTED]) == code

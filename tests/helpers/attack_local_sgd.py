"""`python tests/helpers/attack_local_sgd.py`: programs of local SGD, changed in every known way.

The explorer and the emulator decide which changes are harmful, and the proofs have to agree. Bases
are runs of several sizes, and averages of replicas under plans. Ends with 1 unless every harmful
change is refuted and every harmless one is proved.
"""

from __future__ import annotations

import argparse
import sys
from random import Random

import msgspec
from mutation import Json
from mutation_fields import PROGRAM_WAYS, changes_of
from mutation_oracle import Judged, Task, decide_program
from mutation_score import distinct, report
from step_cases import SMALL

from primepar.operators.averaging import lower_average
from primepar.partition.local_sgd import LocalSGD
from primepar.plan import preset_plan
from primepar.plan.replicas import replicas_of
from primepar.schedule import Program

SIZES = (
    LocalSGD(workers=2, period=1, steps=2),
    LocalSGD(workers=3, period=2, steps=3, warm_up=1),
    LocalSGD(workers=4, period=3, steps=3),
)
PLANS = (("data", 3), ("M2,megatron", 4), ("M2,megatron-sp", 4))


def bases() -> dict[str, Json]:
    """Name -> a right program, as JSON."""
    runs = {method.text: method.program() for method in SIZES}
    averages = {
        f"average of {name} on {ranks}": lower_average(
            replicas_of(preset_plan(name, SMALL["gpt2"], ranks))
        )
        for name, ranks in PLANS
    }
    return {name: msgspec.to_builtins(program) for name, program in (runs | averages).items()}


def judged(name: str, fields: Json, most: int) -> list[Judged]:
    """What was found of at most `most` changes of each way."""
    mutants = []
    for way in PROGRAM_WAYS:
        changes = list(changes_of(way, fields))
        Random(f"{name} {way}").shuffle(changes)
        for number, (where, changed) in enumerate(changes[:most]):
            try:
                program = msgspec.convert(changed, Program)
            except msgspec.ValidationError:
                continue
            mutants.append(decide_program(Task(name, way, number, most), where, program))
    return mutants


def main() -> int:
    """Print the tables; 0 if all is as it should be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--most", type=int, default=12, help="changes of each way and program")
    most = parser.parse_args().most
    everything = [
        mutant for name, fields in bases().items() for mutant in judged(name, fields, most)
    ]
    mutants = distinct(everything)
    report(mutants)
    return 0 if all(mutant.is_right for mutant in mutants) else 1


if __name__ == "__main__":
    sys.exit(main())

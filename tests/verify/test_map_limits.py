"""Work does not grow with a constant, nor with how often a part is used: verdicts in 3 GiB."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from command import run

LANGUAGE = "expected +, -, *, //, %, comparisons, &, |, ~ and where"
SCRIPT = Path(__file__).parents[1] / "helpers" / "map_limits.py"
LARGE = "expected numbers below 2**62 on every mesh up to side 1024, got larger ones in"
FAR = "expected an index below 16 sides left of % or //"
MANY = "there are 10000000 devices times steps at s=1, more than 4000000"
ONCE = (
    "any side (1 device): forward sub-operator (M=1, N=0, K=0): expected one device to compute it"
)
EXPECTED = {
    "Far": [
        "unknown",
        f"coverage: coverage forward: {FAR}",
        "placement: forward I: the index left of % or // can be more than 12 times the side on its "
        "right: keep it within a few sides, or prove one mesh with --side",
        f"alignment: forward I to gradient: {FAR}",
    ],
    "TooDeep": [
        "exit 2",
        "TooDeep.forward: expected at most 10000 operations, got 20003: use +, *, // and % instead "
        "of a loop",
    ],
    "Threshold": ["proved", "certified"],
    "Shared": ["proved", "certified"],
    "Squared": [
        "exit 2",
        f"Squared.forward: {LARGE} (r + c + t) * (r + c + t) * ((r + c + t) * (r + c + t)) * ((: "
        "take % of the side sooner",
    ],
    "Constant": [
        "exit 2",
        f"FILE:102: Constant.forward: {LANGUAGE}, got a number of 100 bits: use numbers below "
        "2**62",
    ],
    "TenMillion": [
        "exit 2",
        "TenMillion.forward: expected a slice index of K below 1000000, got 10000000 at r=0, c=1, "
        "t=0, sides (2,): wrap it with % of the side",
    ],
    "ManySteps": [
        "unknown",
        *(f"{name}: {MANY}" for name in
          ("coverage", "placement", "completion", "alignment", "deadlock-freedom")),
    ],
    "Fractions": [
        "exit 2",
        f"Fractions.forward: {LANGUAGE}, got a fraction in r * 1/2 * 2: use // for a quotient of "
        "whole numbers",
    ],
    "NoAxes": ["refuted", f"coverage: {ONCE}, got none: only 2 of 3 are computed"],
    "NoAxesRight": ["proved", "certified"],
}  # fmt: skip


def test_every_verdict_is_given_within_the_memory() -> None:
    done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.replace(str(SCRIPT), "FILE").splitlines()
    assert dict(map(json.loads, lines)) == EXPECTED


def test_a_map_with_fractions_ends_with_2_as_every_map_that_is_none() -> None:
    done = run("verify", f"{SCRIPT}:Fractions")
    assert (done.code, done.out) == (2, "")
    assert done.err == f"primepar: error: {SCRIPT}:125: {EXPECTED['Fractions'][1]}\n"

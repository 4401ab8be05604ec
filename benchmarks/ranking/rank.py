"""One rank of the measurement: `python -m benchmarks.ranking.rank FOLDER ROUNDS`."""

import sys
from pathlib import Path

from benchmarks.ranking.measure import measure

if __name__ == "__main__":
    measure(Path(sys.argv[1]), int(sys.argv[2]))

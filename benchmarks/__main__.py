"""`python -m benchmarks NAME ...` runs one benchmark; without a name it lists them."""

import sys
from pathlib import Path
from runpy import run_module

if __name__ == "__main__":
    paths = sorted(Path(__file__).parent.glob("*.py"))
    files = {path.stem: path for path in paths if "bench(" in path.read_text(encoding="utf-8")}
    del files["__main__"], files["bench"]
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name in files:
        del sys.argv[1]
        run_module(f"benchmarks.{name}", run_name="__main__", alter_sys=True)
    else:
        for stem, path in files.items():
            question = path.read_text(encoding="utf-8").partition("\n")[0].strip('"')
            print(f"{stem:24}{question}")
        sys.exit(name != "")

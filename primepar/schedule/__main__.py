"""Print the JSON Schema of programs: `python -m primepar.schedule` makes `program.schema.json`."""

import json

from primepar.schedule.program_file import schema

if __name__ == "__main__":
    print(json.dumps(schema(), indent=2))

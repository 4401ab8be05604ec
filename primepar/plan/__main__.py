"""Print the JSON Schema of plans: `python -m primepar.plan > plan.schema.json`."""

import json

from primepar.plan.plan import schema

if __name__ == "__main__":
    print(json.dumps(schema(), indent=2))

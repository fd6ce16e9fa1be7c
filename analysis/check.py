"""python -m analysis.check: whether the report will take what a plan asks of it.

Reads {"analysis", "groups", "baseline"} as JSON from standard input, and prints what it refuses, {"key", "value",
"rule"}, or null.
Standard library only, so that every plan may afford it.
"""

from __future__ import annotations

import json
import sys

from analysis.checks import BadValue
from analysis.settings import settings


def main() -> None:
    """Check what standard input asks."""
    asked = json.load(sys.stdin)
    try:
        settings(asked["analysis"], "plan.json", asked["groups"], asked["baseline"])
    except BadValue as error:
        print(json.dumps({"key": error.key, "value": error.value, "rule": error.rule}))
    else:
        print("null")


if __name__ == "__main__":
    main()

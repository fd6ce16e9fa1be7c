"""python -m analysis.check: whether the report will take what a plan asks of it.

Reads {"analysis", "groups", "baseline"} as JSON from standard input. Exit code 0, or 2 with the reason printed.
Standard library only, so that every plan may afford it.
"""

from __future__ import annotations

import json
import sys

from analysis.checks import BadPlan
from analysis.settings import settings


def main() -> int:
    """Check what standard input asks; returns the exit code."""
    asked = json.load(sys.stdin)
    try:
        settings(asked["analysis"], "plan.json", asked["groups"], asked["baseline"])
    except BadPlan as error:
        print(str(error).removeprefix("plan.json: "))
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

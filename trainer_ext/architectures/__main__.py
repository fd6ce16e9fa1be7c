"""python -m trainer_ext.architectures FOLDER: the sizes of a model, as one line of JSON."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict

from trainer_ext.architectures import Unusable, causal_models


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m trainer_ext.architectures")
    parser.add_argument("folder", help="of a model in the Hugging Face format")
    parser.add_argument("--trust-remote-code", action="store_true", help="allow code that comes with the model")
    given = parser.parse_args()
    try:
        print(json.dumps(asdict(causal_models.count(given.folder, given.trust_remote_code))))
    except Unusable as error:
        print(json.dumps({"unusable": [error.rule, error.fix]}))
    return 0


if __name__ == "__main__":
    sys.exit(main())

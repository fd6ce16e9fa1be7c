"""What each of Ray's processes does first."""

import gc


def collect_rarely() -> None:
    """Make garbage collections rare.

    By Python's default, a process that imports verl's thousands of modules spends an eighth of that time on them.
    """
    gc.set_threshold(50_000, 10, 10)

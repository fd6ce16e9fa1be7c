"""Mutants are what they say, and are found again where the code around them has changed."""

from __future__ import annotations

from tests import mutation

SOURCE = '''
LIMIT = 3


class Pool:
    def full(self, runs: int = 4) -> bool:
        """How full «π» is."""
        if runs >= self.slots and not self.closed:  # a comment
            raise ValueError(f"{runs + 1}")
        self.seen = runs
        return runs * 2 > LIMIT
'''


def test_the_mutants_of_a_module():
    found = mutation.mutants("launcher/pool.py", SOURCE)
    condition = "if runs >= self.slots and (not self.closed):"
    assert {(one.before, one.after) for one in found} == {
        (condition, "if not (runs >= self.slots and (not self.closed)):"),
        (condition, "if runs >= self.slots or not self.closed:"),
        (condition, "if runs > self.slots and (not self.closed):"),
        (condition, "if runs < self.slots and (not self.closed):"),
        (condition, "if runs >= self.slots and self.closed:"),
        ("raise ValueError(f'{runs + 1}')", "pass"),
        ("self.seen = runs", "pass"),
        ("return runs * 2 > LIMIT", "return None"),
        ("return runs * 2 > LIMIT", "return runs * 2 >= LIMIT"),
        ("return runs * 2 > LIMIT", "return runs * 2 <= LIMIT"),
        ("return runs * 2 > LIMIT", "return runs / 2 > LIMIT"),
        ("return runs * 2 > LIMIT", "return runs * 3 > LIMIT"),
    }
    assert {one.function for one in found} == {"Pool.full"}
    for one in found:
        # What is written is the fault that it is recorded as, and it alone.
        again = mutation.mutants(one.file, one.apply(SOURCE))
        assert one.after in {"pass", "return None"} or one.after in {other.before for other in again}
        assert len(one.apply(SOURCE).splitlines()) == len(SOURCE.splitlines())


def test_mutants_are_found_in_another_file_layout_and_function():
    found = mutation.mutants("launcher/pool.py", SOURCE)
    moved = "import os\n" + SOURCE.replace("runs >= self.slots and", "(\n  runs >= self.slots  # more\n ) and")
    for text in (moved, moved.replace("def full", "def is_full")):
        there = mutation.mutants("launcher/rooms/pool.py", text)
        for one in found:
            again = mutation.find(mutation.Mutant(**one.listed()), there)
            assert again is not None and (again.before, again.after) == (one.before, one.after)


def test_a_mutant_whose_statement_is_gone_or_stands_twice_elsewhere_is_not_found():
    entry = mutation.mutants("a.py", "def f(x):\n    return x < 1")[0]
    assert mutation.find(entry, mutation.mutants("a.py", "def f(x):\n    return x < 2")) is None
    twice = "def g(x):\n    return x < 1\ndef h(x):\n    return x < 1"
    assert mutation.find(entry, mutation.mutants("b.py", twice)) is None

"""Standard output and error that cannot be written: what is printed there is dropped, and the program goes on."""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import Any, ClassVar


class Dropping(io.FileIO):
    """A stream that leads to /dev/null after its first error. `failed`: it was standard output's, and not EPIPE."""

    failed: ClassVar[bool] = False

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            if error.errno != errno.EPIPE and self.fileno() == 1:
                Dropping.failed = True
                print(f"standard output cannot be written ({error.strerror}); it is dropped", file=sys.stderr)
            return len(data)


def drop_what_cannot_be_written() -> None:
    """Let no print of this process raise: neither after `>&-`, nor on a full disk, nor when a reader has ended."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:  # closed: the next file that is opened would get its number, and what is printed
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    for number, name in ((1, "stdout"), (2, "stderr")):
        before = getattr(sys, name)
        if before is getattr(sys, f"__{name}__"):  # otherwise somebody captures it
            encoding, errors = getattr(before, "encoding", None), getattr(before, "errors", None)
            lines = bool(before and (before.line_buffering or before.write_through))
            buffer = io.BufferedWriter(Dropping(number, "wb", closefd=False))
            setattr(sys, name, io.TextIOWrapper(buffer, encoding, errors, line_buffering=lines))

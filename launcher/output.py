"""Standard output and error that cannot be written: what is printed there is dropped, and the program goes on."""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import Any, ClassVar


class _Dropping(io.FileIO):
    """A stream of this process. After its first error it leads to /dev/null, for programs that inherit it, too.

    `failed`: one had an error other than that its reader has ended.
    """

    failed: ClassVar[bool] = False

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self.fileno())
            os.close(null)
            if error.errno != errno.EPIPE:  # the reader of a pipe, such as `| head`, has ended
                _Dropping.failed = True
                print(f"standard output cannot be written ({error.strerror}); it is dropped", file=sys.stderr)
            return len(data)


def was_lost() -> bool:
    """Whether some output could not be written although somebody wanted it."""
    sys.stdout.flush()
    return _Dropping.failed


def drop_what_cannot_be_written() -> None:
    """Let no print of this process raise: neither after `>&-`, nor on a full disk, nor when a reader has ended."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:  # closed: the next file that is opened would get its number, and what is printed
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = getattr(sys, name)
        if stream is getattr(sys, f"__{name}__"):  # otherwise somebody captures it
            setattr(sys, name, _stream(number, stream))


def _stream(number: int, like: Any) -> io.TextIOWrapper:
    """A stream with the encoding and the buffering of another; like: None if it was closed."""
    raw = _Dropping(number, "wb", closefd=False)
    unbuffered = getattr(like, "write_through", False)
    return io.TextIOWrapper(
        raw if unbuffered else io.BufferedWriter(raw),
        encoding=getattr(like, "encoding", "utf-8"),
        errors=getattr(like, "errors", "backslashreplace"),
        line_buffering=getattr(like, "line_buffering", False),
        write_through=unbuffered,
    )

"""The process that is Ray's driver: `python -m trainer_ext.backends.verl_ray.driver DESCRIPTOR`.

The descriptor is one end of a pair of sockets; process.VerlRay has the other one, and asks.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import os
import signal
import sys
import traceback
from multiprocessing.connection import Connection
from typing import Any

from trainer_ext.backends.protocol import Lost, Stalled
from trainer_ext.backends.verl_ray import node

_PR_SET_PDEATHSIG = 1


def _portable(error: BaseException) -> Exception:
    """An exception that another process can raise: of the same kind where that decides what happens to the run."""
    died = False  # a process of Ray, and not because of an exception of its own
    if "ray" in sys.modules:
        from ray import exceptions

        # what was raised in a process of Ray, without the stack that Ray puts around it (stderr.log has it)
        while isinstance(error, exceptions.RayTaskError) and error.cause is not None:
            error = error.cause
        kinds = (
            exceptions.RayActorError,
            exceptions.WorkerCrashedError,
            exceptions.NodeDiedError,
            exceptions.LocalRayletDiedError,
            exceptions.ObjectLostError,
        )
        died = isinstance(error, kinds) and not getattr(error, "actor_init_failed", False)
    text = str(error).strip()
    if died:
        return Lost(f"a process of Ray died: {' '.join(text.split())}")
    for kind in (FloatingPointError, ValueError, MemoryError, Lost, Stalled):
        if isinstance(error, kind):
            return kind(text)
    if isinstance(error, OSError) and error.errno is not None:
        return OSError(error.errno, text)
    return RuntimeError(text if type(error) is RuntimeError else f"{type(error).__name__}: {text}")


def serve(connection: Connection) -> None:
    """Answer the run's process until it asks to end, or has ended."""
    session: Any = None
    while True:
        try:
            question, given = connection.recv()
        except (EOFError, ConnectionError):
            break
        if question == "close":
            break
        try:
            if question == "start":
                import verl  # noqa: F401  (with what the environment names, before any model of transformers)

                from trainer_ext.backends.verl_ray.session import Session

                session = Session(*given)
                answer: Any = session.parameters
            else:
                answer = getattr(session, question)(*given)
        except Exception as error:
            print(traceback.format_exc(), file=sys.stderr, flush=True)
            connection.send(("error", _portable(error)))
        else:
            connection.send(("answer", answer))
    if session is not None:
        session.close()


def main() -> None:
    """Serve on the descriptor that the command line names; end with the process that started this one."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    node.collect_rarely()
    serve(Connection(int(sys.argv[1])))
    gc.freeze()  # Python's last collection would take a second and a half


if __name__ == "__main__":
    main()

"""Two trainings that make their steps by turns: the side of each training. `benchmarks.verl_ray` gives the turns.

verl imports this module, too (VERL_USE_EXTERNAL_MODULES), in each of its processes: its trainer then asks for its turn.
"""

from __future__ import annotations

import os
import sys
from multiprocessing.connection import Client, Connection
from typing import Any

#: In the environment of a training: the socket of the one who gives the turns.
SOCKET = "STEPS_BY_TURNS"
#: And seconds between two looks of verl's buffer for responses, as our trainer sets them; verl's own are 2.
POLL = "STEPS_POLL_S"
_connections: list[Connection] = []


def wait() -> None:
    """Say that the step, if there was one, is over; return when the next one may begin."""
    if not _connections:
        _connections.append(Client(os.environ[SOCKET], family="AF_UNIX"))
    _connections[0].send("over")
    _connections[0].recv()


def _in_plain_verl() -> None:
    """Ask before each step of verl's loop."""
    from verl.trainer.ppo.v1 import PPOTrainerSync

    buffer_of = PPOTrainerSync._build_replay_buffer

    def build(self: Any) -> Any:
        buffer = buffer_of(self)
        buffer.poll_interval = float(os.environ[POLL])
        return buffer

    def on_step_begin(self: Any) -> None:
        wait()

    PPOTrainerSync._build_replay_buffer, PPOTrainerSync.on_step_begin = build, on_step_begin


if SOCKET in os.environ and "tests.cluster.plain_verl" in sys.modules:
    _in_plain_verl()

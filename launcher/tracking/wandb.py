"""W&B: one W&B run per run, under the same id. Steps are only ever appended to it, and only those that stand.

W&B keeps what it has got: a step that is computed again after a resume would be dropped, shown twice, or mixed with the
old ones, depending on how the W&B run was opened. So it gets a step once no resume can supersede it any more: when a
checkpoint has it, or the run is done. Its history is then always a beginning of the metric log, and the number of its
lines says what is missing, after a crash in the middle of sending too.
"""

from __future__ import annotations

import atexit
import functools
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import wandb

from launcher.run import folder as folders
from launcher.text import one_line
from launcher.tracking import rows as logs
from launcher.tracking.labels import Labels, labels
from launcher.tracking.rows import Row, settled
from launcher.tracking.settings import Settings

INIT_S = 30.0
FINISH_S = 120.0
# Shorter than what a worker waits for its trackers: the last word is then W&B's own.
LIVE_FINISH_S = 20.0
# wandb waits at exit for its service process, without limit; whether everything arrived is known by then.
EXIT_S = 5.0
# The server counts what it got in the background.
CONFIRM_S = 20.0
# The x axis of every metric. W&B's own step is the same, as a rule.
STEP = "step"
_RETRIES = 2
SERVICE = "wandb-core"
LOGIN = "log in with `wandb login`, or set WANDB_API_KEY; another server than this: set WANDB_BASE_URL"


class Unsent(Exception):
    """W&B did not take a run, or any: where, why, and the fix."""


def server() -> str:
    """The address of the W&B server: WANDB_BASE_URL, else what `wandb login` left, else wandb's own default."""
    return str(wandb.setup().settings.base_url)


def check_credentials(ask: bool = False) -> None:
    """Raise Unsent without a key for the server; with `ask`, also when the server does not answer or refuses the key.

    Never prompts: a worker has nobody to ask.
    """
    from wandb.sdk.lib import wbauth  # wandb.login, the public way, prompts

    _start_service()
    try:
        found = wbauth.authenticate_session(host=server(), source="rlsweep", prompt=False, verify=ask)
    except Exception as error:
        raise Unsent(f"{server()}: no answer, or the key was refused ({one_line(str(error))}). Fix: {LOGIN}") from error
    if found is None:
        raise Unsent(f"{server()}: no credentials. Fix: {LOGIN}")


@functools.cache
def _start_service() -> None:
    """Start wandb's service process, which then lives EXIT_S longer than this one at most.

    Where its last request got no answer it may never end: 5 times in 72 (wandb 0.31, 6 processes on two cores).
    """
    wandb.setup(settings=wandb.Settings(silent=True)).ensure_service()
    leaving = threading.Event()
    # begun now, for from Python 3.12 on nothing is begun at exit
    threading.Thread(target=_end_service, args=(leaving,), daemon=True).start()
    atexit.register(leaving.set)  # after wandb's own handler, so that it runs before it


def _end_service(leaving: threading.Event) -> None:
    leaving.wait()
    services = [child for child in psutil.Process().children() if child.name() == SERVICE]
    time.sleep(EXIT_S)
    for service in services:
        if service.is_running():
            service.kill()


@functools.cache
def _api() -> wandb.Api:
    return wandb.Api(timeout=10)


class Writer:
    """A W&B run that is open: gets a run's steps in their order from the first on, and leaves out those it has."""

    def __init__(
        self, folder: Path, config: Mapping[str, Any], where: Settings, own: Labels, finish_s: float, ends: bool
    ) -> None:
        self._dir = tempfile.TemporaryDirectory(prefix="rlsweep-wandb-", ignore_cleanup_errors=True)
        settings = wandb.Settings(
            silent=True,
            console="off",  # the attempt's logs have it
            disable_git=True,  # provenance.json has it, masked
            disable_code=True,
            x_disable_meta=True,
            x_disable_stats=True,
            x_save_requirements=False,
            x_skip_transaction_log=True,  # metrics.jsonl is ours
            x_update_finish_state=ends,
            init_timeout=INIT_S,
            finish_timeout=finish_s,
            finish_timeout_raises=True,
            x_graphql_retry_max=_RETRIES,
            x_file_stream_retry_max=10_000,  # until finish_timeout: giving up earlier would not be told
        )
        try:
            self._run = wandb.init(
                id=folder.name,
                entity=where.entity,
                project=where.project,
                config=dict(config),
                group=own.experiment,
                job_type=own.group,
                name=own.name,
                tags=list(own.tags),
                mode="online",
                resume="allow",
                reinit="create_new",
                dir=self._dir.name,
                settings=settings,
            )
            self._path = f"{self._run.entity}/{self._run.project}/{folder.name}"
            self.there, _ = self._shown()
        except BaseException as error:
            self._dir.cleanup()
            if isinstance(error, KeyboardInterrupt):
                raise
            # Of an answer over many lines the first says what it is.
            text = one_line(str(error).strip().partition("\n")[0]) or type(error).__name__
            raise Unsent(f"{server()}: {text}") from error
        self.address = str(self._run.url)
        self._run.define_metric(STEP)
        self._run.define_metric("*", step_metric=STEP)
        self._given = 0
        self._next = self._run.starting_step

    def row(self, row: Row) -> None:
        """The next step. It is sent in the background."""
        self._given += 1
        if self._given <= self.there:
            return
        histograms = {
            name: wandb.Histogram(np_histogram=(np.asarray(one.counts), np.asarray(one.edges)))
            for name, one in row.histograms.items()
        }
        # W&B's own step may be ahead, where an upload broke off: its summary arrived, its lines did not.
        own = max(row.step, self._next)
        self._next = own + 1
        self._run.log({**row.metrics, **histograms, STEP: row.step, "_timestamp": row.time}, step=own, commit=True)

    def finish(self, state: str) -> None:
        """Wait until everything was sent. Unsent: it was not in time."""
        try:
            if state == folders.PREEMPTED:
                self._run.mark_preempting()
            self._run.summary["state"] = state
            self._run.finish(exit_code=0 if state == folders.DONE else 1)
        except TimeoutError as error:
            raise Unsent(f"{server()}: not everything was sent in time") from error
        finally:
            self._dir.cleanup()

    def confirm(self, ends: bool) -> None:
        """Wait until the server shows every step, and the end where there is one. Unsent: it refused some.

        wandb's finish does not tell of a refusal in the middle.
        """
        deadline = time.monotonic() + CONFIRM_S
        while True:
            lines, state = self._shown()
            if lines >= self._given and (state != "running" or not ends):
                return
            if time.monotonic() > deadline:
                raise Unsent(f"{self._path}: the server shows {lines} of {self._given} steps and refused the others")
            time.sleep(0.5)

    def _shown(self) -> tuple[int, str]:
        """How many lines of history the server has, and the W&B run's state there."""
        try:
            _api().flush()  # type: ignore[no-untyped-call]  # or it answers from memory
            run = _api().run(self._path)
            return int(run.historyLineCount or 0), str(run.state)
        except Exception as error:  # wandb's client has no common base for its errors
            raise Unsent(f"{self._path}: {one_line(str(error))}") from error


class LiveRun:
    """The sink of a running attempt: sends steps as checkpoints take them in, and the rest when the run is done."""

    def __init__(self, folder: Path, config: Mapping[str, Any], settings: Settings) -> None:
        check_credentials()
        own = labels(folders.multirun_of(folder)).get(folder.name, Labels())
        self._folder = folder
        self._writer = Writer(folder, config, settings, own, LIVE_FINISH_S, ends=True)
        self._held: dict[int, Row] = {}

    def row(self, row: Row) -> None:
        """Hold a step, or a part of it, until it stands and the next has begun, so that no part follows."""
        held = self._held.get(row.step)
        self._held[row.step] = row if held is None else replace(held, histograms={**held.histograms, **row.histograms})
        self._send(min(settled(self._folder), row.step - 1))

    def close(self, state: str) -> None:
        """Send what stands, and end the W&B run."""
        self._send(sys.maxsize if state == folders.DONE else settled(self._folder))
        self._writer.finish(state)

    def _send(self, until: int) -> None:
        for step in [step for step in self._held if step <= until]:
            self._writer.row(self._held.pop(step))


def send(folder: Path, where: Settings, own: Labels, state: str, until: int) -> str:
    """Append to the W&B run what it lacks of the run's steps up to `until`, and return its address.

    Unsent: it did not arrive whole. A run that is not at its end stays `running` there.
    """
    ends = state not in folders.RESUMABLE
    writer = Writer(folder, folders.read_config(folder), where, own, FINISH_S, ends)
    for row in logs.rows(folder):
        if row.step > until:
            break
        writer.row(row)
    writer.finish(state)
    writer.confirm(ends)
    return writer.address

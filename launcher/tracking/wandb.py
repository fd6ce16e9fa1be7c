"""W&B: one W&B run per run, with the same id. Steps are only appended to it, and only final ones.

A run that was archived and run anew has a further W&B run.

W&B keeps what it has received: a step that is computed again after a resume would be dropped, shown twice, or mixed
with the old one, depending on how the W&B run was opened. A step is therefore sent when no resume can supersede it:
when a checkpoint contains it, or the run is done. W&B's history is then always a beginning of the metric log, and the
number of its lines says what is missing, also after a crash while sending.
"""

from __future__ import annotations

import atexit
import functools
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import wandb

from launcher import files
from launcher.run.folder import find_object, last_final_step, multirun_of, read_config
from launcher.run.lifecycle import RESUMABLE, RunState, generation
from launcher.text import one_line
from launcher.tracking import Row, rows
from launcher.tracking.settings import Labels, Settings, labels

INIT_S = 30.0
FINISH_S = 120.0
# Shorter than the time that a worker waits for its trackers, so that W&B reports its own problem.
LIVE_FINISH_S = 20.0
# wandb waits at exit for its service process without limit. By then it is known whether everything arrived.
EXIT_S = 5.0
# The server counts in the background what it has received.
CONFIRM_S = 20.0
# The x axis of every metric. W&B's own step is the same, as a rule.
STEP = "step"
_RETRIES = 2
SERVICE = "wandb-core"
LOGIN = "log in with `wandb login`, or set WANDB_API_KEY; for another server, set WANDB_BASE_URL"


class Unsent(Exception):
    """W&B did not accept a run, or cannot be used: where, why, and the fix."""


def server() -> str:
    """The address of the W&B server: WANDB_BASE_URL, else that of `wandb login`, else wandb's default."""
    return str(wandb.setup().settings.base_url)


def check_credentials(ask: bool = False) -> None:
    """Raise Unsent without a key for the server; with `ask`, also if the server does not answer or refuses the key.

    It never prompts, because a worker has no terminal.
    """
    from wandb.sdk.lib import wbauth  # the public wandb.login prompts

    _start_service()
    try:
        credentials = wbauth.authenticate_session(host=server(), source="rlsweep", prompt=False, verify=ask)
    except Exception as error:
        raise Unsent(f"{server()}: no answer, or the key was refused ({one_line(str(error))}). Fix: {LOGIN}") from error
    if credentials is None:
        raise Unsent(f"{server()}: no credentials. Fix: {LOGIN}")


@functools.cache
def _start_service() -> None:
    """Start wandb's service process, which is killed EXIT_S after this process has ended.

    If its last request gets no answer, it may never end by itself: 5 times in 72 (wandb 0.31, 6 processes, two cores).
    """
    wandb.setup(settings=wandb.Settings(silent=True, mode="online")).ensure_service()
    leaving = threading.Event()
    # started now, because since Python 3.12 no thread can start at exit
    threading.Thread(target=_end_service, args=(leaving,), daemon=True).start()
    atexit.register(leaving.set)  # after wandb's own handler, so that it runs before it


def _end_service(leaving: threading.Event) -> None:
    leaving.wait()
    services = []
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):
            if child.name() == SERVICE:
                services.append(child)
    time.sleep(EXIT_S)
    for service in services:
        with suppress(psutil.NoSuchProcess):
            service.kill()  # psutil refuses a pid that another process has got meanwhile


@functools.cache
def _api() -> wandb.Api:
    return wandb.Api(timeout=10)


class Writer:
    """An open W&B run. It gets a run's steps in order, from the first on, and skips those that it has."""

    def __init__(
        self, folder: Path, config: Mapping[str, Any], where: Settings, labels: Labels, finish_s: float, ends: bool
    ) -> None:
        self._dir = tempfile.TemporaryDirectory(prefix="rlsweep-wandb-", ignore_cleanup_errors=True)
        settings = wandb.Settings(
            silent=True,
            console="off",  # it is in the attempt's logs
            disable_git=True,  # it is in provenance.json, with secrets masked
            disable_code=True,
            x_disable_meta=True,
            x_disable_stats=True,
            x_save_requirements=False,
            x_skip_transaction_log=True,  # there is metrics.jsonl
            x_update_finish_state=ends,
            init_timeout=INIT_S,
            finish_timeout=finish_s,
            finish_timeout_raises=True,
            x_graphql_retry_max=_RETRIES,
            x_file_stream_retry_max=10_000,  # until finish_timeout: if wandb gives up earlier, it does not report it
        )
        name = wandb_id(folder)
        try:
            self._run = wandb.init(
                id=name,
                entity=where.entity,
                project=where.project,
                config=dict(config),
                group=labels.experiment,
                job_type=labels.group,
                name=labels.name,
                tags=list(labels.tags),
                mode="online",
                resume="allow",
                reinit="create_new",
                dir=self._dir.name,
                settings=settings,
            )
            self._path = f"{self._run.entity}/{self._run.project}/{name}"
            self.present, _ = self._on_server()
        except BaseException as error:
            self._dir.cleanup()
            if isinstance(error, KeyboardInterrupt):
                raise
            # The first two lines of a long answer say what the problem is.
            text = one_line(" ".join(str(error).strip().split("\n")[:2])) or type(error).__name__
            raise Unsent(f"{server()}: {text}") from error
        self.address = str(self._run.url)
        self._run.define_metric(STEP)
        self._run.define_metric("*", step_metric=STEP)
        self._given = 0
        self._next = self._run.starting_step

    def row(self, row: Row) -> None:
        """The next step. It is sent in the background."""
        self._given += 1
        if self._given <= self.present:
            return
        histograms = {
            name: wandb.Histogram(np_histogram=(np.asarray(histogram.counts), np.asarray(histogram.edges)))
            for name, histogram in row.histograms.items()
        }
        # After an interrupted upload W&B's own step may be ahead: its summary arrived, but its lines did not.
        step = max(row.step, self._next)
        self._next = step + 1
        self._run.log({**row.metrics, **histograms, STEP: row.step, "_timestamp": row.time}, step=step, commit=True)

    def finish(self, state: str) -> None:
        """Wait until everything was sent. Unsent: it was not in time."""
        try:
            if state == RunState.PREEMPTED:
                self._run.mark_preempting()
            self._run.summary["state"] = state
            self._run.finish(exit_code=0 if state == RunState.DONE else 1)
        except TimeoutError as error:
            raise Unsent(f"{server()}: not everything was sent in time") from error
        finally:
            self._dir.cleanup()

    def confirm(self, ends: bool) -> None:
        """Wait until the server shows every step, and the end of the run if it has ended. Unsent: it refused some.

        wandb's finish does not report that the server refused steps.
        """
        deadline = time.monotonic() + CONFIRM_S
        while True:
            lines, state = self._on_server()
            if lines >= self._given and (state != "running" or not ends):
                return
            if time.monotonic() > deadline:
                raise Unsent(f"{self._path}: the server shows {lines} of {self._given} steps and refused the others")
            time.sleep(0.5)

    def _on_server(self) -> tuple[int, str]:
        """How many lines of history the server has, and the W&B run's state there."""
        try:
            _api().flush()  # type: ignore[no-untyped-call]  # else it answers from its cache
            run = _api().run(self._path)
            return int(run.historyLineCount or 0), str(run.state)
        except Exception as error:  # wandb's client has no common base for its errors
            raise Unsent(f"{self._path}: {one_line(str(error))}") from error


def wandb_id(folder: Path) -> str:
    """The id of a run's W&B run: the run's own, and after it was archived and run anew, with a number from 2 on.

    It is kept in the run's folder from the first use on, so that a resumed run has the same, whatever becomes of the
    archive.
    """
    file = folder / "wandb_id.json"
    if known := find_object(file):
        return str(known["id"])
    number = generation(multirun_of(folder), folder.name)
    name = folder.name if number == 1 else f"{folder.name}-{number}"
    files.write_json(file, {"id": name})
    return name


class LiveRun:
    """The sink of a running attempt: sends steps when a checkpoint contains them, and the rest when the run is done."""

    def __init__(self, folder: Path, config: Mapping[str, Any], settings: Settings) -> None:
        check_credentials()
        of_run = labels(multirun_of(folder)).get(folder.name, Labels())
        self._folder = folder
        self._writer = Writer(folder, config, settings, of_run, LIVE_FINISH_S, ends=True)
        self._held: dict[int, Row] = {}

    def row(self, row: Row) -> None:
        """Hold a step, or a part of it, until it is final and the next one has begun, so that no part follows."""
        held = self._held.get(row.step)
        self._held[row.step] = row if held is None else replace(held, histograms={**held.histograms, **row.histograms})
        self._send(min(last_final_step(self._folder), row.step - 1))

    def close(self, state: str) -> None:
        """Send the final steps, and end the W&B run."""
        self._send(sys.maxsize if state == RunState.DONE else last_final_step(self._folder))
        self._writer.finish(state)

    def _send(self, until: int) -> None:
        for step in [step for step in self._held if step <= until]:
            self._writer.row(self._held.pop(step))


def send(folder: Path, where: Settings, labels: Labels, state: str, until: int) -> str:
    """Append the missing steps up to `until` to the W&B run, and return its address.

    Unsent: not everything arrived. A run that has not ended stays `running` there.
    """
    ends = state not in RESUMABLE
    writer = Writer(folder, read_config(folder), where, labels, FINISH_S, ends)
    for row in rows(folder):
        if row.step > until:
            break
        writer.row(row)
    writer.finish(state)
    writer.confirm(ends)
    return writer.address

"""The section `budget` of a configuration: what the runs of an experiment may cost. It is part of no run's identity."""

from __future__ import annotations

from pydantic import Field

from analysis.spec.validation import Section


class Settings(Section):
    """device_hours: of all attempts of the experiment's runs, over all launches; None: without limit."""

    device_hours: float | None = Field(None, gt=0, description="device-hours above 0, or null")

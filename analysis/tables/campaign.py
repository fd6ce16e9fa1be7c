"""What the campaign of an experiment decided before its runs, as lines for the beginning of a report."""

from __future__ import annotations

from analysis.data.sweep import Sweep
from launcher.run import campaign_record
from launcher.run.campaign_record import Condition, Taken


def condition_lines(sweep: Sweep) -> list[str]:
    """A line for each gate that was forced before the experiment's stage, and one for each level that it took."""
    name = str(sweep.plan.get("experiment") or sweep.folder.name)
    try:
        conditions, taken = campaign_record.of_experiment(sweep.folder.parent, name)
    except ValueError as error:  # a record that cannot be read
        return [f"Whether a gate of a campaign was forced before these runs is not known: {error}"]
    return [*map(_forced, conditions), *(_taken(one, sweep) for one in taken)]


def _forced(condition: Condition) -> str:
    stage = condition.stage
    short = "; ".join(figure.sentence() for figure in stage.forced) or stage.incomplete or "its runs were not all done"
    since = " It is met since." if stage.met else ""
    return (
        f"Forced gate: campaign {condition.campaign} went on although the gate of its stage {stage.name} was not met "
        f"({stage.forced_by}). {short}.{since}"
    )


def _taken(taken: Taken, sweep: Sweep) -> str:
    label = sweep.label(taken.into) if taken.into in sweep.plan["groups"] else taken.into
    return (
        f"{label} has {taken.key} = {taken.value}, which stage {taken.stage} chose ({taken.experiment}, {taken.group}: "
        f"{taken.means})."
    )

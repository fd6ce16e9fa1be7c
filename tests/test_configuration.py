"""What the trainer's tests take for a run's configuration is what Hydra composes."""

from __future__ import annotations

import json

import pytest

from tests.configuration import SHIPPED, tree_of


@pytest.mark.parametrize(
    "overrides",
    [
        ("trainer.steps=6", "method=bnto_minimal", "method.alpha_lambda=50", "verl.actor_rollout_ref.actor.optim.lr=1"),
        ("method.target_steps=5", "method=q_star", "method/target=expert", "task=sorting", "method.target_path=null"),
    ],
)
def test_choices_and_values_compose_to_what_hydra_composes(overrides):
    theirs = SHIPPED.hydras_own([f"++{one}" if one.startswith("verl.") else one for one in overrides])
    assert json.dumps(tree_of(*overrides)) == json.dumps(theirs)

"""A name that the configuration does not have is answered with what the user probably means."""

from __future__ import annotations

import io
import re

import pytest

from launcher import text
from launcher.__main__ import main
from launcher.config import hydra_compose
from tests.configuration import SHIPPED
from tests.launcher.experiments import make, refused
from trainer_ext.application import other_names, verl_tree


def test_overrides_of_a_group_can_be_set_on_the_command_line():
    words = ["experiment=quickstart", "experiment.groups.C0.overrides={trainer.steps: 5}"]
    planned = make(*words)
    steps = {entry.group: planned.runs[entry.id].config["trainer"]["steps"] for entry in planned.experiments[0].entries}
    assert steps["C0"] == 5 and steps["C1"] != 5
    assert any("experiment.groups.C9.overrides" in line for line in refused(words[0], words[1].replace("C0", "C9")))


def test_one_cause_in_several_files_is_said_once():
    lines = refused("experiment=qstar_scale", "scale=design")
    assert len([line for line in lines if "model.resources.devices = 8: " in line]) == 1
    assert len({line.partition(": ")[2] for line in lines}) == len(lines)


@pytest.mark.parametrize("words", [["-m", "experiment=quickstart"], ["experiment=quickstart", "-m"]])
def test_plan_takes_the_flag_that_launch_py_takes(words, capsys, tmp_path):
    assert main(["plan", *words, f"multirun={tmp_path}", "seed=0,1"]) == 0
    said = capsys.readouterr().out
    assert "quickstart: 2 seeds detect only very large differences in eval/reward_mean (final) of " in said
    assert re.search(r"sd or more with 80% power.*\. 6 seeds would detect [0-9.]+ sd\. \(sd: ", said)


@pytest.mark.parametrize(
    ("number", "said"), [(0.0, "0.00"), (0.00014, "less than 0.01"), (0.01, "0.01"), (2.5, "2.50")]
)
def test_hours_have_two_decimals(number, said):
    assert text.hours(number) == said


def test_a_line_on_a_terminal_breaks_between_words(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setenv("COLUMNS", "20")
    words = "several words, model.resources.devices=8 and a-long-one-with-hyphens"
    text.say(words, terminal := Terminal())
    assert terminal.getvalue().split() == words.split() and terminal.getvalue().count("\n") > 2


def test_a_file_that_cannot_be_read_does_not_spoil_the_others(conf):
    (conf / "experiment/bad.yaml").write_text("experiment:\n\tname: bad\n")
    assert make("experiment=quickstart", "experiment.name=mine", conf=conf).runs


@pytest.mark.parametrize("group", other_names.OPTIONS)
def test_the_files_that_aliases_name_are_there(group):
    options = SHIPPED.options(group)
    assert set(other_names.OPTIONS[group].values()) <= set(options)
    assert not set(other_names.OPTIONS[group]) & set(options)


def test_the_keys_that_other_names_stand_for_are_there():
    tree = SHIPPED.compose([]).tree
    verl = verl_tree.compose("ppo_trainer").tree
    for name, key in other_names.KEYS.items():
        assert hydra_compose.lookup({**tree, "verl": verl}, key)[0], key
        assert not hydra_compose.lookup(tree, name)[0], name

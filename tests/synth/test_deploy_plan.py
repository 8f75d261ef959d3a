"""The critical path of a deploy, on templates small enough to reckon by hand, and on ours."""

import json

import pytest
from click.testing import CliRunner

from cdk_app import deploy_plan, durations, templates

TEMPLATES = {
    "net": {
        "Resources": {"Vpc": {"Type": "T::Quick"}, "Nat": {"Type": "T::Slow", "DependsOn": "Vpc"}},
        "Outputs": {"Out": {"Value": {"Ref": "Vpc"}, "Export": {"Name": "net:Vpc"}}},
    },
    "eks": {
        "Resources": {
            "Cluster": {"Type": "T::Slow", "Properties": {"Vpc": {"Fn::ImportValue": "net:Vpc"}}},
            "Addon": {"Type": "T::Quick", "Properties": {"Cluster": {"Fn::GetAtt": ["Cluster", "Name"]}}},
        }
    },
    "apart": {"Resources": {"Topic": {"Type": "T::Quick"}}},
}
AFTER = {"net": set(), "eks": {"net"}, "apart": set()}


@pytest.fixture
def minutes(monkeypatch):
    monkeypatch.setattr(durations, "DURATIONS", {"T::Slow": durations.Duration(10, "the test")})
    monkeypatch.setattr(durations, "OTHER", durations.Duration(1, "the test"))
    monkeypatch.setattr(durations, "STACK", durations.Duration(0.5, "the test"))


def test_a_stack_waits_for_the_whole_stack_and_the_shortest_chain_only_for_what_it_refers_to(minutes):
    made = deploy_plan.plan("small", TEMPLATES, AFTER)
    assert [step.resource for step in made.path] == ["Vpc", "Nat", "Cluster", "Addon"]
    assert made.minutes == 11 + 0.5 + 11 + 0.5
    assert made.unavoidable_minutes == 1 + 11 + 0.5
    assert made.one_at_a_time_minutes == 11.5 + 11.5 + 1.5


def test_an_order_that_no_reference_explains_cannot_be_avoided(minutes):
    made = deploy_plan.plan("small", TEMPLATES, AFTER | {"apart": {"eks"}})
    assert made.unavoidable_minutes == 1 + 11 + 0.5 + 1 + 0.5
    assert made.path[-1].resource == "Topic"


# The goal is 1.1. With everything on, what keeps us from it is in docs/reference/stacks.md.
@pytest.mark.parametrize(("name", "most"), [("paper", 1.1), ("everything", 1.19)])
def test_the_control_plane_waits_for_the_network_only_and_the_order_costs_little(name, most, request):
    synthesized = request.getfixturevalue(name)
    assert synthesized.after["eks"] == {"network"}
    made = deploy_plan.plan(name, synthesized.templates, synthesized.after)
    assert made.ratio < most
    assert "Custom::NodesJoined" in {step.type for step in made.path}
    assert all(step.source for step in made.path)


def test_the_command_says_how_far_it_is_from_the_goal(paper, monkeypatch):
    monkeypatch.setattr(templates, "of", lambda _: templates.Assembly(paper.templates, paper.after))
    told = CliRunner().invoke(deploy_plan.deploy_plan, ["--json"])
    answer = json.loads(told.output)
    assert told.exit_code == int(answer["ratio"] > answer["goal"])
    told = CliRunner().invoke(deploy_plan.deploy_plan, [])
    assert "longest unavoidable chain" in told.output
    assert "not measured" in told.output

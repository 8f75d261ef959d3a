"""cdk-nag's AwsSolutions rules: each finding in any environment is acknowledged with a reason, or fails."""

import json
from pathlib import Path

import cdk_nag
import pytest
from aws_cdk import App, Validations

from cdk_app import app as cdk_application
from cdk_app import names, settings
from stacks.acknowledgements import ACKNOWLEDGED
from stacks.environment import Environment
from tests.synth.conftest import ROOT, everything_on

# In place of values that only the template knows, the rules then say that they could not judge.
UNJUDGED = "CdkNagValidationFailure"


@pytest.fixture(scope="module")
def findings(tmp_path_factory) -> dict[str, list[tuple[str, str, str]]]:
    """(rule, construct from the stack's short name on, detail in brackets) by environment."""
    environments = [*map(settings.load, ("paper", "dev", "production")), everything_on()]
    return {made.name: _findings(made, tmp_path_factory.mktemp(made.name)) for made in environments}


def _findings(environment: Environment, out: Path) -> list[tuple[str, str, str]]:
    context = json.loads((ROOT / "cdk.json").read_text())["context"]
    app = App(context=context, builtin_cloud_formation_validation=False, outdir=str(out))
    cdk_application.build(app, environment, names.NO_ACCOUNT)
    Validations.of(app).add_plugins(cdk_nag.AwsSolutionsChecks(app))
    with pytest.raises(RuntimeError, match="ValidationFailed"):  # acknowledged findings are findings too
        app.synth()
    report = json.loads((out / "validation-report.json").read_text())
    found = []
    for violation in (v for plugin in report["pluginReports"] for v in plugin["violations"]):
        rule, _, detail = violation["ruleName"].removesuffix("]").partition("[")
        for construct in violation["violatingConstructs"]:
            where = construct["constructPath"].removeprefix(f"skypod-{environment.name}-")
            found.append((rule, where, detail))
    return found


@pytest.mark.slow
def test_every_finding_is_acknowledged_and_every_acknowledgement_is_needed(findings):
    assert all(findings.values())
    used = set()
    unacknowledged = []
    for environment, found in findings.items():
        for finding in found:
            covering = [entry for entry in ACKNOWLEDGED if entry.covers(*finding)]
            used.update(covering)
            if not covering:
                unacknowledged.append((environment, *finding))
    assert unacknowledged == [], "fix them, or give a reviewer's reason in stacks/acknowledgements.py"
    assert [entry for entry in ACKNOWLEDGED if entry not in used] == []
    assert not [finding for found in findings.values() for finding in found if UNJUDGED in finding[0]]


@pytest.mark.slow
def test_production_has_neither_a_public_control_plane_nor_unrecorded_traffic(findings):
    rules = {rule for rule, _, _ in findings["production"]}
    assert not rules & {"AwsSolutions-EKS1", "AwsSolutions-VPC7"}


def test_every_acknowledgement_says_why():
    assert all(len(entry.reason.split()) >= 8 for entry in ACKNOWLEDGED)

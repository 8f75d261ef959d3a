"""The command as a person calls it: a good account, bad ones, none."""

import json

import boto3
import click
import pytest
from click.testing import CliRunner

from cdk_app.doctor import report
from cdk_app.doctor.command import doctor
from cdk_app.doctor.finding import Finding, Status
from tests.doctor.accounts import DENIED, Account, good

OK, WARNING, FAILED, UNKNOWN = Status
ADDON = {"addons": [{"addonVersions": [{"addonVersion": "v1.3.0-eksbuild.1"}]}]}


def run(monkeypatch, account: Account | None, *arguments: str):
    if account is not None:
        monkeypatch.setattr(boto3, "Session", lambda: account.session)
    return CliRunner().invoke(doctor, arguments, catch_exceptions=False)


@pytest.mark.usefixtures("moto")
def test_a_good_account_passes_and_every_addon_of_the_templates_is_asked_for(monkeypatch):
    account = good()
    account.answer("eks.DescribeAddonVersions", ADDON)
    done = run(monkeypatch, account, "--json")
    told = json.loads(done.stdout)
    bad = [f for f in told["findings"] if f["status"] in ("failed", "unknown") and f["area"] != "tools"]
    assert bad == []
    assert told["environment"] == "paper"
    addons = {f["check"] for f in told["findings"] if f["area"] == "kubernetes"}
    assert {"add-on vpc-cni", "add-on aws-fsx-csi-driver"} <= addons
    assert sum(told["counts"].values()) == len(told["findings"])


@pytest.mark.usefixtures("moto")
def test_an_account_that_lacks_things_fails_with_a_remedy_for_each(monkeypatch):
    account = Account()
    account.quotas({})
    account.answer("eks.DescribeClusterVersions", DENIED)
    account.answer("eks.DescribeAddonVersions", DENIED)
    done = run(monkeypatch, account, "--environment", "dev")
    assert done.exit_code == 1
    assert "✗ cdk bootstrap" in done.output
    assert "-> cdk bootstrap aws://123456789012/us-west-2" in done.output
    assert "? Kubernetes 1.35" in done.output
    assert "these credentials may not call eks:DescribeAddonVersions" in done.output


def test_without_credentials_the_rest_is_checked_and_the_exit_says_so(monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    done = run(monkeypatch, None, "--json")
    told = json.loads(done.stdout)
    account = [f for f in told["findings"] if f["area"] == "account"]
    assert [(f["check"], f["status"]) for f in account] == [("credentials", "unknown")]
    assert "aws sso login" in account[0]["remedy"]
    assert {f["area"] for f in told["findings"]} >= {"versions", "pods", "cost"}
    failed = any(f["status"] == "failed" for f in told["findings"])
    assert done.exit_code == (1 if failed else 3)


def test_offline_asks_nothing(monkeypatch):
    done = run(monkeypatch, None, "--offline", "--json")
    told = json.loads(done.stdout)
    assert told["endpoint"] == ""
    assert not {"account", "zones", "quotas"} & {f["area"] for f in told["findings"]}


def test_a_remedy_that_neighbours_share_stands_once():
    ask = [Finding("quotas", name, UNKNOWN, "not offered", "1", "ask AWS") for name in ("one", "longer")]
    text = click.unstyle(report.block([*ask, Finding("quotas", "last", OK, "3", "1")]))
    assert text.splitlines() == [
        "",
        "quotas",
        "  ? one     not offered; needed: 1",
        "  ? longer  not offered; needed: 1",
        "      -> ask AWS",
        "  ✓ last    3",
    ]


def test_the_count_names_every_status():
    findings = [Finding("a", "b", status, "") for status in (OK, OK, WARNING, FAILED)]
    assert report.counted(findings) == "2 ok, 1 warning, 1 failed, 0 unknown"

"""`skypod readback` and `skypod residue`: whether AWS has what the settings ask for, and what is left."""

import json
from dataclasses import asdict

import boto3
import click

from cdk_app import caller, options, outputs, settings
from cdk_app import readback as reading
from cdk_app import residue as sweeping
from cdk_app.doctor import cost
from stacks.environment import Environment


@click.command()
@options.environment
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.pass_context
def readback(ctx: click.Context, environment: str, as_json: bool) -> None:
    """Compare what AWS's services say of a deployed environment with its settings.

    Sees what was changed by hand, also where `cdk diff` and `cdk drift` do not look.

    Exit status: 0 all is as set, 1 something is not.

    \b
    Examples:
      skypod readback
      skypod readback --environment production --json
    """
    chosen = settings.load(environment)
    session = boto3.Session(region_name=chosen.region)
    checks = reading.compare(session, chosen, outputs.read(session, chosen))
    wrong = [check for check in checks if not check.ok]
    if as_json:
        click.echo(json.dumps({"checks": [{**asdict(check), "ok": check.ok} for check in checks]}))
    else:
        for check in wrong:
            click.echo(f"{check.what}: {check.found}, and the settings ask for {check.expected}")
        click.echo(f"{len(checks) - len(wrong)} of {len(checks)} properties are as set")
    ctx.exit(1 if wrong else 0)


@click.command()
@options.environment
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.pass_context
def residue(ctx: click.Context, environment: str, as_json: bool) -> None:
    """List everything of an environment that still exists: all of it while deployed, nothing after a destroy.

    Exit status: 0 nothing is left, 1 something is.

    \b
    Examples:
      skypod residue
      skypod residue --environment production --json
    """
    chosen = settings.load(environment)
    session = boto3.Session(region_name=chosen.region)
    account = caller.account(session, chosen)
    left = sweeping.sweep(session, chosen)
    months = [monthly_usd(item, chosen) for item in left]
    known = sum(month for month in months if month)
    where = f"environment {chosen.name} in account {account}, {chosen.region}"
    if as_json:
        items = [{**asdict(item), "monthly_usd": month} for item, month in zip(left, months, strict=True)]
        answer = {"environment": chosen.name, "account": account, "region": chosen.region}
        click.echo(json.dumps({**answer, "left": items, "known_monthly_usd": round(known, 2)}))
    else:
        for item, month in zip(left, months, strict=True):
            said = ", ".join(filter(None, [item.detail, f"about {month:,.0f} USD a month" if month else ""]))
            click.echo(f"{item.kind:24} {item.identifier}{f'  ({said})' if said else ''}")
        most = f", at least {known:,.0f} USD a month" if known else ""
        click.echo(f"{len(left) or 'nothing'} left of {where}{most}")
    ctx.exit(1 if left else 0)


def monthly_usd(item: sweeping.Residue, environment: Environment) -> float | None:
    """About what the thing costs, where a price is known; sizes are those of the settings."""
    storage, expected = environment.storage, cost.expected(environment)
    lustre = cost.LUSTRE_GB_MONTH[storage.lustre_throughput_mib_s_per_tib].usd
    return {
        "EKS cluster": cost.EKS_HOUR * cost.HOURS_A_MONTH,
        "NAT gateway": cost.NAT_HOUR * cost.HOURS_A_MONTH,
        "KMS key": cost.KEY_MONTH,
        "FSx file system": lustre * storage.lustre_capacity_gib,
        "HyperPod cluster": None if expected.without_price else expected.nodes_hour * cost.HOURS_A_MONTH,
    }.get(item.kind)

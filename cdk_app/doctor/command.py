"""`skypod doctor`: everything that can be known before money is spent, with a remedy for what is wrong."""

import json
import os
from itertools import chain
from pathlib import Path

import boto3
import click

from cdk_app import settings
from cdk_app.doctor import account, examination, report
from cdk_app.doctor.aws import Aws
from cdk_app.doctor.finding import Finding, Unknown, exit_code
from training import recipe as recipes
from training.run import SHARED_VARIABLE

ROOT = Path(__file__).parents[2]
EPILOG = """\b
Examples:
  skypod doctor                                     before `cdk deploy`
  skypod doctor --environment paper --recipe 6gpu   before submitting a recipe
  skypod doctor --offline                           without asking AWS

\b
Exit codes: 0 nothing failed (warnings may be left), 1 something failed,
2 wrong settings or recipe, 3 nothing failed but AWS could not be asked."""


@click.command(epilog=EPILOG)
@click.option(
    "--environment", "environment_name", default=settings.DEFAULT, show_default=True, help="Name or file."
)
@click.option("--recipe", "recipe_name", help="Name or file; without one its checks are left out.")
@click.option("--offline", is_flag=True, help="Ask AWS nothing.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.option(
    "--shared",
    type=click.Path(file_okay=False, path_type=Path),
    default=lambda: os.environ.get(SHARED_VARIABLE, ROOT / ".rehearsal" / "shared"),
    help=f"Where base models are looked for; default ${SHARED_VARIABLE}, or the rehearsal's.",
)
@click.pass_context
def doctor(
    ctx: click.Context,
    environment_name: str,
    recipe_name: str | None,
    offline: bool,
    as_json: bool,
    shared: Path,
) -> None:
    """Check account, quotas, versions, cost and memory before deploying or submitting."""
    environment = settings.load(environment_name)
    recipe = recipes.load(recipes.find(recipe_name, ROOT / "recipes")) if recipe_name else None
    aws = None if offline else Aws(boto3.Session(), environment.region)
    endpoint = aws.endpoint if aws else ""
    who = account.identity(aws) if aws else None
    areas = chain(
        examination.of_account(aws, environment, who) if aws else (),
        examination.of_settings(environment),
        examination.of_recipe(environment, recipe, shared) if recipe else (),
    )
    if not as_json:
        subject = f"environment {environment.name} in {environment.region}"
        subject += f", recipe {recipe.name}" if recipe else ""
        emulator = " (an emulator)" if aws and aws.emulated else ""
        click.echo(f"{subject}; AWS {f'at {endpoint}{emulator}' if aws else 'was not asked'}")
    findings: list[Finding] = []
    for area in areas:
        findings += area
        if not as_json:
            click.echo(report.block(area))
    if as_json:
        about = {"environment": environment.name, "region": environment.region, "endpoint": endpoint}
        about |= {"recipe": recipe.name if recipe else ""}
        click.echo(json.dumps(report.to_json(findings, **about), indent=2))
    else:
        click.echo(f"\n{report.counted(findings)}")
    ctx.exit(exit_code(findings, aws_answered=not isinstance(who, Unknown)))

"""The `skypod` command: one group, its parts loaded when they are used."""

import errno
import importlib
import sys

import click

from training.errors import SkypodError, SubstrateError, visible

COMMANDS = {
    "adapters": ("cdk_app.promote:adapters", "Show what is served and every rollout; watch the live one."),
    "audit-contamination": (
        "cdk_app.audit:audit_contamination",
        "Count what a run's splits repeat of each other and of what was trained on.",
    ),
    "audit-reward": ("cdk_app.audit:audit_reward", "Play for a reward with scripted adversaries."),
    "cluster": (
        "cdk_app.cluster_command:group",
        "Create, list and delete the Ray cluster that runs train on.",
    ),
    "checkpoints": (
        "cdk_app.checkpoints:checkpoints",
        "Check a run's checkpoints, copy the newest to S3, fetch it from there.",
    ),
    "compare": ("cdk_app.compare:compare", "Name the first step at which two runs part, if they do."),
    "deploy-plan": (
        "cdk_app.deploy_plan:deploy_plan",
        "Print the critical path of a first deploy and what the order of the stacks costs.",
    ),
    "doctor": (
        "cdk_app.doctor.command:doctor",
        "Check account, quotas, versions, cost and memory before deploying or submitting.",
    ),
    "drill": ("rehearsal.drills.command:drill", "Kill, hang and damage runs on purpose, and compare."),
    "evaluate": ("cdk_app.evaluate:evaluate", "Play a split of a run with any policy."),
    "export": (
        "cdk_app.export:export",
        "Write an adapter with all it takes to see its solve rate again elsewhere.",
    ),
    "gate": ("cdk_app.gate:gate", "Decide whether a run's adapter passes the thresholds of its recipe."),
    "images": ("cdk_app.images:images", "List the deployed images by digest, and build missing ones."),
    "promote": ("cdk_app.promote:promote", "Bring an adapter to all traffic, step by step."),
    "readback": (
        "cdk_app.look:readback",
        "Compare what AWS says of a deployed environment with its settings.",
    ),
    "residue": ("cdk_app.look:residue", "List what still exists of an environment, and what it costs."),
    "rehearse": ("rehearsal.command:rehearse", "Run the whole job on this machine: no AWS account, no GPU."),
    "rollback": ("cdk_app.promote:rollback", "Let the adapter answer that was live before."),
    "sweep": ("rehearsal.sweep:command", "Run a recipe under several seeds on this machine."),
    "train": ("cdk_app.train:train", "Submit, watch, resume and stop training runs."),
}


OUTSIDE = {
    "boto3.exceptions": ("Boto3Error",),
    "botocore.exceptions": ("BotoCoreError", "ClientError"),
    "kubernetes.client.exceptions": ("ApiException",),
    "urllib3.exceptions": ("HTTPError",),
}
"""What the libraries below us raise when AWS, Kubernetes or Ray does not answer or refuses."""
FILE_REMEDY = "look at what is in that place, how much is free, and who may read and write it"
OUTSIDE_REMEDY = "check credentials, region and network: `aws sts get-caller-identity`, `kubectl get nodes`"


class Lazy(click.Group):
    """Imports a command only when it is called, so that `--help` and synth stay light."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[name][0].partition(":")
        return getattr(importlib.import_module(module), attribute)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in sorted(COMMANDS.items())])


@click.command(cls=Lazy)
@click.version_option(package_name="skypod")
def cli() -> None:
    """From `cdk deploy` to a served adapter, and back to nothing."""


def outside() -> tuple[type[Exception], ...]:
    """OUTSIDE as classes: of loaded libraries, which alone can have raised; not every environment has all."""
    loaded = {module: names for module, names in OUTSIDE.items() if module in sys.modules}
    return (OSError, *(getattr(sys.modules[m], name) for m, names in loaded.items() for name in names))


def main() -> None:
    """Run the command; errors of ours are printed with their remedy, without a traceback."""
    try:
        sys.exit(cli(standalone_mode=False) or 0)
    except SkypodError as error:
        click.secho(f"error: {visible(error.problem, keep='\n')}", fg="red", err=True)
        if error.remedy:
            click.echo(f"  -> {visible(error.remedy, keep='\n')}", err=True)
        sys.exit(error.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except outside() as error:
        click.secho(f"error: {type(error).__name__}: {str(error)[:1500]}", fg="red", err=True)
        of_a_file = isinstance(error, OSError) and (
            error.filename is not None or error.errno in (errno.ENOSPC, errno.EDQUOT)
        )
        click.echo(f"  -> {FILE_REMEDY if of_a_file else OUTSIDE_REMEDY}", err=True)
        sys.exit(SubstrateError.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted; everything that was started has been stopped", err=True)
        sys.exit(130)

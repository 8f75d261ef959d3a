"""What all stacks have in common: the settings, the names, and outputs checked against one table."""

from dataclasses import fields
from pathlib import Path
from typing import Any, ClassVar

import aws_cdk as cdk
from aws_cdk import aws_kms as kms
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs
from constructs import Construct

from stacks.environment import Environment
from stacks.names import Names
from stacks.outputs import Outputs, cloudformation_name

_HERE = Path(__file__).parent
_OUTPUT_STACK = {field.name: field.metadata.get("stack") for field in fields(Outputs)}


class SkypodStack(cdk.Stack):
    """A stack of one environment. `part` is its short name, `summary` its description in the console."""

    part: ClassVar[str]
    summary: ClassVar[str]

    def __init__(self, scope: Construct, environment: Environment, names: Names):
        self.settings = environment
        self.names = names
        super().__init__(
            scope,
            names.stack(self.part),
            env=cdk.Environment(account=names.account, region=names.region),
            description=self.summary,
            termination_protection=environment.guardrails.termination_protection,
        )

    def emit(self, **outputs: str) -> None:
        """Make CloudFormation outputs of fields of `Outputs`; each must belong to this stack."""
        for name, value in outputs.items():
            if _OUTPUT_STACK.get(name) != self.part:
                raise ValueError(f"{name!r} is not an output of the {self.part} stack")
            cdk.CfnOutput(self, cloudformation_name(name), value=value)

    @property
    def data_removal(self) -> cdk.RemovalPolicy:
        """What happens to data when its stack is destroyed: gone, unless the settings keep it."""
        keep = self.settings.storage.keep_data
        return cdk.RemovalPolicy.RETAIN if keep else cdk.RemovalPolicy.DESTROY

    def key(
        self, construct_id: str, what: str, removal_policy: cdk.RemovalPolicy = cdk.RemovalPolicy.DESTROY
    ) -> kms.Key:
        """A key for `what`, rotated every year; a deleted one can be rescued for seven days."""
        return kms.Key(
            self,
            construct_id,
            description=f"{self.names.prefix}: {what}",
            enable_key_rotation=True,
            pending_window=cdk.Duration.days(7),
            removal_policy=removal_policy,
        )

    def log_group(self, construct_id: str, name: str) -> logs.LogGroup:
        """A log group that expires by the settings and goes with the stack."""
        days = self.settings.observability.log_retention_days
        return logs.LogGroup(
            self,
            construct_id,
            log_group_name=name,
            retention=_retention(days),
            removal_policy=cdk.RemovalPolicy.DESTROY,
        )

    def handler(
        self, module: str, *, timeout_s: int, reach: dict[str, Any] | None = None, **kwargs
    ) -> lambda_.Function:
        """A function from `stacks/handlers/<module>.py`; its package is the only code in the archive.

        `reach` is where it must be to reach the control plane: `EksStack.reach`.
        """
        reach = reach or {}
        construct_id = "".join(part.capitalize() for part in module.split("_"))
        return lambda_.Function(
            self,
            construct_id,
            runtime=lambda_.Runtime.PYTHON_3_12,
            architecture=lambda_.Architecture.ARM_64,
            handler=f"handlers.{module}.handler",
            code=lambda_.Code.from_asset(
                str(_HERE),
                exclude=["*", "!handlers", "!handlers/*.py"],
                ignore_mode=cdk.IgnoreMode.GIT,
            ),
            timeout=cdk.Duration.seconds(timeout_s),
            memory_size=256,
            vpc=reach.get("vpc"),
            vpc_subnets=reach.get("subnets"),
            security_groups=reach.get("security_groups"),
            log_group=self.log_group(f"{construct_id}Log", self.names.log_group(f"{self.part}-{module}")),
            **kwargs,
        )


def _retention(days: int) -> logs.RetentionDays:
    by_days = {
        1: logs.RetentionDays.ONE_DAY,
        3: logs.RetentionDays.THREE_DAYS,
        5: logs.RetentionDays.FIVE_DAYS,
        7: logs.RetentionDays.ONE_WEEK,
        14: logs.RetentionDays.TWO_WEEKS,
        30: logs.RetentionDays.ONE_MONTH,
        60: logs.RetentionDays.TWO_MONTHS,
        90: logs.RetentionDays.THREE_MONTHS,
        180: logs.RetentionDays.SIX_MONTHS,
        365: logs.RetentionDays.ONE_YEAR,
    }
    return by_days[days]

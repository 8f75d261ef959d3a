"""Whose account is asked: that of the credentials, which must be the one that the settings name."""

import boto3

from stacks.environment import Environment
from training.errors import SubstrateError


def account(session: boto3.Session, environment: Environment) -> str:
    """The account of the session. Raises SubstrateError where the settings name another one."""
    asker = session.client("sts", region_name=environment.region).get_caller_identity()
    if environment.account not in (None, asker["Account"]):
        raise SubstrateError(
            f"the credentials are of account {asker['Account']} ({asker['Arn']}), and environment "
            f"{environment.name} is in account {environment.account}",
            f"take credentials of account {environment.account} (AWS_PROFILE, `aws sso login`), or correct "
            "`account` in the settings file",
        )
    return asker["Account"]

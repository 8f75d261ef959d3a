"""The physical names of an environment, as the stacks use them."""

from stacks.environment import Environment
from stacks.names import PARTS, Names

__all__ = ["NO_ACCOUNT", "PARTS", "Names", "of"]

NO_ACCOUNT = "123456789012"
"""Stands in for the account when templates are made without credentials."""


def of(environment: Environment, account: str) -> Names:
    """Names of `environment` in `account`; `stacks` are those that its settings switch on."""
    return Names(
        environment=environment.name,
        account=account,
        region=environment.region,
        parts=environment.parts,
    )

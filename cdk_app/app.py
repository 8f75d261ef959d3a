"""The CDK application: `cdk <command> -c environment=paper` (or a path to a settings file)."""

import os
import sys
from dataclasses import dataclass

import aws_cdk as cdk

from cdk_app import guard, names, settings
from stacks.access import AccessStack
from stacks.collector import CollectorStack
from stacks.eks import EksStack
from stacks.endpoint import EndpointStack
from stacks.environment import Environment
from stacks.governance import GovernanceStack
from stacks.guardrails import GuardrailsStack
from stacks.hyperpod import HyperPodStack
from stacks.images import ImagesStack
from stacks.inference import InferenceStack
from stacks.lustre import LustreStack
from stacks.network import NetworkStack
from stacks.observability import ObservabilityStack
from stacks.operators import OperatorsStack
from stacks.serving import ServingStack
from stacks.storage import StorageStack
from stacks.studio import StudioStack
from training.errors import SkypodError


@dataclass(frozen=True)
class Stacks:
    """All stacks of one environment; None for those that its settings leave out."""

    network: NetworkStack
    guardrails: GuardrailsStack
    storage: StorageStack
    lustre: LustreStack
    images: ImagesStack
    eks: EksStack
    observability: ObservabilityStack
    hyperpod: HyperPodStack
    governance: GovernanceStack | None
    operators: OperatorsStack
    endpoint: EndpointStack | None
    access: AccessStack
    studio: StudioStack | None
    collector: CollectorStack
    serving: ServingStack
    inference: InferenceStack | None


def build(app: cdk.App, environment: Environment, account: str) -> Stacks:
    """Add every stack of `environment` to `app`, so ordered that a lack of nodes never rolls back EKS."""
    # The zones are settings; without this CDK would ask the account for them.
    app.node.set_context(
        f"availability-zones:account={account}:region={environment.region}", list(environment.network.zones)
    )
    named = names.of(environment, account)
    common = (app, environment, named)
    network = NetworkStack(*common)
    guardrails = GuardrailsStack(*common)
    storage = StorageStack(*common)
    lustre = LustreStack(*common, network=network, storage=storage)
    images = ImagesStack(*common)
    eks = EksStack(*common, network=network)
    hyperpod = HyperPodStack(*common, network=network, storage=storage, eks=eks)
    # No node starts before there is a budget that says so.
    hyperpod.add_stack_dependency(guardrails)
    observability = ObservabilityStack(*common, guardrails=guardrails)
    operators = OperatorsStack(*common, eks_stack=eks, hyperpod=hyperpod, storage=storage, lustre=lustre)
    governance = None
    if environment.governance.enabled:
        governance = GovernanceStack(*common, eks_stack=eks, hyperpod=hyperpod)
        operators.add_stack_dependency(governance)
    endpoint = None
    if environment.domain:
        endpoint = EndpointStack(
            *common, domain=environment.domain, network=network, eks_stack=eks, operators=operators
        )
    access = AccessStack(*common, eks_stack=eks, hyperpod=hyperpod, storage=storage, images=images)
    studio = None
    if environment.studio.enabled:
        studio = StudioStack(
            *common,
            network=network,
            eks_stack=eks,
            hyperpod=hyperpod,
            images=images,
            access=access,
            observability=observability,
        )
    collector = CollectorStack(
        *common,
        guardrails=guardrails,
        lustre=lustre,
        eks_stack=eks,
        hyperpod=hyperpod,
        observability=observability,
    )
    serving = ServingStack(*common, eks_stack=eks, storage=storage, operators=operators, endpoint=endpoint)
    inference = None
    if environment.serving.endpoint:
        inference = InferenceStack(*common, settings=environment.serving.endpoint, storage=storage)
        inference.add_stack_dependency(guardrails)
    for key, value in named.tags.items():
        cdk.Tags.of(app).add(key, value)
    return Stacks(
        network=network,
        guardrails=guardrails,
        storage=storage,
        lustre=lustre,
        images=images,
        eks=eks,
        observability=observability,
        hyperpod=hyperpod,
        governance=governance,
        operators=operators,
        endpoint=endpoint,
        access=access,
        studio=studio,
        collector=collector,
        serving=serving,
        inference=inference,
    )


def main() -> None:
    """Synthesize the environment that the context names; `paper` without one."""
    # Neither has a reader: traces of Python code end in jsii's runtime, and the tree is for a console's view.
    app = cdk.App(stack_traces=False, tree_metadata=False)
    try:
        environment = settings.load(app.node.try_get_context("environment") or settings.DEFAULT)
    except SkypodError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
    account = environment.account or os.environ.get("CDK_DEFAULT_ACCOUNT") or names.NO_ACCOUNT
    build(app, environment, account)
    # The CDK's own switch. Its validator's engine takes seconds to load, and only here is it loaded.
    if os.environ.get("CDK_VALIDATION") != "false":
        cdk.Validations.of(app).add_plugins(guard.validator())
    app.synth()

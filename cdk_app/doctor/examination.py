"""All checks in their order, area by area: facts are gathered here and judged in the modules of the areas."""

from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from cdk_app import names
from cdk_app.doctor import (
    account,
    cost,
    domain,
    exposure,
    fit,
    images,
    kubernetes,
    quotas,
    shapes,
    signin,
    task,
    templates,
    tools,
    versions,
    zones,
)
from cdk_app.doctor.aws import Aws
from cdk_app.doctor.finding import Finding, Unknown, unknown
from cdk_app.doctor.instances import groups
from cdk_app.settings import Environment
from training.recipe import Recipe

Area = list[Finding]


def of_account(aws: Aws, environment: Environment, who: account.Identity | Unknown) -> Iterator[Area]:
    """What only the account can tell; no more than one unknown finding when it cannot be asked at all."""
    identified = account.check_identity(environment, who, emulated=aws.emulated)
    if isinstance(who, Unknown):
        yield identified
        return
    bootstrap = account.check_bootstrap(environment, who.account, account.bootstrap_version(aws))
    yield [*identified, bootstrap]
    types = [group.instance_type for group in groups(environment).values()]
    yield zones.check(environment, zones.zones(aws), zones.offers(aws, types))
    needs = quotas.needs(environment)
    used = quotas.used_by_others(aws, environment, names.of(environment, who.account))
    yield quotas.check(environment, quotas.quotas(aws, needs), used)
    supported = kubernetes.support(aws, environment.eks.version)
    addons = _addons(aws, environment, who.account)
    yield [kubernetes.check_support(environment, supported), *addons]
    if signs_in := _sign_in(aws, environment):
        yield signs_in
    if wanted := environment.domain:
        yield domain.check(wanted, domain.zone(aws, wanted), domain.certificate(aws, wanted))


def of_settings(environment: Environment) -> Iterator[Area]:
    """What the files of this checkout and the programs on this machine tell."""
    try:
        client = metadata.version("ray")
    except metadata.PackageNotFoundError:
        client = ""
    sources = versions.Sources(images.read("train"), images.read("serve"), client)
    yield versions.check(environment, sources)
    yield tools.check(environment, tools.read())
    yield [fit.check_gpus(environment), *fit.check_pods(environment)]
    yield cost.check(environment)
    yield exposure.check(environment)


def of_recipe(environment: Environment, recipe: Recipe, shared: Path) -> Iterator[Area]:
    """Whether the recipe can run in the environment, and its results can be believed."""
    shape = shapes.find(recipe.policy.base_model, shared)
    yield [
        *fit.check_topology(environment, recipe),
        *fit.check_memory(environment, recipe, shape),
        *task.check(recipe, shared),
    ]


def _addons(aws: Aws, environment: Environment, account_id: str) -> Area:
    """One line for each add-on of the templates; one line in all where EKS does not tell about any."""
    version = environment.eks.version
    tried = kubernetes.addon_versions(aws, "vpc-cni", version)
    made = tried if isinstance(tried, Unknown) else templates.synthesize(environment, account_id)
    if isinstance(made, Unknown):
        return [unknown(kubernetes.AREA, "add-ons", made, f"all of the templates for {version}")]
    return [
        kubernetes.check_addon(environment, name, pinned, kubernetes.addon_versions(aws, name, version))
        for name, pinned in sorted(kubernetes.addons(made).items())
    ]


def _sign_in(aws: Aws, environment: Environment) -> Area:
    if secret := environment.observability.grafana_token_secret_arn:
        return [signin.check_token(environment, signin.secret_exists(aws, secret))]
    if not environment.observability.grafana:
        return []
    found = signin.identity_centers(aws)
    return [signin.check_identity_center(environment, found, signin.management_account(aws))]

"""What the settings cost, from a dated table of list prices, and how far the budget goes."""

from dataclasses import dataclass

from cdk_app.doctor.finding import Finding, Status, Unknown, judge, unknown
from cdk_app.doctor.instances import groups
from stacks.environment import Environment

AREA = "cost"
HOURS_A_MONTH = 730
HOURS_WORTH_STARTING = 24


@dataclass(frozen=True)
class Price:
    """USD, and where it was read; `estimate` where no list price was found."""

    usd: float
    source: str
    estimate: bool = False


_STUDIO = (
    "SageMaker price list (Studio), us-west-2, 2026-09-01; HyperPod is some 3 to 4 % above on other types"
)
_HYPERPOD = "SageMaker HyperPod price list, us-west-2, 2026-10"
NODE_HOUR = {
    "ml.g7e.2xlarge": Price(4.2039, _STUDIO),
    "ml.g7e.12xlarge": Price(10.3576, _STUDIO),
    "ml.r5d.16xlarge": Price(5.5, "no list price found: EC2's with a surcharge", estimate=True),
    "ml.p4d.24xlarge": Price(25.91, _HYPERPOD),
    "ml.p5.48xlarge": Price(66.048, _HYPERPOD),
    "ml.p5en.48xlarge": Price(75.96, _HYPERPOD),
    "ml.g6e.48xlarge": Price(37.66, "SageMaker HyperPod price list, us-east-1, 2026-10-04"),
}
EKS_HOUR = 0.10
NAT_HOUR = 0.045
KEY_MONTH = 1.0
GRAFANA_EDITOR_MONTH = 9.0
LUSTRE_GB_MONTH = {
    125: Price(0.145, "FSx price list, us-east-1, no date"),
    250: Price(0.210, "FSx, not confirmed", estimate=True),
    500: Price(0.340, "FSx, not confirmed", estimate=True),
    1000: Price(0.600, "FSx, not confirmed", estimate=True),
}
PRICED_REGION = "us-west-2"


@dataclass(frozen=True)
class Cost:
    """USD an hour: of the nodes while they run, and of everything that stays when they do not."""

    nodes_hour: float
    rest_hour: float
    estimated: tuple[str, ...]
    without_price: tuple[str, ...]

    @property
    def hour(self) -> float:
        return self.nodes_hour + self.rest_hour


def expected(environment: Environment) -> Cost:
    """Steady cost; storage of S3, traffic, log and metric ingestion depend on use and are not in it."""
    nodes_hour, without_price, estimated = 0.0, [], []
    for group in groups(environment).values():
        price = NODE_HOUR.get(group.instance_type)
        if price is None:
            without_price.append(group.instance_type)
            continue
        nodes_hour += price.usd * group.count
        estimated += [group.instance_type] if price.estimate else []
    endpoint_hour = 0.0
    if endpoint := environment.serving.endpoint:
        price = NODE_HOUR.get(endpoint.instance_type)
        if price is None:
            without_price.append(endpoint.instance_type)
        else:
            endpoint_hour = price.usd * endpoint.min_copies
            estimated.append("the endpoint")
    lustre = LUSTRE_GB_MONTH[environment.storage.lustre_throughput_mib_s_per_tib]
    estimated += ["Lustre"] if lustre.estimate else []
    month = lustre.usd * environment.storage.lustre_capacity_gib + KEY_MONTH
    month += GRAFANA_EDITOR_MONTH if environment.observability.grafana else 0
    rest_hour = EKS_HOUR + NAT_HOUR + endpoint_hour + month / HOURS_A_MONTH
    return Cost(nodes_hour, rest_hour, tuple(estimated), tuple(dict.fromkeys(without_price)))


def check(environment: Environment) -> list[Finding]:
    cost = expected(environment)
    budget = environment.guardrails.monthly_budget_usd
    if cost.without_price:
        missing = ", ".join(cost.without_price)
        why = Unknown(f"no price of {missing} is known here", "add it to NODE_HOUR in cdk_app/doctor/cost.py")
        return [unknown(AREA, "an hour", why)]
    hours = budget / cost.hour
    notes = [f"list prices of {PRICED_REGION}, autumn 2026"]
    notes += [f"{', '.join(cost.estimated)} estimated"] if cost.estimated else []
    spent = f"{cost.hour:.2f} USD while nodes run, {cost.rest_hour:.2f} without them ({'; '.join(notes)})"
    lasts = f"{budget:,} USD last {hours:,.0f} hours with all nodes; a whole month would be "
    lasts += f"{cost.hour * HOURS_A_MONTH:,.0f} USD"
    return [
        Finding(AREA, "an hour", Status.OK, spent),
        judge(
            AREA,
            "monthly budget",
            hours >= HOURS_WORTH_STARTING,
            lasts,
            needed=f"{HOURS_WORTH_STARTING} hours",
            remedy="raise guardrails.monthly_budget_usd (it warns, it stops nothing), or use fewer nodes",
            warn=True,
        ),
    ]

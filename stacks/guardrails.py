"""The monthly budget and the topic that all alerts go to; deployed before anything that costs money."""

from aws_cdk import aws_budgets as budgets
from aws_cdk import aws_iam as iam
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sns_subscriptions as subscriptions
from constructs import Construct

from stacks.base import SkypodStack
from stacks.environment import Environment
from stacks.names import ENVIRONMENT_TAG, Names

# Who may publish to the topic, and what they call to do so.
_PUBLISHERS = {
    "budgets.amazonaws.com": ("sns:Publish",),
    "aps.amazonaws.com": ("sns:Publish", "sns:GetTopicAttributes"),
    "cloudwatch.amazonaws.com": ("sns:Publish",),
}


class GuardrailsStack(SkypodStack):
    """A budget warns and cannot stop anything; its figures lag by hours."""

    part = "guardrails"
    summary = "Monthly budget and the alert topic"

    def __init__(self, scope: Construct, environment: Environment, names: Names):
        super().__init__(scope, environment, names)
        key = self.key("AlertsKey", "alerts")
        self.topic = sns.Topic(
            self, "Alerts", topic_name=names.alerts_topic, enforce_ssl=True, master_key=key
        )
        # What SNS itself tells the key; not every publisher's request to a key says whose account it is for.
        arn = f"arn:aws:sns:{names.region}:{names.account}:{names.alerts_topic}"
        for_this_topic = {"StringEquals": {"kms:EncryptionContext:aws:sns:topicArn": arn}}
        for service, actions in _PUBLISHERS.items():
            publisher = iam.ServicePrincipal(service)
            self.topic.add_to_resource_policy(
                iam.PolicyStatement(
                    principals=[publisher],
                    actions=list(actions),
                    resources=[self.topic.topic_arn],
                    conditions={"StringEquals": {"aws:SourceAccount": names.account}},
                )
            )
            # Without these a publisher fails without a word to anybody.
            key.add_to_resource_policy(
                iam.PolicyStatement(
                    principals=[publisher],
                    actions=["kms:Decrypt", "kms:GenerateDataKey*"],
                    resources=["*"],
                    conditions=for_this_topic,
                )
            )
        if environment.observability.alert_email:
            self.topic.add_subscription(
                subscriptions.EmailSubscription(environment.observability.alert_email)
            )
        settings = environment.guardrails
        budget = budgets.CfnBudget
        self.budget = budget(
            self,
            "Monthly",
            budget=budget.BudgetDataProperty(
                budget_name=names.budget,
                budget_type="COST",
                time_unit="MONTHLY",
                budget_limit=budget.SpendProperty(amount=settings.monthly_budget_usd, unit="USD"),
                cost_filters=_filters(environment),
            ),
            resource_tags=[
                budget.ResourceTagProperty(key=key, value=value) for key, value in names.tags.items()
            ],
            notifications_with_subscribers=[
                budget.NotificationWithSubscribersProperty(
                    notification=budget.NotificationProperty(
                        notification_type=kind,
                        comparison_operator="GREATER_THAN",
                        threshold=percent,
                        threshold_type="PERCENTAGE",
                    ),
                    subscribers=[
                        budget.SubscriberProperty(subscription_type="SNS", address=self.topic.topic_arn)
                    ],
                )
                for kind, percent in [
                    *(("ACTUAL", percent) for percent in settings.alert_at_percent),
                    ("FORECASTED", 100),
                ]
            ],
        )
        self.emit(alerts_topic_arn=self.topic.topic_arn, budget_name=names.budget)


def _filters(environment: Environment) -> dict[str, list[str]] | None:
    """What the budget counts: the whole account, or only what carries this environment's tag."""
    if environment.guardrails.budget_covers == "account":
        return None
    return {"TagKeyValue": [f"user:{ENVIRONMENT_TAG}${environment.name}"]}

"""The monthly budget and the topic that all alerts go to; deployed before anything that costs money."""

from aws_cdk import aws_budgets as budgets
from aws_cdk import aws_iam as iam
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sns_subscriptions as subscriptions
from constructs import Construct

from stacks.base import SkypodStack
from stacks.environment import Environment
from stacks.names import Names


class GuardrailsStack(SkypodStack):
    """A budget warns and cannot stop anything; its figures lag by hours."""

    part = "guardrails"
    summary = "Monthly budget and the alert topic"

    def __init__(self, scope: Construct, environment: Environment, names: Names):
        super().__init__(scope, environment, names)
        self.topic = sns.Topic(self, "Alerts", topic_name=names.alerts_topic, enforce_ssl=True)
        for service in ("budgets.amazonaws.com", "aps.amazonaws.com"):
            self.topic.add_to_resource_policy(
                iam.PolicyStatement(
                    principals=[iam.ServicePrincipal(service)],
                    actions=["sns:Publish"]
                    + (["sns:GetTopicAttributes"] if service.startswith("aps") else []),
                    resources=[self.topic.topic_arn],
                    conditions={"StringEquals": {"aws:SourceAccount": names.account}},
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
            ),
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

"""AWS::Budgets::Budget on ministack's Budgets API."""

from __future__ import annotations

import json
from typing import Any

from ministack.core.responses import get_account_id
from ministack.services import budgets

from rehearsal.aws import cloudformation, models
from rehearsal.aws.models import ApiError


def register() -> None:
    """The resource type; a renamed budget is replaced, everything else is updated in place."""
    cloudformation.register("AWS::Budgets::Budget", _create, _delete, _update)


def _params(name: str, properties: dict[str, Any]) -> dict[str, Any]:
    budget = {key: value for key, value in properties["Budget"].items() if key != "BudgetName"}
    body = {"Budget": {**budget, "BudgetName": name}}
    if "NotificationsWithSubscribers" in properties:
        body["NotificationsWithSubscribers"] = properties["NotificationsWithSubscribers"]
    if "ResourceTags" in properties:
        body["ResourceTags"] = properties["ResourceTags"]
    return {"AccountId": get_account_id(), **models.from_template("budgets", "CreateBudget", body)}


def _create(logical_id: str, properties: dict[str, Any], stack: str) -> tuple[str, dict[str, Any]]:
    name = properties["Budget"].get("BudgetName") or cloudformation.physical_name(stack, logical_id, 100)
    params = _params(name, properties)
    models.check("budgets", "CreateBudget", params)
    _run(budgets._create_budget(params))
    return name, {}


def _update(name: str, old: dict[str, Any], new: dict[str, Any], stack: str) -> tuple[str, dict[str, Any]]:
    renamed = new["Budget"].get("BudgetName")
    params = _params(renamed or name, new)
    models.check("budgets", "CreateBudget", params)
    # CloudFormation cannot change notifications in place, so the budget is made anew.
    _delete(name, old)
    _run(budgets._create_budget(params))
    return renamed or name, {}


def _delete(name: str, properties: dict[str, Any]) -> None:
    budgets._delete_budget({"AccountId": get_account_id(), "BudgetName": name})


def _run(answer: tuple[int, dict[str, str], Any]) -> None:
    status, _, body = answer
    if status >= 300:
        document = json.loads(body)
        message = document.get("message") or document.get("Message") or ""
        raise ApiError(document.get("__type", "BudgetsError"), message, status)

"""Registration of resource types with ministack's CloudFormation engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ministack.services.cloudformation import provisioners

from rehearsal.aws.models import ApiError

Properties = dict[str, Any]
Attributes = dict[str, Any]
Create = Callable[[str, Properties, str], tuple[str, Attributes]]
"""(logical id, properties, stack name) -> (physical id, attributes)"""
Update = Callable[[str, Properties, Properties, str], tuple[str, Attributes]]
"""(physical id, old properties, new properties, stack name) -> (physical id, attributes)"""
Delete = Callable[[str, Properties], Any]
"""(physical id, properties); a resource that is gone already counts as deleted"""

_GONE = (
    "ResourceNotFound",
    "ResourceNotFoundException",
    "FileSystemNotFound",
    "DataRepositoryAssociationNotFound",
)


def register(
    resource_type: str,
    create: Create,
    delete: Delete,
    update: Update | None = None,
    *,
    replace_on: tuple[str, ...] = (),
) -> None:
    """Teach the engine a resource type. A change of a property in `replace_on` replaces the resource.

    Raises ValueError when the engine knows the type already: then a newer ministack has it and ours must go.
    """
    if resource_type in provisioners._RESOURCE_HANDLERS:
        raise ValueError(f"ministack provides {resource_type} itself")
    handlers: dict[str, Any] = {
        "create": _readable(resource_type, create),
        "delete": _readable(resource_type, _tolerant(delete)),
    }
    if update is not None:
        handlers["update"] = _readable(resource_type, update)
    provisioners._RESOURCE_HANDLERS[resource_type] = handlers
    if replace_on:
        provisioners._REPLACING_PROPERTIES[resource_type] = replace_on


def wrap(
    resource_type: str, action: str, wrapper: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> None:
    """Put `wrapper` around one of ministack's own handlers (`create`, `update` or `delete`)."""
    handlers = provisioners._RESOURCE_HANDLERS[resource_type]
    handlers[action] = _readable(resource_type, wrapper(handlers[action]))


def physical_name(stack_name: str, logical_id: str, max_len: int) -> str:
    """The name that CloudFormation would generate for a resource without one."""
    return provisioners._physical_name(stack_name, logical_id, max_len=max_len)


def tag_map(properties: Properties) -> dict[str, str]:
    """The `Tags` property as a map."""
    return provisioners._tag_map(properties.get("Tags"))


def _tolerant(delete: Delete) -> Delete:
    def run(physical_id: str, properties: Properties) -> None:
        try:
            delete(physical_id, properties)
        except ApiError as error:
            if error.code not in _GONE:
                raise

    return run


def _readable(resource_type: str, handler: Callable[..., Any]) -> Callable[..., Any]:
    # The engine reports str(exception) as the event's reason, like a CloudFormation handler's message.
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return handler(*args, **kwargs)
        except ApiError as error:
            service = resource_type.split("::")[1]
            raise ValueError(
                f'Resource handler returned message: "{error.message} (Service: {service}, '
                f'Status Code: {error.status}, Error Code: {error.code})"'
            ) from error

    return run

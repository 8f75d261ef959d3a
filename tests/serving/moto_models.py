"""Corrects the mocked registry: by SageMaker's reference, an update that names no approval leaves it."""

from moto.sagemaker.models import ModelPackage

_set = ModelPackage.set_model_approval_status


def _set_what_is_said(self: ModelPackage, status: str | None) -> None:
    if status is not None or not hasattr(self, "model_approval_status"):
        _set(self, status)


ModelPackage.set_model_approval_status = _set_what_is_said

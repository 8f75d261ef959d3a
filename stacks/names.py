"""Every physical name of an environment, in one place."""

from dataclasses import dataclass

PARTS = (
    "network",
    "guardrails",
    "storage",
    "lustre",
    "images",
    "eks",
    "observability",
    "hyperpod",
    "governance",
    "operators",
    "endpoint",
    "access",
    "studio",
    "collector",
    "serving",
    "inference",
)
"""All stacks there can be, in an order in which each one may be deployed. Some may be off."""

IMAGES = ("train", "serve")
"""The images that the environment builds, by the name of their folder in `docker/`."""

TRAINING_SERVICE_ACCOUNT = "skypod-training"
SERVING_SERVICE_ACCOUNT = "skypod-serving"
ADAPTERS_PREFIX = "adapters"
RUNS_PREFIX = "runs"
BASE = "base"
INFERENCE_COMPONENT = "AWS::SageMaker::InferenceComponent"
KUBE_OBJECTS = "Custom::KubeObjects"
ADAPTER_SLOT = "Adapter"
"""How the parameters of the stack `inference` begin that each name an adapter; a number follows."""

ENVIRONMENT_TAG = "skypod:environment"


@dataclass(frozen=True)
class Names:
    """Names of one environment in one account (12 digits) and region."""

    environment: str
    account: str
    region: str
    parts: tuple[str, ...] = PARTS

    @property
    def prefix(self) -> str:
        return f"skypod-{self.environment}"

    @property
    def tags(self) -> dict[str, str]:
        """What every resource is tagged with; bills split by a tag once it is activated for that."""
        return {"project": "skypod", ENVIRONMENT_TAG: self.environment}

    def stack(self, part: str) -> str:
        """The stack's name, for example skypod-paper-network."""
        return f"{self.prefix}-{part}"

    @property
    def stacks(self) -> tuple[str, ...]:
        return tuple(self.stack(part) for part in self.parts)

    @property
    def cluster(self) -> str:
        """The name of both the EKS and the HyperPod cluster."""
        return self.prefix

    @property
    def eks_cluster_arn(self) -> str:
        return f"arn:aws:eks:{self.region}:{self.account}:cluster/{self.cluster}"

    @property
    def artifacts_bucket(self) -> str:
        return f"{self.prefix}-artifacts-{self.account}-{self.region}"

    @property
    def lifecycle_bucket(self) -> str:
        """Starts with `sagemaker-`, the only prefix that the nodes' managed policy lets them read."""
        return f"sagemaker-{self.prefix}-{self.account}-{self.region}"

    def repository(self, image: str) -> str:
        return f"{self.prefix}/{image}"

    def image_build(self, image: str) -> str:
        return f"{self.prefix}-{image}-image"

    @property
    def chart_build(self) -> str:
        return f"{self.prefix}-charts"

    def role(self, who: str) -> str:
        return f"{self.prefix}-{who}"

    @property
    def inference_endpoint(self) -> str:
        return self.stack("inference")

    def inference_component(self, what: str) -> str:
        """What the endpoint serves under a name of its own: BASE, or an adapter by its name."""
        return f"{self.inference_endpoint}-{what}"

    @property
    def alerts_topic(self) -> str:
        return f"{self.prefix}-alerts"

    @property
    def budget(self) -> str:
        return f"{self.prefix}-monthly"

    @property
    def idle_alarm(self) -> str:
        return f"{self.prefix}-idle-gpu-nodes"

    @property
    def eks_log_group(self) -> str:
        return f"/aws/eks/{self.cluster}/cluster"

    def log_group(self, what: str) -> str:
        """Log groups of our own functions and builds."""
        return f"/{self.prefix}/{what}"

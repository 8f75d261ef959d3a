"""Versions that must agree: between the settings, the images, the trainer's own pins, and the nodes."""

from dataclasses import dataclass

from cdk_app.doctor.finding import Finding, Status, Unknown, judge, unknown
from cdk_app.doctor.images import ImageSource
from cdk_app.doctor.instances import INSTANCES
from cdk_app.doctor.kubernetes import HYPERPOD_VERSIONS
from stacks.environment import Environment

AREA = "versions"
SKYRL_PINS = {
    "0.4.0": {"ray": "2.57.0", "vllm": "0.30.0", "torch": "2.13.0", "peft": "0.18.1", "flash-attn": "2.8.3"},
}
"""From the metadata of SkyRL's wheel, extra `fsdp`."""
AMI_DRIVER = (580, 167, 8)
"""NVIDIA driver of HyperPod's EKS images 1.3, autumn 2026."""
CUDA_DRIVERS = {12: 525, 13: 580}
"""Oldest driver branch by CUDA's major version: NVIDIA's compatibility guide."""
_TOKEN_RAY, _TOKEN_KUBERAY = (2, 55), (1, 6)
_GPU_LISTED_SINCE = (3, 10)
SAME_IN_BOTH = ("vllm", "torch", "transformers")


@dataclass(frozen=True)
class Sources:
    """The image sources, and the version of Ray's client here ("" without one)."""

    train: ImageSource
    serve: ImageSource
    ray_client: str


def check(environment: Environment, sources: Sources) -> list[Finding]:
    return [
        *_ray(environment, sources),
        *_images(sources),
        *_trainer(sources.train),
        *_cuda(environment, sources),
        *_charts(environment),
        judge(
            AREA,
            "Kubernetes for HyperPod",
            environment.eks.version in HYPERPOD_VERSIONS,
            environment.eks.version,
            needed=f"{HYPERPOD_VERSIONS[0]} to {HYPERPOD_VERSIONS[-1]}",
            remedy="set eks.version to one of these",
        ),
    ]


def _ray(environment: Environment, sources: Sources) -> list[Finding]:
    chosen, serving = environment.ray.version, environment.serving.ray_version
    client = sources.ray_client
    findings = []
    for what, image, setting, value in (
        ("Ray for training", sources.train, "ray.version", chosen),
        ("Ray for serving", sources.serve, "serving.ray_version", serving),
    ):
        findings.append(
            judge(
                AREA,
                what,
                image.version("ray") == value,
                f"{image.version('ray')} in docker/{image.name}",
                needed=f"{value} ({setting})",
                remedy=f"set {setting} to the image's version, or pin ray=={value} in docker/{image.name}",
            )
        )
    if not client:
        why = Unknown("none is installed here", f"install the job client: ray[default]=={chosen}")
        return [*findings, unknown(AREA, "Ray job client", why, chosen)]
    client_fits = judge(
        AREA,
        "Ray job client",
        client == chosen,
        f"{client} here",
        needed=f"{chosen} (ray.version)",
        remedy=f"install ray[default]=={chosen} here: `make install`",
        warn=client.split(".")[0] == chosen.split(".")[0],
    )
    return [*findings, client_fits]


def _images(sources: Sources) -> list[Finding]:
    """The served engine must be the trainer's, or its log-probabilities prove nothing."""
    train, serve = sources.train, sources.serve
    findings = [
        judge(
            AREA,
            f"{package} in both images",
            train.version(package) == serve.version(package) != "no pin",
            f"{train.version(package)} to train, {serve.version(package)} to serve",
            needed="one version",
            remedy=f"pin one version of {package} in docker/train and docker/serve",
        )
        for package in SAME_IN_BOTH
    ]
    same = train.python == serve.python != ""
    found = f"{train.python or '?'} to train, {serve.python or '?'} to serve"
    remedy = "use one Python in both Dockerfiles"
    return [*findings, judge(AREA, "Python in both images", same, found, needed="one version", remedy=remedy)]


def _trainer(train: ImageSource) -> list[Finding]:
    skyrl = train.version("skyrl")
    if skyrl not in SKYRL_PINS:
        why = Unknown(f"what SkyRL {skyrl} needs is not known here", "add it to SKYRL_PINS from its metadata")
        return [unknown(AREA, "SkyRL's own pins", why)]
    wrong = {
        package: version
        for package, version in SKYRL_PINS[skyrl].items()
        if train.version(package) != version
    }
    return [
        judge(
            AREA,
            f"SkyRL {skyrl}'s own pins",
            not wrong,
            ", ".join(f"{package} {train.version(package)}" for package in SKYRL_PINS[skyrl]),
            needed=", ".join(f"{package} {version}" for package, version in SKYRL_PINS[skyrl].items()),
            remedy=f"pin {', '.join(f'{p}=={v}' for p, v in wrong.items())} in docker/train",
        )
    ]


def _cuda(environment: Environment, sources: Sources) -> list[Finding]:
    instance_type = environment.hyperpod.gpu.instance_type
    instance = INSTANCES.get(instance_type)
    driver = ".".join(str(part) for part in AMI_DRIVER)
    findings = []
    for image in (sources.train, sources.serve):
        check = f"CUDA in the {image.name} image"
        if image.cuda is None or instance is None:
            said = f"base {image.base}" if image.cuda is None else f"nothing is known here of {instance_type}"
            why = Unknown(said, "name a CUDA base image, or add the type to cdk_app/doctor/instances.py")
            findings.append(unknown(AREA, check, why))
            continue
        least = instance.least_cuda
        branch = CUDA_DRIVERS.get(image.cuda[0], AMI_DRIVER[0] + 1)
        good = image.cuda >= least and AMI_DRIVER[0] >= branch and image.devel
        findings.append(
            judge(
                AREA,
                check,
                good,
                f"{_dotted(image.cuda)} {'with' if image.devel else 'without'} its compiler",
                needed=f"{_dotted(least)} or newer with its compiler for the {instance.gpu}, and a major "
                f"version that the nodes' driver {driver} runs",
                remedy=f"base docker/{image.name} on a CUDA {_dotted(max(least, (13, 0)))} devel image",
            )
        )
    return findings


def _charts(environment: Environment) -> list[Finding]:
    charts = environment.charts
    kuberay, ray = _parts(charts.kuberay_version), _parts(environment.ray.version)
    revision = charts.hyperpod_revision
    token = judge(
        AREA,
        "KubeRay and Ray for token authentication",
        kuberay >= _TOKEN_KUBERAY and ray >= _TOKEN_RAY,
        f"KubeRay {charts.kuberay_version}, Ray {environment.ray.version}",
        needed=f"KubeRay {_dotted(_TOKEN_KUBERAY)} and Ray {_dotted(_TOKEN_RAY)} or newer",
        remedy="raise charts.kuberay_version and ray.version",
    )
    if not revision.startswith("v"):
        said = f"commit {revision[:12]}: the device plugin's list of instance types must have "
        said += environment.hyperpod.gpu.instance_type
        return [token, Finding(AREA, "HyperPod charts", Status.OK, said)]
    return [
        token,
        judge(
            AREA,
            "HyperPod charts",
            _parts(revision[1:]) >= _GPU_LISTED_SINCE,
            revision,
            needed=f"v{_dotted(_GPU_LISTED_SINCE)} or newer: older device plugins leave g7e GPUs out",
            remedy="raise charts.hyperpod_revision",
        ),
    ]


def _parts(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(str(part) for part in version)

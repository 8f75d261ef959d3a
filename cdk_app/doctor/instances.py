"""The instance types that this job can sensibly use, with what a node of each has and can give to pods.

Numbers are those of EC2's DescribeInstanceTypes for the type without `ml.`; a test holds them against a copy.
"""

from dataclasses import dataclass

from stacks.environment import Environment, InstanceGroup


@dataclass(frozen=True)
class Instance:
    """A node. `least_cuda` is the oldest CUDA whose compiler knows the GPU."""

    cpus: int
    memory_gib: int
    gpus: int = 0
    gpu: str = ""
    gpu_memory_mib: int = 0
    least_cuda: tuple[int, int] = (0, 0)

    @property
    def gpu_memory_gib(self) -> float:
        return self.gpu_memory_mib / 1024


def _blackwell(cpus: int, memory_gib: int, gpus: int) -> Instance:
    return Instance(cpus, memory_gib, gpus, "RTX PRO Server 6000", 98_304, (12, 9))


INSTANCES = {
    "ml.g7e.2xlarge": _blackwell(8, 64, 1),
    "ml.g7e.4xlarge": _blackwell(16, 128, 1),
    "ml.g7e.8xlarge": _blackwell(32, 256, 1),
    "ml.g7e.12xlarge": _blackwell(48, 512, 2),
    "ml.g7e.24xlarge": _blackwell(96, 1024, 4),
    "ml.g7e.48xlarge": _blackwell(192, 2048, 8),
    "ml.g5.12xlarge": Instance(48, 192, 4, "A10G", 22_888, (11, 1)),
    "ml.g6.12xlarge": Instance(48, 192, 4, "L4", 22_888, (11, 8)),
    "ml.g6e.2xlarge": Instance(8, 64, 1, "L40S", 45_776, (11, 8)),
    "ml.g6e.12xlarge": Instance(48, 384, 4, "L40S", 45_776, (11, 8)),
    "ml.p4d.24xlarge": Instance(96, 1152, 8, "A100", 40_960, (11, 0)),
    "ml.p5.4xlarge": Instance(16, 256, 1, "H100", 81_920, (11, 8)),
    "ml.p5.48xlarge": Instance(192, 2048, 8, "H100", 81_920, (11, 8)),
    "ml.p5en.48xlarge": Instance(192, 2048, 8, "H200", 144_384, (11, 8)),
    "ml.r5d.16xlarge": Instance(64, 512),
}

# What EKS's own images reserve (255 MiB + 11 MiB per pod, and shares of the cores), about 3 % of the memory
# that the kernel never shows, and room for the health agent, device plugins and the log and network agents.
_PODS_PER_NODE = 110
_KERNEL_SHARE = 0.03
_DAEMONS_CPUS = 1.0
_DAEMONS_GIB = 2.0


def allocatable(instance: Instance) -> tuple[int, int]:
    """(CPUs, GiB) that one of our pods can get from an otherwise empty node: an estimate, rounded down.

    The true numbers are in `kubectl describe node`, once there is one.
    """
    cores = instance.cpus
    reserved_cpus = 0.06 + 0.01 * min(cores - 1, 1) + 0.005 * min(cores - 2, 2) + 0.0025 * max(cores - 4, 0)
    reserved_gib = (255 + 11 * _PODS_PER_NODE + 100) / 1024
    memory_gib = instance.memory_gib * (1 - _KERNEL_SHARE) - reserved_gib - _DAEMONS_GIB
    return int(cores - reserved_cpus - _DAEMONS_CPUS), int(memory_gib)


def groups(environment: Environment) -> dict[str, InstanceGroup]:
    """Every instance group of the settings, optional ones when they are on."""
    fields = ((name, getattr(environment.hyperpod, name)) for name in type(environment.hyperpod).model_fields)
    return {name: value for name, value in fields if isinstance(value, InstanceGroup)}

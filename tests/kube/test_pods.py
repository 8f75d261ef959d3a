"""Pods and Jobs as processes of this machine."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from kubernetes import client

from cdk_app import cluster
from rehearsal.kube.ports import is_free
from rehearsal.kube.services import LOCAL_PORTS_ANNOTATION
from tests.kube.conftest import CLUSTER, connect, eventually, make_stand_in, with_mark
from training.errors import ConfigError, SubstrateError

pytestmark = pytest.mark.slow


def job(name, script, **spec):
    container = {
        "name": "main",
        "image": "x",
        "command": ["python", "-c", script],
        "env": [
            {"name": "SHARED", "value": "/shared"},
            {"name": "WHERE", "value": "$(SHARED)/sub:/shared2"},
            {"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": "pass", "key": "word"}}},
            {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        ],
        "volumeMounts": [
            {"name": "shared", "mountPath": "/shared"},
            {"name": "secret", "mountPath": "/run/pass"},
        ],
    }
    pod = {
        "restartPolicy": "Never",
        "containers": [container],
        "volumes": [
            {"name": "shared", "persistentVolumeClaim": {"claimName": "shared"}},
            {"name": "secret", "secret": {"secretName": "pass"}},
        ],
    }
    return {"metadata": {"name": name}, "spec": {"template": {"spec": pod}} | spec}


def finished(api, namespace, name):
    def condition():
        status = client.BatchV1Api(api).read_namespaced_job(name, namespace).status
        return next((c.type for c in status.conditions or []), None)

    return eventually(condition, 30)


def pods_of(core, namespace, name):
    return core.list_namespaced_pod(namespace, label_selector=f"job-name={name}").items


@pytest.fixture
def secret(core, namespace):
    core.create_namespaced_secret(namespace, {"metadata": {"name": "pass"}, "stringData": {"word": "s3cret"}})


def test_a_job_runs_with_its_environment_and_volumes(api, core, stand_in, namespace, secret):
    script = (
        "import os, pathlib, stat; p = pathlib.Path('/shared/out'); p.write_text('x'); "
        "f = pathlib.Path('/run/pass/word'); print(os.environ['WHERE'], os.environ['PASSWORD'], "
        "f.read_text(), oct(stat.S_IMODE(f.stat().st_mode)), os.environ['POD'], 'RAY_ADDRESS' in os.environ)"
    )
    client.BatchV1Api(api).create_namespaced_job(namespace, job("one", script))
    assert finished(api, namespace, "one") == "Complete"
    pod = pods_of(core, namespace, "one")[0]
    assert pod.status.phase == "Succeeded"
    shared = stand_in.state_dir.parent / "shared"
    assert core.read_namespaced_pod_log(pod.metadata.name, namespace).split() == [
        f"{shared}/sub:/shared2",
        "s3cret",
        "s3cret",
        "0o600",
        pod.metadata.name,
        "False",
    ]
    assert (shared / "out").read_text() == "x"


def test_temporary_files_stay_with_the_pod(api, core, stand_in, namespace, secret):
    script = "import tempfile; print(tempfile.mkstemp()[1])"
    client.BatchV1Api(api).create_namespaced_job(namespace, job("one", script))
    assert finished(api, namespace, "one") == "Complete"
    pod = pods_of(core, namespace, "one")[0]
    path = Path(core.read_namespaced_pod_log(pod.metadata.name, namespace).strip())
    assert len(str(path.parent)) < 30
    assert eventually(lambda: not path.parent.exists(), 10)
    assert [kept.name for kept in stand_in.state_dir.rglob(path.name)] == [path.name]


def test_a_failing_job_is_tried_again_and_tells_its_last_words(api, core, namespace, secret):
    script = "import sys; sys.exit('out of luck')"
    client.BatchV1Api(api).create_namespaced_job(namespace, job("one", script, backoffLimit=1))
    assert finished(api, namespace, "one") == "Failed"
    condition = client.BatchV1Api(api).read_namespaced_job("one", namespace).status.conditions[0]
    assert (condition.reason, "out of luck" in condition.message) == ("BackoffLimitExceeded", True)
    assert [pod.status.phase for pod in pods_of(core, namespace, "one")] == ["Failed", "Failed"]


def test_exit_codes_decide_whether_a_job_is_tried_again(api, core, namespace, secret):
    rules = [
        {"action": action, "onExitCodes": {"containerName": "main", "operator": "In", "values": [code]}}
        for action, code in (("FailJob", 10), ("Ignore", 5))
    ]
    policy = {"podFailurePolicy": {"rules": rules}}
    batch = client.BatchV1Api(api)
    batch.create_namespaced_job(namespace, job("final", "exit(10)", backoffLimit=9, **policy))
    assert finished(api, namespace, "final") == "Failed"
    assert batch.read_namespaced_job("final", namespace).status.conditions[0].reason == "PodFailurePolicy"
    assert len(pods_of(core, namespace, "final")) == 1

    script = (
        "import pathlib; p = pathlib.Path('/shared/tries'); p.open('a').write('x'); "
        "exit([5, 5, 0][len(p.read_text()) - 1])"
    )
    batch.create_namespaced_job(namespace, job("again", script, backoffLimit=0, **policy))
    assert finished(api, namespace, "again") == "Complete"
    assert len(pods_of(core, namespace, "again")) == 3


def test_the_address_of_a_service_is_found_without_a_name_server(api, core, namespace, secret):
    script = "import sys; print(sys.argv[1])"
    wanted = job("one", script)
    container = wanted["spec"]["template"]["spec"]["containers"][0]
    container["args"] = [f"http://ray-head-svc.{namespace}.svc:8265/x"]
    client.BatchV1Api(api).create_namespaced_job(namespace, wanted)

    def why():
        pods = pods_of(core, namespace, "one")
        statuses = pods[0].status.container_statuses if pods else None
        return statuses and statuses[0].state.waiting and statuses[0].state.waiting.message

    assert eventually(why) == f"no service answers at ray-head-svc.{namespace}.svc:8265"
    core.create_namespaced_service(
        namespace,
        {
            "metadata": {"name": "ray-head-svc", "annotations": {LOCAL_PORTS_ANNOTATION: '{"8265": 4711}'}},
            "spec": {"ports": [{"port": 8265}]},
        },
    )
    assert finished(api, namespace, "one") == "Complete"
    (pod,) = pods_of(core, namespace, "one")
    assert core.read_namespaced_pod_log(pod.metadata.name, namespace).strip() == "http://127.0.0.1:4711/x"


def test_a_pod_waits_for_a_secret_that_comes_later(api, core, namespace):
    client.BatchV1Api(api).create_namespaced_job(namespace, job("one", "print(1)"))

    def why():
        pods = pods_of(core, namespace, "one")
        statuses = pods[0].status.container_statuses if pods else None
        return statuses and statuses[0].state.waiting and statuses[0].state.waiting.message

    assert eventually(why) == "secret pass not found"
    core.create_namespaced_secret(namespace, {"metadata": {"name": "pass"}, "stringData": {"word": "late"}})
    assert finished(api, namespace, "one") == "Complete"


# A command whose grandchildren have left its session and process group and ignore SIGTERM.
STUBBORN = (
    "import subprocess, sys, time; "
    "code = 'import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)'; "
    "[subprocess.Popen([sys.executable, '-c', code], start_new_session=True) for _ in range(2)]; "
    "print('up', flush=True); time.sleep(600)"
)


def running(core, namespace, name):
    pods = pods_of(core, namespace, name)
    if pods and pods[0].status.phase == "Running":
        uid = pods[0].metadata.uid
        # The shim, the command and its two grandchildren.
        return uid if len(with_mark(uid)) >= 4 else None
    return None


def test_deleting_a_job_ends_processes_that_left_its_group(api, core, namespace, secret):
    client.BatchV1Api(api).create_namespaced_job(namespace, job("one", STUBBORN))
    uid = eventually(lambda: running(core, namespace, "one"))
    assert uid
    client.BatchV1Api(api).delete_namespaced_job("one", namespace, propagation_policy="Foreground")
    assert eventually(lambda: not with_mark(uid))
    assert eventually(lambda: not pods_of(core, namespace, "one"))


def test_a_killed_shim_takes_its_pods_processes_along(api, core, namespace, secret):
    client.BatchV1Api(api).create_namespaced_job(namespace, job("one", STUBBORN, backoffLimit=0))
    uid = eventually(lambda: running(core, namespace, "one"))
    pod = core.read_namespaced_pod(pods_of(core, namespace, "one")[0].metadata.name, namespace)
    shim = int(pod.status.container_statuses[0].container_id.removeprefix("process://"))
    os.kill(shim, signal.SIGKILL)
    assert eventually(lambda: not with_mark(uid))
    assert finished(api, namespace, "one") == "Failed"


@pytest.mark.parametrize("end", ["stop", "kill", "parent"])
def test_nothing_outlives_the_stand_in(tmp_path, sts, end):
    stand_in = make_stand_in(tmp_path, sts)
    stand_in.start(60)
    try:
        api = connect(stand_in, sts)
        core = client.CoreV1Api(api)
        core.create_namespaced_secret("default", {"metadata": {"name": "pass"}, "stringData": {"word": "w"}})
        client.BatchV1Api(api).create_namespaced_job("default", job("one", STUBBORN))
        uid = eventually(lambda: running(core, "default", "one"))
        assert uid
        if end == "kill":
            os.kill(stand_in.pid, signal.SIGKILL)
        elif end == "parent":
            # What the kernel does when the parent is gone: its end of the pipe closes.
            stand_in._process.stdin.close()
        else:
            stand_in.stop()
        assert eventually(lambda: not with_mark(uid), 20)
        assert eventually(lambda: stand_in.pid is None or stand_in._process.poll() is not None, 20)
    finally:
        stand_in.stop()


def test_a_taken_port_and_a_missing_python_are_named(tmp_path, sts, stand_in):
    other = make_stand_in(tmp_path, sts)
    other.port = stand_in.port
    with pytest.raises(SubstrateError, match=f"port {stand_in.port} on 127.0.0.1 is taken"):
        other.start()
    with pytest.raises(SubstrateError, match="no Python at"):
        make_stand_in(tmp_path, sts, "/nowhere/python").start()


def test_another_process_can_stop_a_stand_in_that_outlives_its_starter(tmp_path, sts):
    code = (
        "import sys; from pathlib import Path; from rehearsal.kube.process import KubeStandIn; "
        "folder = Path(sys.argv[1]); "
        "KubeStandIn(folder / 'kube', port=int(sys.argv[2]), train_python=Path(sys.executable), "
        "shared_dir=folder / 'shared', aws_url=sys.argv[3], cluster_name=sys.argv[4]).start(60, outlive=True)"
    )
    stand_in = make_stand_in(tmp_path, sts)
    project = Path(__file__).parents[2]
    subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), str(stand_in.port), sts.url, CLUSTER],
        check=True,
        cwd=project,
    )
    try:
        core = client.CoreV1Api(connect(stand_in, sts))
        assert "default" in [n.metadata.name for n in core.list_namespace().items]
    finally:
        stand_in.stop()
    assert not (tmp_path / "kube" / "kube.pid").exists()
    assert is_free(stand_in.port)


def test_init_containers_run_first_and_restarts_are_counted(core, namespace, secret):
    spec = job("x", "import sys, pathlib; print(pathlib.Path('/shared/first').read_text()); sys.exit(3)")[
        "spec"
    ]
    pod = spec["template"]["spec"]
    first = pod["containers"][0] | {"name": "first", "command": ["sh", "-c", "echo done > /shared/first"]}
    core.create_namespaced_pod(
        namespace,
        {"metadata": {"name": "p"}, "spec": pod | {"restartPolicy": "Always", "initContainers": [first]}},
    )

    def restarts():
        statuses = core.read_namespaced_pod("p", namespace).status.container_statuses
        return statuses and statuses[0].restart_count >= 1

    assert eventually(restarts)
    assert eventually(lambda: core.read_namespaced_pod_log("p", namespace).split()[:2] == ["done", "done"])


def test_kinds_on_which_nothing_acts_are_accepted_with_a_warning(api, namespace):
    container = {"name": "c", "image": "x"}
    body = {
        "metadata": {"name": "d"},
        "spec": {
            "selector": {"matchLabels": {"a": "b"}},
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [container]}},
        },
    }
    _, code, headers = client.AppsV1Api(api).create_namespaced_deployment_with_http_info(namespace, body)
    assert (code, "no controller here acts on it" in headers["warning"]) == (201, True)


def test_apply_names_the_field_that_the_cluster_refuses(api, namespace):
    bad = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "s", "namespace": namespace},
        "spec": {"portz": []},
    }
    with pytest.raises(ConfigError, match=r'Service s: strict decoding error: unknown field "spec\.portz"'):
        cluster.apply(api, [bad])
    with pytest.raises(SubstrateError, match=r"does not know example\.org/v9 Nothing"):
        cluster.apply(api, [{"apiVersion": "example.org/v9", "kind": "Nothing", "metadata": {"name": "x"}}])

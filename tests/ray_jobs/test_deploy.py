"""The files of docs/deploy.md, each against the schema of the program that reads it, and its scripts."""

import copy
import json
import os
import re
import shlex
import signal
import subprocess
from pathlib import Path

import jsonschema
import pytest
import ray.autoscaler
import yaml
from helpers.needs import PROGRAM, missing_programs, need, package
from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr
from ray.autoscaler._private.util import prepare_config, validate_config
from ray.scripts.scripts import submit
from vlalign.ray_jobs.drain import main as drain_main
from vlalign.ray_jobs.extract_howto100m import main as extract_main
from vlalign.ray_jobs.index import main as index_main
from vlalign.ray_jobs.preprocess import main as preprocess_main
from vlalign.ray_jobs.train import main as train_main
from vlalign.ray_jobs.transcribe import main as transcribe_main

TOP = Path(__file__).resolve().parents[2]
FILES = TOP / "ray_jobs"
LAUNCHER_FILES = ("extract_howto100m.yaml", "gcp.yaml", "own_machines.yaml", "one_machine.yaml")
PAGE = (TOP / "docs" / "deploy.md").read_text(encoding="utf-8")
[AZURE] = (yaml.safe_load(block) for block in re.findall(r"^```yaml\n(.*?)^```", PAGE, re.M | re.S))


def read(name: str) -> dict:
    return yaml.safe_load((FILES / name).read_text(encoding="utf-8"))


def prepared(config: dict) -> dict:
    """Return a cluster file as ``ray up`` completes and checks it."""
    config = prepare_config(copy.deepcopy(config))
    validate_config(config)
    return config


# Ray's cluster launcher


@pytest.mark.parametrize("name", LAUNCHER_FILES)
def test_ray_accepts_the_cluster_file(name):
    prepared(read(name))


def test_ray_accepts_the_cluster_file_with_the_sections_of_azure():
    config = prepared(read("extract_howto100m.yaml") | AZURE)
    assert config["provider"]["type"] == "azure"
    assert config["available_node_types"].keys() == read("extract_howto100m.yaml")["available_node_types"].keys()


def test_machines_at_google_are_in_one_zone_and_workers_have_an_account_of_their_own():
    config = read("gcp.yaml")
    zone = config["provider"]["availability_zone"]
    assert zone.startswith(config["provider"]["region"])
    for node in config["available_node_types"].values():
        [disk] = node["node_config"]["disks"]
        assert disk["initializeParams"]["diskType"] == f"zones/{zone}/diskTypes/pd-balanced"
    [account] = config["available_node_types"]["gpu_worker"]["node_config"]["serviceAccounts"]
    assert account["email"] == f"vlalign-worker@{config['provider']['project_id']}.iam.gserviceaccount.com"
    assert f"serviceAccount:{account['email']}" in PAGE


def test_packages_for_rays_launcher_have_versions_and_hashes(tmp_path):
    """uv refuses others, though constraints.txt has their hashes."""
    (tmp_path / "vlalign").symlink_to(TOP)
    _, _, named = read("extract_howto100m.yaml")["head_setup_commands"][-1].partition("constraints.txt ")
    done = subprocess.run(
        ["bash", "-c", f"echo {named}"], env={"HOME": str(tmp_path)}, capture_output=True, check=False
    )
    assert re.fullmatch(rb"boto3==[0-9.]+\n", done.stdout)
    pins = re.split(r"\n(?=\w)", (FILES / "gcp_packages.txt").read_text(encoding="utf-8"))[1:]
    assert {"gcsfs", "google-api-python-client"} <= {pin.partition("==")[0] for pin in pins}
    assert all(re.match(r"[\w.-]+==\S+ \\\n    --hash=sha256:", pin) for pin in pins)
    assert any(
        line.endswith("--requirement ~/vlalign/ray_jobs/gcp_packages.txt")
        for line in read("gcp.yaml")["setup_commands"]
    )


def test_a_misspelt_key_of_a_cluster_file_is_noticed():
    with pytest.raises(jsonschema.ValidationError, match="setup_comands"):
        prepared(read("extract_howto100m.yaml") | {"setup_comands": []})


@pytest.mark.parametrize("name", LAUNCHER_FILES)
def test_a_cluster_wants_a_token_and_its_dashboard_stays_on_the_head(name):
    config = read(name)
    starting = [c for c in config["head_start_ray_commands"] + config["worker_start_ray_commands"] if "ray start" in c]
    assert starting and all(command.startswith("RAY_AUTH_MODE=token ") for command in starting)
    hosts = [re.findall(r"--dashboard-host=(\S+)", command) for command in starting if "--head" in command]
    assert hosts == [["127.0.0.1"]]
    text = (FILES / name).read_text(encoding="utf-8")
    assert "0.0.0.0" not in text and "(umask 077; ray get-auth-token" in text
    assert config["file_mounts"]["~/.ray/auth_token"] == "~/.ray/auth_token"


def test_machines_at_aws_admit_nobody_else_and_keep_their_role_and_disks_to_themselves():
    """Ray's own security group would admit ssh from everywhere."""
    for node in read("extract_howto100m.yaml")["available_node_types"].values():
        about = node["node_config"]
        assert about["SecurityGroupIds"] == ["YOUR-SECURITY-GROUP"]
        assert about["MetadataOptions"] == {"HttpTokens": "required", "HttpPutResponseHopLimit": 1}
        assert all(disk["Ebs"]["Encrypted"] for disk in about["BlockDeviceMappings"])
    opened = re.findall(r"authorize-security-group-ingress.*--(cidr|source-group) (\S+)", PAGE)
    assert opened == [("source-group", "$group"), ("cidr", "YOUR-ADDRESS/32")]


def test_parameters_for_azure_are_those_of_rays_template():
    folder = Path(ray.autoscaler.__file__).parent / "_private" / "_azure"
    template = json.loads((folder / "azure-vm-template.json").read_text(encoding="utf-8"))
    for node in AZURE["available_node_types"].values():
        assert node["node_config"]["azure_arm_parameters"].keys() <= template["parameters"].keys()


def test_all_cluster_files_install_the_same():
    first, *others = (read(name) for name in LAUNCHER_FILES)
    installing = [line for line in first["setup_commands"] if "constraints.txt" in line or "uv.txt" in line]
    assert len(installing) == 4
    for other in others:
        assert other["file_mounts"] == first["file_mounts"]
        lines = "\n".join([*other["setup_commands"], ""]).replace("--extra english\n", "--extra english --extra s3\n")
        assert all(line in lines for line in installing)


@pytest.mark.slow
def test_rays_own_code_starts_both_machine_types_in_a_simulated_aws(monkeypatch, tmp_path):
    moto = package("moto")  # simulates AWS
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "none")
    (tmp_path / ".ssh").mkdir()
    with moto.mock_aws():
        import boto3
        from ray.autoscaler._private.aws.config import bootstrap_aws
        from ray.autoscaler._private.aws.node_provider import AWSNodeProvider

        config = prepared(read("extract_howto100m.yaml"))
        region = config["provider"]["region"]
        made = boto3.client("ec2", region).create_security_group(GroupName="vlalign", Description="vlalign")
        for node in config["available_node_types"].values():
            assert node["node_config"]["SecurityGroupIds"] == ["YOUR-SECURITY-GROUP"]
            node["node_config"]["SecurityGroupIds"] = [made["GroupId"]]
        for name in ("vlalign-head", "vlalign-worker"):
            boto3.client("iam").create_instance_profile(InstanceProfileName=name)
        config = bootstrap_aws(config)
        assert "boto3" in config["head_setup_commands"][-1] and "vlalign_venv" in config["head_setup_commands"][-1]
        provider = AWSNodeProvider(config["provider"], config["cluster_name"])
        for kind, name in (("head", "vlalign-head"), ("gpu_worker", "vlalign-worker")):
            node = config["available_node_types"][kind]["node_config"]
            [machine] = provider.create_node(node, {"ray-node-type": kind}, 1).values()
            assert machine.instance_type == node["InstanceType"]
            [association] = boto3.client("ec2", region).describe_iam_instance_profile_associations(
                Filters=[{"Name": "instance-id", "Values": [machine.id]}]
            )["IamInstanceProfileAssociations"]
            assert association["IamInstanceProfile"]["Arn"].endswith(f"/{name}")
            assert machine.metadata_options["HttpTokens"] == "required"
        assert machine.instance_lifecycle == "spot"
        groups = boto3.client("ec2", region).describe_security_groups()["SecurityGroups"]
        rules = [rule for group in groups for rule in group["IpPermissions"]]
        assert not any(addresses["CidrIp"] == "0.0.0.0/0" for rule in rules for addresses in rule["IpRanges"])
        keys = keys_of_the_head(boto3.client("iam"))
        provider = AWSNodeProvider(config["provider"] | {"aws_credentials": keys}, config["cluster_name"])
        with moto.core.enable_iam_authentication():
            machines = provider.create_node(node, {"ray-node-type": kind}, 1)
            assert machines.keys() <= set(provider.non_terminated_nodes({}))
            provider.terminate_nodes(list(machines))
            assert not machines.keys() & set(provider.non_terminated_nodes({}))
            with pytest.raises(Exception, match="not authorized"):
                boto3.client("ec2", region, **keys).create_security_group(GroupName="other", Description="other")


def keys_of_the_head(iam) -> dict[str, str]:
    """Return the keys of a user who has the head's rights, without the condition: the simulation knows none."""
    rights = {name: json.loads(text) for name, text in re.findall(r"^ +(\w+)='(.+)'$", PAGE, re.M)}
    assert rights["end"].pop("Condition") == {"StringEquals": {"ec2:ResourceTag/ray-cluster-name": "vlalign"}}
    [used] = re.findall(r'--role-name vlalign-head .* \[(.+)\]}"$', PAGE, re.M)
    policy = {"Version": "2012-10-17", "Statement": [rights[name.strip(" $")] for name in used.split(",")]}
    iam.create_user(UserName="head")
    iam.put_user_policy(UserName="head", PolicyName="head", PolicyDocument=json.dumps(policy))
    made = iam.create_access_key(UserName="head")["AccessKey"]
    return {"aws_access_key_id": made["AccessKeyId"], "aws_secret_access_key": made["SecretAccessKey"]}


# Kubernetes

STRINGS = {"type": "object", "additionalProperties": {"type": "string"}}
TEMPLATE = {"type": "object", "required": ["spec"], "properties": {"metadata": {}, "spec": {"type": "object"}}}
COUNT = {"type": "integer", "minimum": 0}


def record(required: list[str], **properties: dict) -> dict:
    return {"type": "object", "required": required, "additionalProperties": False, "properties": properties}


# The fields of KubeRay's API reference that the file uses. No package of an index that is installed here has KubeRay's
# own schema.
RAY_JOB = record(
    ["apiVersion", "kind", "metadata", "spec"],
    apiVersion={"const": "ray.io/v1"},
    kind={"const": "RayJob"},
    metadata={"type": "object"},
    spec=record(
        ["entrypoint", "rayClusterSpec"],
        entrypoint={"type": "string"},
        shutdownAfterJobFinishes={"type": "boolean"},
        backoffLimit=COUNT,
        rayClusterSpec=record(
            ["headGroupSpec"],
            rayVersion={"type": "string"},
            authOptions=record(["mode"], mode={"enum": ["disabled", "token"]}),
            enableInTreeAutoscaling={"type": "boolean"},
            autoscalerOptions=record([], idleTimeoutSeconds=COUNT),
            headGroupSpec=record(["rayStartParams", "template"], rayStartParams=STRINGS, template=TEMPLATE),
            workerGroupSpecs={
                "type": "array",
                "items": record(
                    ["groupName", "minReplicas", "maxReplicas", "rayStartParams", "template"],
                    groupName={"type": "string"},
                    replicas=COUNT,
                    minReplicas=COUNT,
                    maxReplicas=COUNT,
                    rayStartParams=STRINGS,
                    template=TEMPLATE,
                ),
            },
        ),
    ),
)
CLAIM, JOB = yaml.safe_load_all((FILES / "kuberay.yaml").read_text(encoding="utf-8"))
CLUSTER = JOB["spec"]["rayClusterSpec"]
PODS = [CLUSTER["headGroupSpec"]["template"], *(group["template"] for group in CLUSTER["workerGroupSpecs"])]


def test_the_job_has_only_fields_that_kuberay_documents():
    jsonschema.validate(JOB, RAY_JOB)
    broken = copy.deepcopy(JOB)
    broken["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["maxReplica"] = 3
    with pytest.raises(jsonschema.ValidationError, match="maxReplica"):
        jsonschema.validate(broken, RAY_JOB)


def test_pods_and_claim_follow_the_schema_of_kubernetes():
    kubernetes_validate = package("kubernetes_validate")  # has Kubernetes' schemas
    for pod in PODS:
        described = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, **pod}
        kubernetes_validate.validate(described, "1.34", strict=True)
    kubernetes_validate.validate(CLAIM, "1.34", strict=True)


def test_pods_have_time_to_hand_back_their_work(capsys):
    pod = PODS[1]["spec"]
    python, flag, module, *options = pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    assert (python, flag, module) == ("python", "-m", "vlalign.ray_jobs.drain")
    assert options[0] == "--seconds" and int(options[1]) + 20 <= pod["terminationGracePeriodSeconds"]
    assert drain_main([*options, "--address", "nowhere"]) == 2
    assert "nowhere" in capsys.readouterr().err


def test_ray_can_grow_the_cluster_that_the_job_describes():
    described = {"metadata": {"name": "vlalign", "namespace": "default"}, "spec": CLUSTER}
    config = _derive_autoscaling_config_from_ray_cr(described)
    head, worker = (config["available_node_types"][name] for name in ("headgroup", "gpu-worker"))
    assert head["resources"]["CPU"] == 0
    assert {name: worker["resources"][name] for name in ("CPU", "GPU")} == {"CPU": 14, "GPU": 1}
    words = shlex.split(JOB["spec"]["entrypoint"])
    assert float(words[words.index("--cpus-per-worker") + 1]) <= worker["resources"]["CPU"]
    assert int(words[words.index("--workers") + 1]) == worker["max_workers"]


def test_pods_share_the_image_the_user_and_the_claim():
    for pod in PODS:
        [container] = pod["spec"]["containers"]
        assert container["image"] == PODS[0]["spec"]["containers"][0]["image"]
        assert container["volumeMounts"] == [{"name": "data", "mountPath": "/mnt/vlalign"}]
        assert pod["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"] == CLAIM["metadata"]["name"]
        user = pod["spec"]["securityContext"]
        assert user["runAsUser"] == 1000 and user["runAsNonRoot"] and user["seccompProfile"]["type"] == "RuntimeDefault"
        assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def test_the_job_wants_a_token_and_opens_no_port():
    assert CLUSTER["authOptions"] == {"mode": "token"}
    assert "serviceType" not in CLUSTER["headGroupSpec"] and "headService" not in CLUSTER["headGroupSpec"]
    for pod in PODS:
        assert not {"hostNetwork", "hostPID", "hostIPC"} & pod["spec"].keys()
        assert not any("hostPort" in port for port in pod["spec"]["containers"][0].get("ports", []))
    assert PODS[1]["spec"]["automountServiceAccountToken"] is False


def test_the_job_runs_rays_pinned_version_and_options_that_exist(capsys):
    pins = (TOP / "constraints.txt").read_text(encoding="utf-8")
    assert re.search(rf"^ray=={re.escape(CLUSTER['rayVersion'])} ", pins, re.M)
    python, flag, module, *options = shlex.split(JOB["spec"]["entrypoint"])
    assert (python, flag, module) == ("python", "-m", "vlalign.ray_jobs.extract_howto100m")
    with pytest.raises(SystemExit):
        extract_main(["--help"])
    known = set(re.findall(r"--[a-z][a-z-]*", capsys.readouterr().out))
    assert {option for option in options if option.startswith("--")} <= known


# The calls that pages show


PAGES = [
    TOP / "README.md",
    *sorted((TOP / "docs").rglob("*.md")),
    *sorted(FILES.glob("*.yaml")),
    *sorted(FILES.glob("*.py")),
]
SCRIPTS = {
    "extract_howto100m.py": extract_main,
    "preprocess.py": preprocess_main,
    "transcribe.py": transcribe_main,
    "index.py": index_main,
    "train.py": train_main,
}


def submitted(path: Path) -> list[list[str]]:
    """Return the words after ``ray submit`` of each call in a file, in blocks of code, comments and running text."""
    text = re.sub(r"\\\n[# ]*", "", path.read_text(encoding="utf-8"))
    text = text.replace("`ray submit extract_howto100m.yaml`", "")  # README names it as too short
    return [shlex.split(call) for call in re.findall(r"ray submit ([^`\"\n]+)", text)]


def test_calls_of_ray_submit_are_found():
    assert {path.name for path in PAGES if submitted(path)} >= {"README.md", "clusters.md", "extract_howto100m.yaml"}


@pytest.mark.parametrize("page", filter(submitted, PAGES), ids=lambda page: page.name)
def test_a_call_of_ray_submit_is_whole(page, capsys):
    """It names a cluster file and a script that are there, seen from the top folder, and options that both know."""
    for words in submitted(page):
        context = submit.make_context("ray submit", list(words))
        cluster, script, options = (context.params[name] for name in ("cluster_config_file", "script", "script_args"))
        assert cluster in {"CLUSTER.yaml", *(f"ray_jobs/{name}" for name in LAUNCHER_FILES)}, words
        assert (TOP / script).is_file() and script.startswith("ray_jobs/"), words
        with pytest.raises(SystemExit):
            SCRIPTS[Path(script).name](["--help-all"])
        known = re.findall(r"--[a-z][a-z-]*", capsys.readouterr().out)
        assert {option for option in options if option.startswith("--")} <= set(known), words


# The image


def test_the_image_gets_every_package_and_nothing_else_of_the_checkout():
    dockerfile = (FILES / "Dockerfile").read_text(encoding="utf-8")
    copied = {name for line in re.findall(r"^COPY (.+) \S+$", dockerfile, re.M) for name in line.split()}
    project = (TOP / "pyproject.toml").read_text(encoding="utf-8")
    folders = set(re.findall(r'^"vlalign\.\w+" = "(\w+)"$', project, re.M))
    assert len(folders) == 5
    assert copied == folders | {"pyproject.toml", "constraints.txt", "README.md", "LICENSE"}
    ignored = (FILES / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    assert ignored[1] == "*" and {line[1:] for line in ignored if line.startswith("!")} == copied


def test_the_image_runs_as_an_ordinary_user_and_opens_no_port():
    lines = (FILES / "Dockerfile").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line.startswith("USER ")] == ["USER vlalign"]
    assert lines.index("USER vlalign") > max(i for i, line in enumerate(lines) if line.startswith("RUN "))
    assert not any(line.startswith(("EXPOSE", "ADD ")) for line in lines)


# Slurm


def test_a_job_of_slurm_wants_a_token_and_keeps_rays_files_to_itself():
    text = (FILES / "slurm.sh").read_text(encoding="utf-8")
    assert "export RAY_AUTH_MODE=token RAY_AUTH_TOKEN" in text and "--include-dashboard=false" in text
    assert "folder=$(mktemp --directory)" in text and '--temp-dir "$folder/ray"' in text


@pytest.mark.parametrize("name", ["slurm.sh", "slurm_torchrun.sh"])
def test_outside_an_allocation_the_scripts_say_how_they_are_called(name):
    done = subprocess.run(
        ["bash", str(FILES / name), "x.py"], env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("usage: sbatch") and done.stderr.count("\n") == 1


# Scripts


@pytest.mark.parametrize("path", sorted(FILES.glob("*.sh")), ids=lambda path: path.name)
def test_shellcheck_finds_nothing_in_the_scripts(path):
    need(PROGRAM, missing_programs("shellcheck"))
    done = subprocess.run(["shellcheck", str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def repeated(folder: Path, codes: str) -> tuple[int, list[str], list[int]]:
    """Call ``repeat.sh`` with a Python that ends with these codes. Return its own code, its calls and its pauses."""
    ending = f"codes=({codes}); exit ${{codes[$(wc -l < python.log) - 1]}}"
    for name, lines in (("python", ending), ("sleep", "")):
        (folder / name).write_text(f'#!/bin/bash\necho "$@" >> {name}.log\n{lines}\n')
        (folder / name).chmod(0o755)
        (folder / f"{name}.log").touch()
    command = ["bash", str(FILES / "repeat.sh"), "--dataset", "a  b"]
    done = subprocess.run(command, cwd=folder, env={"PATH": f"{folder}:/usr/bin:/bin"}, check=False)
    calls, pauses = ((folder / f"{name}.log").read_text().splitlines() for name in ("python", "sleep"))
    return done.returncode, calls, [int(pause) for pause in pauses]


@pytest.mark.parametrize(
    ("codes", "pauses"),
    [("0", []), ("1 0", [0]), ("1 137 1 0", [0, 60, 120]), ("2", []), ("143", []), ("1 1 130", [0, 60])],
)
def test_an_extraction_is_repeated_until_it_is_done_or_needs_somebody(tmp_path, codes, pauses):
    turns = codes.split()
    call = "-m vlalign.ray_jobs.extract_howto100m --dataset a  b"
    assert repeated(tmp_path, codes) == (int(turns[-1]), [call] * len(turns), pauses)


def test_a_driver_that_is_stopped_may_finish_before_the_script_ends(tmp_path):
    """What stops a job ends all of its processes when the first one has ended."""
    (tmp_path / "python").write_text(
        "#!/bin/bash\ntrap 'sleep 0.5; echo written; exit 143' TERM\necho begun\nsleep 5 & wait\n"
    )
    (tmp_path / "python").chmod(0o755)
    job = subprocess.Popen(
        ["bash", str(FILES / "repeat.sh")],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert job.stdout.readline() == b"begun\n"
    os.killpg(job.pid, signal.SIGTERM)
    assert job.wait(30) == 143
    assert job.stdout.readline() == b"written\n"


def test_an_extraction_is_not_repeated_for_ever(tmp_path):
    code, calls, pauses = repeated(tmp_path, "1 " * 20)
    assert (code, len(calls), sum(pauses)) == (1, 10, 198 * 60)

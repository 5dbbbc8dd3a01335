"""launch.sh starts the right ranks with the right environment: run with programs that only say how they were called."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from app.catalog.keys import load_keys
from app.domain.versions import Versions
from app.emit import files_for
from tests.emit.jobs import make_job
from tests.emit.variants import all_jobs

JOBS = all_jobs()
ALONE: dict[str, Any] = {"nodes": 1, "world_size": 4, "dp_shard": 4}
SAID = ("PYTORCH_CUDA_ALLOC_CONF", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "OMP_NUM_THREADS")


def launch_text(**changes: Any) -> str:
    """launch.sh of a plan."""
    return {file.filename: file.text for file in files_for(make_job(**changes))}["launch.sh"]


def test_one_node_and_several_start_differently() -> None:
    """Alone a node needs no address; together they meet at the first one's."""
    alone = launch_text(framework="fsdp2", nodes=1, world_size=4, dp_shard=4)
    assert 'exec torchrun --standalone --nproc-per-node "$GPUS_PER_NODE" \\\n  "${TRAIN_SCRIPT:-fsdp2_train.py}" "$@"' in alone
    assert "MASTER_ADDR" not in alone
    together = launch_text(framework="fsdp2")
    assert '--rdzv-endpoint "$MASTER_ADDR:$MASTER_PORT"' in together
    assert "deepspeed --num_gpus" in launch_text(nodes=1, world_size=4, dp_shard=4)


def test_host_work_sets_threads_and_pinned_rounding() -> None:
    """Threads only where an optimizer runs on the CPU; rounding is switched off wherever host memory is pinned."""
    assert "OMP_NUM_THREADS" in launch_text(offload_optimizer="cpu")
    assert "pinned_max_cached_size_mb:64" in launch_text(offload_optimizer="cpu")
    assert "OMP_NUM_THREADS" not in launch_text(activation_offload=True)
    assert "pinned_max_cached_size_mb:64" in launch_text(activation_offload=True)
    assert "OMP_NUM_THREADS" not in launch_text()
    assert "expandable_segments:True" in launch_text()


def test_blocks_of_several_sizes_are_not_kept_for_reuse() -> None:
    """torch up to 2.13 hands out a kept block that is too small where sizes are not rounded: only equal checkpoints are kept."""
    equal = {"activation_offload": True, "activation_checkpointing": "full"}
    assert "pinned_max_round_threshold_mb:64" in launch_text(**equal)
    assert "round_threshold" not in launch_text(**equal, offload_optimizer="cpu")
    assert "round_threshold" not in launch_text(activation_offload=True, activation_checkpointing="none")
    older = Versions(given=(("torch", "2.10"),), keys=load_keys())
    assert "pinned" not in launch_text(offload_optimizer="cpu", job={"versions": older})


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
@pytest.mark.parametrize("name", JOBS)
def test_launchers_pass_shellcheck(name: str) -> None:
    """No unquoted expansion, no unused variable."""
    text = {file.filename: file.text for file in files_for(JOBS[name])}["launch.sh"]
    result = subprocess.run(["shellcheck", "-"], input=text, capture_output=True, text=True, check=False, timeout=60)
    assert result.returncode == 0, result.stdout


def started(folder: Path, environment: dict[str, str], **changes: Any) -> tuple[str, dict[str, str]]:
    """The command a plan's launch.sh ends in, and what it exports."""
    (folder / "launch.sh").write_text(launch_text(**changes), encoding="utf-8")
    shown = " ".join(f'{name}="${{{name}:-}}"' for name in SAID)
    for name in ("torchrun", "deepspeed"):
        (folder / name).write_text(f'#!/bin/bash\nprintf "%s\\n" {shown.replace("=", "= ")} "$(basename "$0") $*"\n')
    (folder / "scontrol").write_text('#!/bin/bash\n[[ "$*" == "show hostnames gpu[01-02]" ]] && printf "gpu01\\ngpu02\\n"\n')
    for name in ("torchrun", "deepspeed", "scontrol"):
        (folder / name).chmod(0o755)
    given = {"PATH": f"{folder}:/usr/bin:/bin", **environment}
    result = subprocess.run(["bash", "launch.sh"], cwd=folder, env=given, capture_output=True, text=True, check=True, timeout=30)
    *lines, command = result.stdout.splitlines()
    values = [line.removesuffix("=") for line in lines]
    return command, dict(zip(values[::2], values[1::2], strict=True))


def test_slurm_says_where_the_first_node_is(tmp_path: Path) -> None:
    """Under srun nobody has to; an address of one's own wins."""
    slurm = {"SLURM_JOB_NODELIST": "gpu[01-02]"}
    assert "--rdzv-endpoint gpu01:29500" in started(tmp_path, slurm)[0]
    assert "--rdzv-endpoint head:29500" in started(tmp_path, slurm | {"MASTER_ADDR": "head"})[0]


def test_slurm_and_deepspeed_have_their_lines() -> None:
    """In the header, with the plan's numbers; DeepSpeed's own launcher only where there are several nodes for it."""
    text = launch_text()
    assert 'srun --nodes 2 --ntasks-per-node 1 --gpus-per-node 4 --cpus-per-task "$SLURM_CPUS_ON_NODE" bash launch.sh' in text
    assert "deepspeed --hostfile hosts --no_local_rank ds_train.py" in text
    assert "--hostfile" not in launch_text(**ALONE)
    assert "--hostfile" not in launch_text(framework="fsdp2")
    assert "srun --nodes 1 --ntasks-per-node 1" in launch_text(**ALONE)


def test_allocator_settings_of_ones_own_are_kept(tmp_path: Path) -> None:
    """torch obeys the older name where both are set, so a value under the newer one must go into it."""
    name = "PYTORCH_CUDA_ALLOC_CONF"
    assert started(tmp_path, {}, **ALONE)[1][name] == "expandable_segments:True"
    assert started(tmp_path, {"PYTORCH_ALLOC_CONF": "mine:1"}, **ALONE)[1][name] == "mine:1"
    assert started(tmp_path, {name: "older:1", "PYTORCH_ALLOC_CONF": "mine:1"}, **ALONE)[1][name] == "older:1"


def test_one_name_for_the_interface_of_both_libraries(tmp_path: Path) -> None:
    """NCCL and gloo each have a variable; without one they choose themselves."""
    where = {"MASTER_ADDR": "head"}
    environment = started(tmp_path, where | {"INTERFACE": "eth1"})[1]
    assert (environment["NCCL_SOCKET_IFNAME"], environment["GLOO_SOCKET_IFNAME"]) == ("eth1", "eth1")
    assert started(tmp_path, where)[1]["NCCL_SOCKET_IFNAME"] == ""
    assert "INTERFACE" not in launch_text(**ALONE)


def test_another_script_takes_the_place_of_the_plans(tmp_path: Path) -> None:
    """TRAIN_SCRIPT, as a trainer of one's own needs."""
    assert started(tmp_path, {}, framework="fsdp2", **ALONE)[0].endswith(" fsdp2_train.py")
    assert started(tmp_path, {"TRAIN_SCRIPT": "my train.py"}, framework="ddp", **ALONE)[0].endswith(" my train.py")

# SPDX-License-Identifier: Apache-2.0

"""Environments on the machines of a Ray cluster: the same as in threads, wherever they are."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from helpers.testing_utils import make_roles
from helpers.workers import check_same_as_in_threads, check_training, make_faulty

from trl_nlac.environments import EnvironmentFailure, StepResult, TextEnvironment
from trl_nlac.episodes.pool import EnvironmentPool
from trl_nlac.episodes.rollout import play_episodes
from trl_nlac.training.stopping import StopSignals


os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_worker_niceness"] = "0"  # as fast as everything else, beside other tests
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # keeps to 127.0.0.1; read when Ray is imported
ray = pytest.importorskip("ray")
from trl_nlac.episodes.ray_process import RayEnvironment, connect  # noqa: E402


NUM_MACHINES = 2
TIMEOUT = 300  # a process takes long to start on a machine that is busy


@pytest.fixture(scope="module", autouse=True)
def cluster():
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, "node_ip_address": "127.0.0.1", "object_store_memory": 80 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    for _ in range(NUM_MACHINES - 1):
        cluster.add_node(**node)
    os.environ["RAY_ADDRESS"] = cluster.address
    yield cluster
    del os.environ["RAY_ADDRESS"]
    ray.shutdown()
    cluster.shutdown()


def test_a_cluster_that_is_not_named_is_not_joined(cluster):
    """One that runs on this machine can be another user's."""
    code = "import ray; from trl_nlac.episodes.ray_process import connect; connect()"
    code += "; print('address', ray.get_runtime_context().gcs_address)"
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    found = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    assert "address " in found.stdout and cluster.address not in found.stdout, found.stdout + found.stderr


def play_in(workers, factory, tasks, timeout=TIMEOUT):
    pool = EnvironmentPool(factory, workers=workers, timeout=timeout)
    try:
        torch.manual_seed(0)
        return play_episodes(pool, tasks, make_roles("take red", max_turns=8))
    finally:
        pool.close()


def test_the_same_as_in_threads(tmp_path):
    check_same_as_in_threads(tmp_path, play_in, "ray")


def test_all_machines_take_part(tmp_path):
    class Where:
        def reset(self):
            return "win"

        def step(self, action):
            return StepResult(ray.get_runtime_context().get_node_id(), terminated=True)

    episodes = play_in("ray", lambda: Where(), [{}] * 2 * NUM_MACHINES)
    on_machines = Counter(episode.turns[0].next_observation for episode in episodes)
    assert [*on_machines.values()] == [2] * NUM_MACHINES


def test_an_actor_that_dies_is_one_failed_episode(tmp_path):
    killed, clean = play_in("ray", make_faulty(tmp_path), [{"fault": "killed", "at": 2}, {"fault": None}])
    assert killed.failure == "step: EnvironmentFailure: the Ray actor of the environment has died"
    assert [len(episode.turns) for episode in (killed, clean)] == [1, 3] and clean.terminated


def test_an_actor_that_hangs_is_ended(tmp_path):
    connect()
    environment = RayEnvironment(make_faulty(tmp_path))
    environment.reset(seed=1, fault="sleep", at=2)
    environment.step("")
    with ThreadPoolExecutor(1) as threads:
        hanging = threads.submit(environment.step, "")
        while not environment._calling.locked():
            time.sleep(0.01)
        environment.close()
        with pytest.raises(EnvironmentFailure, match="has died"):
            hanging.result(timeout=TIMEOUT)
    assert len(list(tmp_path.iterdir())) == 1  # it closed itself


def test_an_instance_has_a_thread_of_its_own():
    class Threads(TextEnvironment):
        def reset(self):
            self.threads = [threading.get_ident()]
            return "win"

        def step(self, action):
            self.threads.append(threading.get_ident())
            return StepResult(f"{len(set(self.threads))}", terminated=len(self.threads) == 4)

    (episode,) = play_in("ray", lambda: Threads(), [{}])
    assert [turn.next_observation for turn in episode.turns] == ["1"] * 3


def test_ray_leaves_the_signals_of_training_alone():
    """Its handler of SIGTERM would end the run without a checkpoint."""
    connect()
    with pytest.raises(SystemExit) as stopped, StopSignals().noted():
        os.kill(os.getpid(), signal.SIGTERM)
    assert stopped.value.code == 128 + signal.SIGTERM


def test_training(tmp_path):
    check_training(tmp_path, "ray")

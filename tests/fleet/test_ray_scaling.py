"""lapidary.ray: replicas that come and go, several models, and what its command refuses."""

import collections
import os
import pathlib
import socket
import subprocess
import sys

import httpx
import pytest

import fleet_load
from ray_fleet import FLAGS, Fleet, free_port

pytest.importorskip("ray", reason="ray is not installed: pip install -r tests/requirements-clients.txt")


def test_replicas_come_and_go_with_the_load(package_dir):
    scaled = Fleet(package_dir, "--replicas", "1:3", "--target-requests", "2", "--downscale-delay", "3", *FLAGS)
    try:
        right = fleet_load.answers_of(scaled.url)
        most = 1

        def watch(number):
            nonlocal most
            most = max(most, len(scaled.replicas()))
            return 0.5 if number < 240 and most < 3 else None

        counts, problems = fleet_load.run(scaled.url, right, 12, 5, watch)
        print(f"{most} replicas: {dict(counts)}")
        assert most == 3 and not problems, (most, problems[:5])
        scaled.wait_for_replicas(1)
    finally:
        assert scaled.stop() == 0


def test_several_models_by_name_through_rays_own_proxy(package_dir):
    """`serve run lapidary.ray:app` with two models."""
    models = pathlib.Path(__file__).resolve().parents[2] / "models"
    port = free_port()
    text = (f"import ray, signal, sys, time\nfrom ray import serve\nfrom lapidary.ray import app\n"
            f"ray.init()\nserve.start(http_options={{'port': {port}}})\n"
            f"serve.run(app({{'models': {{'one': {str(models / 'pebble-e')!r}, 'two': {str(models / 'pebble-dense')!r}}},"
            f" 'device': 'cpu', 'max_model_len': '1024', 'num_cpus': '0.1', 'threads': '1', 'replica_host': '127.0.0.1'}}))\n"
            f"print('serving both', flush=True)\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\ntime.sleep(3600)")
    fleet = Fleet(package_dir, text, port=port, command=("-c",))
    try:
        names = [model["id"] for model in httpx.get(f"{fleet.url}/v1/models", timeout=60).json()["data"]]
        assert names == ["one", "two"]
        answered = collections.Counter()
        for name in ("one", "two", None):
            body = {"messages": [{"role": "user", "content": "What is 48 + 17?"}], "temperature": 0}
            reply = httpx.post(f"{fleet.url}/v1/chat/completions", json={**body, **({"model": name} if name else {})},
                               timeout=60).json()
            answered[reply["model"]] += 1
        assert answered == {"one": 2, "two": 1}
        reply = httpx.post(f"{fleet.url}/v1/completions", json={"model": "three", "prompt": "x"}, timeout=60)
        assert reply.status_code == 404 and "one, two" in reply.json()["error"]["message"]
        body = {"model": "two", "prompt": "Once", "max_tokens": 8, "stream": True}
        assert httpx.post(f"{fleet.url}/v1/completions", json=body, timeout=60).text.endswith("data: [DONE]\n\n")
    finally:
        fleet.stop()


@pytest.mark.parametrize("words, named", [
    (["--replicas", "many"], "replicas 'many'"), (["--replicas", "3:1"], "replicas '3:1'"),
    (["a/x", "b/x"], "two models are called 'x'"), (["--replicas", "1", "stray"], "'stray'")])
def test_what_is_wrong_is_one_sentence(package_dir, words, named):
    result = subprocess.run([sys.executable, "-m", "lapidary.ray", *words], text=True, capture_output=True, timeout=120,
                            env={**os.environ, "PYTHONPATH": package_dir})
    assert result.returncode == 1
    assert named in result.stderr and "Traceback" not in result.stderr


def test_what_cannot_start_is_one_sentence(package_dir):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for words, named in ((["/no/such/model", "--port", str(free_port())], "'/no/such/model' is neither"),
                             (["--port", port], "ddress already in use")):
            result = subprocess.run([sys.executable, "-m", "lapidary.ray", *words, *FLAGS], text=True, timeout=180,
                                    capture_output=True, env={**os.environ, "PYTHONPATH": package_dir})
            assert result.returncode == 1
            [sentence] = [line for line in result.stderr.splitlines() if line.startswith("lapidary.ray: ")]
            assert named in sentence

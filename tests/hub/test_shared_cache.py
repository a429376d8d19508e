"""One cache for huggingface_hub and for us, in both directions."""

import json
import os
import pathlib
import subprocess
import sys

REPO = "google/gemma-4-E2B-it"


def links(folder):
    """Of a snapshot: where each of its files leads."""
    return {str(path.relative_to(folder)): os.readlink(path) for path in sorted(folder.rglob("*")) if path.is_symlink()}


def test_what_huggingface_hub_fetched_is_found_and_nothing_is_fetched_again(hub, machine, pebble):
    hub.add(REPO, pebble)
    there = machine.python(f"print(json.dumps(hub.snapshot_download('{REPO}')))")
    hub.forget_requests()
    pulled = machine.run("pull", REPO, "--no-spec", check=True)
    assert pulled.stdout.strip() == there
    assert hub.paths() == [f"/api/models/{REPO}/revision/main"], "asked for the newest commit alone"
    assert hub.paths("storage") == []


def test_what_we_fetched_is_found_by_huggingface_hub(hub, machine, pebble):
    hub.add(REPO, pebble)
    pulled = machine.run("pull", REPO, "--no-spec", check=True).stdout.strip()
    hub.forget_requests()
    files = [name for name in os.listdir(pulled)]
    found = machine.python(
        f"print(json.dumps([hub.hf_hub_download('{REPO}', name, local_files_only=True) for name in {files!r}]))")
    assert sorted(found) == sorted(f"{pulled}/{name}" for name in files)
    # It knows from our listing that this is a part of the repository, and fetches the rest alone.
    whole = machine.python(f"print(json.dumps(hub.snapshot_download('{REPO}')))")
    assert whole == pulled
    assert not any("model.safetensors" in path for path in hub.paths() + hub.paths("storage"))
    assert (pathlib.Path(whole) / "README.md").exists()
    assert hub.paths("hub", "GET").count(f"/api/models/{REPO}/revision/main") == 1
    assert not any("/tree/" in path for path in hub.paths()), "our listing was used"


def test_both_lay_the_cache_out_alike(hub, machine, pebble, tmp_path):
    files = {name: data for name, data in pebble.items() if name != "README.md"}
    repo = hub.add(REPO, files)
    ours = pathlib.Path(machine.run("pull", REPO, "--no-spec", check=True).stdout.strip())
    machine.environment["HF_HOME"] = str(tmp_path / "other")
    theirs = pathlib.Path(machine.python(f"print(json.dumps(hub.snapshot_download('{REPO}')))"))
    assert links(ours) == links(theirs)
    assert ours.name == theirs.name == repo.refs["main"]
    for name in ("refs", "blobs", "trees"):
        here, there = (sorted(os.listdir(folder.parent.parent / name)) for folder in (ours, theirs))
        assert here == there, name
    for name in ("refs/main", f"trees/{ours.name}.json"):
        here, there = ((folder.parent.parent / name).read_text() for folder in (ours, theirs))
        assert (json.loads(here) == json.loads(there)) if name.endswith("json") else (here == there)
    for blob in (ours.parent.parent / "blobs").iterdir():
        other = theirs.parent.parent / "blobs" / blob.name
        assert blob.read_bytes() == other.read_bytes()
        assert blob.stat().st_mode == other.stat().st_mode


def test_list_and_rm_see_what_both_fetched(hub, machine, pebble):
    hub.add(REPO, pebble)
    hub.add("someone/other", {"config.json": b"{}"})
    machine.python("print(json.dumps(hub.snapshot_download('someone/other')))")
    machine.run("pull", REPO, "--no-spec", check=True)
    listed = json.loads(machine.run("list", "--json", check=True).stdout)
    assert [(model["name"], model["revisions"]) for model in listed] == [(REPO, ["main"]), ("someone/other", ["main"])]
    assert listed[0]["bytes"] == sum(len(data) for name, data in pebble.items() if name != "README.md")
    assert REPO in machine.run("list", check=True).stdout
    scanned = machine.python("print(json.dumps(sorted(repo.repo_id for repo in hub.scan_cache_dir().repos)))")
    assert scanned == [REPO, "someone/other"]
    assert "removed someone/other" in machine.run("rm", "someone/other", check=True).stderr
    machine.run("rm", "e2b", check=True)  # a short name of the first
    assert machine.run("list", check=True).stdout == ""
    assert "is not in the cache" in machine.refusal("rm", REPO)
    assert "all of a model" in machine.refusal("rm", REPO + "@main2")


def test_a_lock_of_huggingface_hub_is_waited_for(hub, machine, pebble):
    """Its process has a file's lock; ours waits, then takes what that one fetched."""
    hub.add(REPO, {"config.json": pebble["config.json"], "model.safetensors": pebble["model.safetensors"]})
    folder = machine.folder(REPO).name
    code = f"""
import hashlib, os, pathlib, sys
from huggingface_hub.utils import WeakFileLock
config = pathlib.Path({str(machine.home)!r}, "config.json").read_bytes()
sum = hashlib.sha1(b"blob %d\\0" % len(config) + config).hexdigest()
cache = pathlib.Path({str(machine.cache)!r})
lock = cache / ".locks" / {folder!r} / (sum + ".lock")
lock.parent.mkdir(parents=True)
with WeakFileLock(lock):
    print("held", flush=True)
    sys.stdin.readline()
    blob = cache / {folder!r} / "blobs" / sum
    blob.parent.mkdir(parents=True, exist_ok=True)
    blob.write_bytes(config)
"""
    (machine.home / "config.json").write_bytes(pebble["config.json"])
    other = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                             env=machine.environment)
    assert other.stdout.readline() == "held\n"
    ours = machine.start("pull", REPO, "--no-spec")
    lines = []
    while not any("another process fetches config.json" in line for line in lines):
        lines.append(ours.stderr.readline())
        assert lines[-1], lines
    other.communicate("go\n", timeout=60)
    ours.communicate(timeout=60)
    assert ours.returncode == 0
    assert not any("config.json" in path for path in hub.paths()), "it was taken from the other"


def test_two_processes_fetch_every_byte_once(hub, machine, large):
    hub.add(REPO, large)
    both = [machine.start("pull", REPO, "--no-spec") for _ in range(2)]
    answers = [process.communicate(timeout=100) for process in both]
    assert [process.returncode for process in both] == [0, 0], answers
    assert answers[0][0] == answers[1][0]
    assert len(hub.paths("storage")) == 4, "one request for each piece"
    assert not [name for name in machine.blobs(REPO) if "incomplete" in name]

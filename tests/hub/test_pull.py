"""What is fetched, what it is checked by, and what happens when it breaks."""

import hashlib
import os
import pathlib
import signal
import socket
import threading

from fake_hub import git_sha1

REPO = "google/gemma-4-E2B-it"
ASSISTANT = REPO + "-assistant"


def weights_of(path):
    return (pathlib.Path(path.strip()) / "model.safetensors").read_bytes()


def cut_after(num_bytes, times):
    """Closes the connection in the middle of an answer, so many times."""
    left = [times]

    def fault(handler, data, begin, end):
        if left[0] == 0:
            return False
        left[0] -= 1
        status = 206 if "Range" in handler.headers else 200
        handler.send_response(status)
        handler.send_header("Content-Length", str(end - begin))
        if status == 206:
            handler.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(data)}")
        handler.end_headers()
        handler.wfile.write(data[begin:min(begin + num_bytes, end)])
        return True

    return fault


def test_only_what_is_needed_is_fetched_and_the_assistant_with_it(hub, machine, pebble):
    hub.add(REPO, pebble | {"pytorch_model.bin": b"x" * 200_000, "onnx/model.onnx": b"x", "other.safetensors": b"x"})
    hub.add(ASSISTANT, {"config.json": b"{}", "model.safetensors": b"weights", "tokenizer.json": b"{}"})
    path = pathlib.Path(machine.run("pull", "e2b", check=True).stdout.strip())
    assert sorted(os.listdir(path)) == ["chat_template.jinja", "config.json", "generation_config.json",
                                        "model.safetensors", "processor_config.json", "tokenizer.json",
                                        "tokenizer_config.json"]
    [snapshot] = (machine.folder(ASSISTANT) / "snapshots").iterdir()
    assert sorted(os.listdir(snapshot)) == ["config.json", "model.safetensors"]
    # A model without an assistant runs all the same, and says so.
    del hub.repos[ASSISTANT]
    machine.run("rm", ASSISTANT, check=True)
    assert "are not drafted" in machine.run("pull", "e2b", check=True).stderr
    assert "are not drafted" not in machine.run("pull", "e2b", "--no-spec", check=True).stderr


def test_a_gguf_file_comes_with_towers_and_assistant(hub, machine):
    repo = "unsloth/gemma-4-E2B-it-GGUF"
    files = {f"gemma-4-E2B-it-{kind}.gguf": b"GGUF" + kind.encode() for kind in ("Q4_K_M", "Q8_0", "IQ4_XS")}
    hub.add(repo, files | {"mmproj-F16.gguf": b"GGUFt", "mmproj-BF16.gguf": b"GGUFt2",
                           "MTP/mtp-gemma-4-E2B-it.gguf": b"GGUFa", "config.json": b"{}"})
    path = pathlib.Path(machine.run("pull", repo + ":Q8_0", check=True).stdout.strip())
    assert path.name == "gemma-4-E2B-it-Q8_0.gguf" and path.read_bytes() == b"GGUFQ8_0"
    snapshot = path.parent
    assert sorted(os.listdir(snapshot)) == ["MTP", "gemma-4-E2B-it-Q8_0.gguf", "mmproj-BF16.gguf"]
    machine.run("pull", repo, "--no-spec", "--no-media", check=True)
    assert sorted(os.listdir(snapshot)) == ["MTP", "gemma-4-E2B-it-Q4_K_M.gguf", "gemma-4-E2B-it-Q8_0.gguf",
                                            "mmproj-BF16.gguf"]
    assert "has no q3_k file; it has gemma-4-E2B-it-IQ4_XS.gguf" in machine.refusal("pull", "e2b:q3_k")
    hub.add("someone/none", {"config.json": b"{}", "model.safetensors": b"x"})
    assert "has no GGUF files" in machine.refusal("pull", "someone/none:Q4_0")


def test_large_files_come_in_pieces_and_small_ones_whole(hub, machine, large):
    hub.add(REPO, large)
    done = machine.run("pull", REPO, "--no-spec", check=True)
    assert weights_of(done.stdout) == large["model.safetensors"]
    ranges = sorted(headers["Range"] for where, _, _, headers in hub.requests if where == "storage")
    assert len(ranges) == 4 and len(set(ranges)) == 4
    assert machine.blobs(REPO) == sorted([hashlib.sha256(large["model.safetensors"]).hexdigest(),
                                          git_sha1(large["config.json"])])
    # The Hub is asked where a large file is no more often than there are connections.
    assert len([path for path in hub.paths() if "model.safetensors" in path]) <= 4


def test_the_token_is_for_the_hub_alone(hub, machine, pebble):
    hub.add(REPO, pebble, private=True)
    assert "shows no model" in machine.refusal("pull", REPO, "--no-spec")
    assert "does not accept the token of HF_TOKEN" in machine.refusal("pull", REPO, "--no-spec", HF_TOKEN="hf_wrong")
    hub.forget_requests()
    machine.run("pull", REPO, "--no-spec", check=True, HF_TOKEN="hf_right")
    assert hub.paths("storage")
    for where, _, path, headers in hub.requests:
        assert headers.get("Authorization") == ("Bearer hf_right" if where == "hub" else None), path
    # Of the token file too.
    machine.run("rm", REPO, check=True)
    (machine.home / "hf" / "token").write_text("hf_right\n")
    machine.run("pull", REPO, "--no-spec", check=True)


def test_a_gated_model_names_the_page_to_visit(hub, machine, pebble):
    repo = hub.add(REPO, pebble, gated=True)
    message = machine.refusal("pull", REPO, "--no-spec")
    assert f"{REPO} is gated: accept its terms at {hub.url}/{REPO} and set HF_TOKEN" in message
    repo.gated = "refused"
    assert "with the account whose token HF_TOKEN is" in machine.refusal("pull", REPO, "--no-spec", HF_TOKEN="hf_right")
    repo.gated = True
    machine.run("pull", REPO, "--no-spec", check=True, HF_TOKEN="hf_right")


def test_names_that_lead_nowhere(hub, machine, pebble):
    hub.add(REPO, pebble)
    assert "shows no model google/gemma-4-E9B-it" in machine.refusal("pull", "google/gemma-4-E9B-it")
    assert "has no revision 'v9'" in machine.refusal("pull", REPO + "@v9", "--no-spec")
    assert "is no model's name" in machine.refusal("pull", "gemma")
    assert "there is e4b as e4b:bf16, e4b:q4_0" in machine.refusal("pull", "e4b:exl2")


def test_revisions_are_kept_apart_and_share_their_files(hub, machine, pebble):
    repo = hub.add(REPO, pebble)
    first = machine.run("pull", REPO, "--no-spec", check=True).stdout
    commit = repo.commit(pebble | {"generation_config.json": b'{"temperature": 0.5}'}, "v2")
    hub.forget_requests()
    second = machine.run("pull", REPO + "@v2", "--no-spec", check=True).stdout
    assert pathlib.Path(second.strip()).name == commit and second != first
    assert hub.paths("storage") == [], "the weights are those of main"
    assert machine.run("pull", f"{REPO}@{commit}", "--no-spec", check=True).stdout == second
    # Main moves on.
    repo.refs["main"] = commit
    assert machine.run("pull", REPO, "--no-spec", check=True).stdout == second


def test_a_break_is_gone_on_from_within_a_run(hub, machine, large):
    hub.add(REPO, large)
    hub.faults["model.safetensors"] = cut_after(3_000_000, times=6)
    done = machine.run("pull", REPO, "--no-spec", check=True)
    assert weights_of(done.stdout) == large["model.safetensors"]
    # A cut of the last piece, which is shorter, breaks nothing.
    assert 4 < len(hub.paths("storage")) <= 4 + 6


def test_a_broken_run_is_gone_on_from_by_the_next(hub, machine, large):
    hub.add(REPO, large)
    begins = []

    def few(handler, data, begin, end):  # a part of each piece, then nothing
        begins.append(begin)
        return cut_after(2_000_000 if begin % (32 << 20) == 0 else 0, times=1)(handler, data, begin, end)

    hub.faults["model.safetensors"] = few
    assert "model.safetensors" in machine.refusal("pull", REPO, "--no-spec")
    assert len(begins) <= 4 * 8, "it gives up"
    [partial] = [name for name in machine.blobs(REPO) if name.endswith(".lapidary.incomplete")]
    assert not (machine.folder(REPO) / "refs" / "main").exists() or not list(
        (machine.folder(REPO) / "snapshots").rglob("model.safetensors"))
    hub.faults.clear()
    hub.forget_requests()
    done = machine.run("pull", REPO, "--no-spec", check=True)
    assert weights_of(done.stdout) == large["model.safetensors"]
    asked = [headers["Range"] for where, _, _, headers in hub.requests if where == "storage"]
    assert all(int(text[6:].split("-")[0]) % (32 << 20) > 0 for text in asked), asked
    assert partial not in machine.blobs(REPO)


def test_a_killed_process_loses_nothing_that_had_arrived(hub, machine, large):
    hub.add(REPO, large)
    released = threading.Event()
    num_begun = threading.Semaphore(0)

    def stuck(handler, data, begin, end):
        handler.send_response(206)
        handler.send_header("Content-Length", str(end - begin))
        handler.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(data)}")
        handler.end_headers()
        handler.wfile.write(data[begin:begin + 1_000_000])
        num_begun.release()
        released.wait(60)
        return True

    for how in (signal.SIGINT, signal.SIGKILL):
        hub.faults["model.safetensors"] = stuck
        released.clear()
        process = machine.start("pull", REPO, "--no-spec")
        for _ in range(4):
            assert num_begun.acquire(timeout=60)
        [partial] = [path for path in (machine.folder(REPO) / "blobs").iterdir() if "incomplete" in path.name]
        size = len(large["model.safetensors"])
        while True:  # until what was sent is counted
            counts = partial.read_bytes()[size:size + 32]
            if sum(int.from_bytes(counts[at:at + 8], "little") for at in range(0, 32, 8)) > 1_000_000:
                break
        process.send_signal(how)
        _, said = process.communicate(timeout=60)
        released.set()
        assert process.returncode == (130 if how == signal.SIGINT else -signal.SIGKILL), said
        if how == signal.SIGINT:
            assert "the same command goes on from there" in said
    hub.faults.clear()
    hub.forget_requests()
    done = machine.run("pull", REPO, "--no-spec", check=True)
    assert weights_of(done.stdout) == large["model.safetensors"]
    asked = [headers["Range"] for where, _, _, headers in hub.requests if where == "storage"]
    assert any(int(text[6:].split("-")[0]) % (32 << 20) > 0 for text in asked), asked


def test_a_server_without_ranges_is_read_from_its_first_byte(hub, machine, large):
    hub.add(REPO, large)
    breaks = [1]

    def whole(handler, data, begin, end):
        num_bytes = len(data)
        if "Range" not in handler.headers and breaks[0] > 0:
            breaks[0] -= 1
            num_bytes //= 2
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        try:
            handler.wfile.write(data[:num_bytes])
        except OSError:
            pass
        return True

    hub.faults["model.safetensors"] = whole
    done = machine.run("pull", REPO, "--no-spec", check=True)
    assert weights_of(done.stdout) == large["model.safetensors"]
    assert breaks == [0]


def test_passing_refusals_are_waited_out(hub, machine, pebble):
    hub.add(REPO, pebble)
    hub.api_status = [503, 429]
    left = [502, 500, 429]

    def busy(handler, data, begin, end):
        if not left:
            return False
        handler.refuse(left.pop(), "", "busy")
        return True

    hub.faults["model.safetensors"] = busy
    machine.run("pull", REPO, "--no-spec", check=True)


def test_an_address_that_expired_is_asked_for_again(hub, machine, large):
    hub.add(REPO, large)
    seen = []

    def expired(handler, data, begin, end):
        seen.append(begin)
        if len(seen) in (2, 5):
            handler.refuse(403, "", "Request has expired")
            return True
        return False

    hub.faults["model.safetensors"] = expired
    done = machine.run("pull", REPO, "--no-spec", check=True)
    assert len(seen) == 4 + 2
    assert weights_of(done.stdout) == large["model.safetensors"]


def test_without_a_network_the_cache_is_used_and_what_is_missing_is_said(hub, machine, pebble):
    hub.add(REPO, pebble)
    path = machine.run("pull", REPO, "--no-spec", check=True).stdout
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        for variables in ({"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": f"http://127.0.0.1:{nobody.getsockname()[1]}"}):
            done = machine.run("pull", REPO, "--no-spec", check=True, **variables)
            assert done.stdout == path
            message = machine.refusal("pull", "e4b", "--no-spec", **variables)
            if "HF_HUB_OFFLINE" in variables:
                assert "HF_HUB_OFFLINE is set, and e4b (google/gemma-4-E4B-it) is not in the cache" in message
            else:
                assert "cannot be reached for google/gemma-4-E4B-it" in message
    # A part of a snapshot is no model.
    os.remove(pathlib.Path(path.strip()) / "model.safetensors")
    assert "lacks model.safetensors" in machine.refusal("pull", REPO, "--no-spec", HF_HUB_OFFLINE="1")
    # Nor without a listing.
    for tree in (machine.folder(REPO) / "trees").iterdir():
        tree.unlink()
    assert "neither model.safetensors" in machine.refusal("pull", REPO, "--no-spec", HF_HUB_OFFLINE="1")


def test_a_listing_of_several_pages_is_read_to_its_end(hub, machine, pebble):
    hub.add(REPO, pebble)
    hub.page_size = 2
    machine.run("pull", REPO, "--no-spec", check=True)


def test_a_model_of_another_family_is_refused_before_its_weights(hub, machine, large):
    hub.add("meta/llama", large | {"config.json": b'{"architectures": ["LlamaForCausalLM"]}'})
    assert "not Gemma 4" in machine.refusal("pull", "meta/llama")
    assert hub.paths("storage") == []

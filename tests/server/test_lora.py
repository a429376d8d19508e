"""LoRA adapters: chosen by `model`, listed, loaded and unloaded while others are answered."""

import concurrent.futures
import subprocess
import threading

import httpx
import pytest

import lora_files

ASK = {"prompt": [2, 300, 301, 302], "max_tokens": 12, "temperature": 0, "ignore_eos": True, "return_token_ids": True}


@pytest.fixture(scope="module")
def adapters(checkpoint, tmp_path_factory):
    """The directory of three adapters: sql, chat, and one that has the name of the first but another file."""
    root = tmp_path_factory.mktemp("adapters")
    for seed, name in enumerate(("sql", "chat", "other/sql")):
        lora_files.write_adapter(root / name, checkpoint, seed=seed, rank=1 + seed)
    return root


@pytest.fixture(scope="module")
def lora_server(start, adapters):
    return start("--enable-lora", "--lora-modules", f"sql={adapters}/sql", "--lora-modules",
                 f'{{"name": "chat", "path": "{adapters}/chat", "base_model_name": "tiny"}}', "--max-loras", "4",
                 "--max-cpu-loras", "3", "--allow-runtime-lora", "--lora-dir", str(adapters))


def tokens(server, model, **fields):
    answer = server.post("/v1/completions", json={"model": model, **ASK, **fields})
    assert answer.status_code == 200, answer.text
    assert answer.json()["model"] == model
    return answer.json()["choices"][0]["token_ids"]


def load(server, **fields):
    return server.post("/v1/load_lora_adapter", json=fields)


def unload(server, name):
    return server.post("/v1/unload_lora_adapter", json={"lora_name": name})


def test_the_model_field_chooses(lora_server):
    answers = {name: tokens(lora_server, name) for name in ("tiny", "sql", "chat")}
    assert len({tuple(ids) for ids in answers.values()}) == 3
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        names = ["tiny", "sql", "chat"] * 6
        together = list(threads.map(lambda name: tokens(lora_server, name), names))
    assert together == [answers[name] for name in names]


def test_every_api_answers_with_the_adapter(lora_server):
    ask = [{"role": "user", "content": "Hello"}]
    for path, body in (("/v1/chat/completions", {"messages": ask, "max_tokens": 5}),
                       ("/v1/responses", {"input": "Hello", "max_output_tokens": 5}),
                       ("/v1/messages", {"messages": ask, "max_tokens": 5}),
                       ("/api/chat", {"messages": ask, "stream": False, "options": {"num_predict": 5}})):
        answer = lora_server.post(path, json={"model": "sql", **body})
        assert answer.status_code == 200, answer.text
        assert answer.json()["model"] == "sql", path


def test_models_lists_adapters_with_root_and_parent(lora_server, adapters):
    listed = {model["id"]: model for model in httpx.get(lora_server.url + "/v1/models").json()["data"]}
    assert set(listed) == {"tiny", "sql", "chat"}
    assert (listed["sql"]["root"], listed["sql"]["parent"]) == (f"{adapters}/sql", "tiny")
    assert listed["tiny"]["parent"] is None
    assert httpx.get(lora_server.url + "/v1/models/sql").json()["parent"] == "tiny"
    missing = lora_server.post("/v1/completions", json={"model": "nobody", **ASK})
    assert missing.status_code == 404 and "'sql'" in missing.json()["error"]["message"]


def test_another_file_under_the_same_name_serves_no_old_prefix(lora_server):
    prompt = {"prompt": [2] + [300 + idx % 100 for idx in range(200)]}
    assert load(lora_server, lora_name="changing", lora_path="sql").status_code == 200
    first = tokens(lora_server, "changing", **prompt)
    assert tokens(lora_server, "sql", **prompt) == first  # The same file: the same prefix.
    answer = load(lora_server, lora_name="changing", lora_path="other/sql", load_inplace=True)
    assert answer.status_code == 200, answer.text
    second = tokens(lora_server, "changing", **prompt)
    assert second != first
    # As a server says that has never seen the other one.
    assert tokens(lora_server, "changing", **prompt, cache_salt="fresh") == second
    assert unload(lora_server, "changing").status_code == 200


def test_adapters_come_and_go(lora_server, adapters):
    assert load(lora_server, lora_name="new", lora_path=str(adapters / "other" / "sql")).status_code == 200
    ids = tokens(lora_server, "new")
    assert ids != tokens(lora_server, "sql")
    again = load(lora_server, lora_name="new", lora_path="sql")
    assert again.status_code == 400 and "loaded already" in again.json()["error"]["message"]
    full = load(lora_server, lora_name="fourth", lora_path="sql")
    assert full.status_code == 400 and "--max-cpu-loras" in full.json()["error"]["message"]
    assert unload(lora_server, "new").status_code == 200
    assert unload(lora_server, "new").status_code == 404
    assert lora_server.post("/v1/completions", json={"model": "new", **ASK}).status_code == 404


def test_only_directories_below_the_adapters_are_read(lora_server, adapters, tmp_path):
    (tmp_path / "outside").mkdir()
    (adapters / "link").symlink_to(tmp_path / "outside")
    for path in ("..", "sql/../..", "/", str(tmp_path / "outside"), "link", "", ".", "missing", "a\0b",
                 str(adapters) + "-more"):
        answer = load(lora_server, lora_name="x", lora_path=path)
        assert answer.status_code == 400, path
        assert "lora_path" in answer.json()["error"]["message"], path
    for fields in ({}, {"lora_name": "x"}, {"lora_path": "sql"}, {"lora_name": "tiny", "lora_path": "sql"},
                   {"lora_name": "two words", "lora_path": "sql"}, {"lora_name": 5, "lora_path": "sql"}):
        assert load(lora_server, **fields).status_code == 400, fields


def test_metrics_name_the_adapters(lora_server):
    before = lora_server.metric("lora_requests_total", lora_name="chat") or 0
    seen = threading.Event()
    with httpx.stream("POST", lora_server.url + "/v1/completions", timeout=60,
                      json={"model": "chat", **ASK, "max_tokens": 500, "stream": True}) as answer:
        for _ in answer.iter_lines():
            if lora_server.metric("lora_requests_info", running_lora_adapters="chat", max_lora="3"):
                seen.set()
                break
    assert seen.is_set()
    lora_server.wait_until_idle()
    assert lora_server.metric("lora_requests_total", lora_name="chat") == before + 1
    assert lora_server.metric("lora_requests_info", running_lora_adapters="", waiting_lora_adapters="") > 1.7e9


def test_loading_under_load_mixes_no_answers(lora_server):
    assert load(lora_server, lora_name="moving", lora_path="sql").status_code == 200
    expected = {"sql": tokens(lora_server, "sql"), "tiny": tokens(lora_server, "tiny")}
    assert load(lora_server, lora_name="moving", lora_path="other/sql", load_inplace=True).status_code == 200
    of_moving = [expected["sql"], tokens(lora_server, "moving")]
    stop = threading.Event()
    problems = []

    def ask(name):
        while not stop.is_set():
            answer = lora_server.post("/v1/completions", json={"model": name, **ASK})
            if answer.status_code == 404 and name == "moving":
                continue
            ids = answer.json()["choices"][0]["token_ids"] if answer.status_code == 200 else answer.text
            if ids not in (of_moving if name == "moving" else [expected[name]]):
                problems.append((name, ids))

    threads = [threading.Thread(target=ask, args=(name,)) for name in ("sql", "tiny", "moving", "moving")]
    for thread in threads:
        thread.start()
    for round_idx in range(12):
        path = ("sql", "other/sql")[round_idx % 2]
        if round_idx % 4 == 3:
            assert unload(lora_server, "moving").status_code == 200
        assert load(lora_server, lora_name="moving", lora_path=path, load_inplace=True).status_code == 200
    stop.set()
    for thread in threads:
        thread.join()
    assert not problems
    assert unload(lora_server, "moving").status_code == 200


def test_without_permission_adapters_are_fixed(server, start, adapters):
    for other in (server, start("--enable-lora", "--lora-modules", f"sql={adapters}/sql")):
        for answer in (load(other, lora_name="x", lora_path="sql"), unload(other, "sql")):
            assert answer.status_code == 403 and "--allow-runtime-lora" in answer.json()["error"]["message"]
    assert server.post("/v1/completions", json={"model": "sql", **ASK}).status_code == 404


@pytest.mark.parametrize(("flags", "reason"), [
    (["--lora-modules", "a=b"], "--enable-lora"),
    (["--enable-lora", "--lora-modules", "a=nowhere"], "not a directory"),
    (["--enable-lora", "--lora-modules", "tiny={dir}/sql"], "own name"),
    (["--enable-lora", "--lora-modules", "a={dir}/other/sql", "--max-lora-rank", "2"], "at most 2"),
    (["--enable-lora", "--lora-modules", "a={dir}/sql", "--max-cpu-loras", "1", "--lora-modules", "b={dir}/sql"],
     "--max-cpu-loras"),
    (["--enable-lora", "--allow-runtime-lora"], "--lora-dir"),
    (["--enable-lora", "--tensor-parallel-size", "2"], "--tensor-parallel-size 1"),
])
def test_flags_that_do_not_fit_are_refused(request, checkpoint, adapters, flags, reason):
    program = request.config.getoption("--lapidary")
    result = subprocess.run([program, "serve", str(checkpoint), "--port", "0", "--device", "cpu",
                             *[flag.replace("{dir}", str(adapters)) for flag in flags]],
                            capture_output=True, text=True, timeout=60)
    assert result.returncode == 1 and reason in result.stderr, result.stderr

"""What Prometheus scrapes: vLLM's names, what the Kubernetes inference gateway reads, what the dashboard shows."""

import copy
import json
import re
import subprocess
import time
from pathlib import Path

import httpx
import pytest

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
# Added by Prometheus to whatever it scrapes.
TARGET_LABELS = {"instance", "job"}


class Scrape:
    """/metrics, parsed: type by family; labels and values by sample name."""

    def __init__(self, server):
        self.types, self.labels, self.values = {}, {}, {}
        self.add(server)

    def add(self, server):
        response = httpx.get(server.url + "/metrics")
        assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
        for line in response.text.splitlines():
            if match := re.match(r"# TYPE (\S+) (\S+)", line):
                self.types[match[1]] = match[2]
            elif match := re.match(r"([a-zA-Z_:][\w:]*)\{(.*)\} (\S+)", line):
                labels = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', match[2]))
                self.labels.setdefault(match[1], []).append(labels)
                self.values[match[1]] = self.values.get(match[1], 0.0) + float(match[3])

    def has(self, name, labels):
        return any(labels <= set(sample) for sample in self.labels.get(name, []))


def ask_a_little(server):
    with server.client() as client:
        for _ in range(2):  # The second finds the first in the prefix cache.
            client.chat.completions.create(model="", messages=[{"role": "user", "content": "Hello " * 40}],
                                           max_tokens=5, extra_body={"ignore_eos": True})
    server.post("/v1/completions", json={"prompt": "x", "max_tokens": 2, "stop_token_ids": list(range(500))})


@pytest.fixture(scope="module")
def scrape(start):
    server = start()
    ask_a_little(server)
    return Scrape(server)


def dashboard():
    return json.loads((DEPLOY / "grafana" / "lapidary.json").read_text())


def expressions():
    """(panel, expression, legend) of every panel; variables' queries too."""
    found = []
    for panel in dashboard()["panels"]:
        if panel["type"] == "row":
            continue
        assert panel["targets"], panel["title"]
        found += [(panel["title"], target["expr"], target["legendFormat"]) for target in panel["targets"]]
    for variable in dashboard()["templating"]["list"]:
        if variable["type"] == "query":
            found.append((variable["name"], variable["query"]["query"], ""))
    return found


SELECTOR = re.compile(r"\$\{prefix\}:(\w+)(?:\{([^}]*)\})?")


@pytest.fixture(scope="module")
def expert_checkpoint(synthesize):
    return synthesize("tiny-moe", "moe")


@pytest.fixture(scope="module")
def expert_server(start, expert_checkpoint):
    return start("--expert-counts", model=expert_checkpoint)


@pytest.fixture(scope="module")
def full_scrape(scrape, expert_server):
    """Also what only a model with experts has."""
    full = copy.deepcopy(scrape)
    full.add(expert_server)
    return full


@pytest.mark.parametrize("title,expression,legend", expressions())
def test_the_dashboard_asks_for_what_there_is(full_scrape, title, expression, legend):
    selectors = SELECTOR.findall(expression)
    assert selectors, expression
    grouped = {label.strip() for group in re.findall(r"\bby \(([^)]*)\)", expression) for label in group.split(",")}
    shown = set(re.findall(r"\{\{(\w+)\}\}", legend))
    assert shown <= grouped, "the legend shows a label that the expression drops"
    if match := re.match(r"label_values\(.*, (\w+)\)$", expression):
        grouped = {match[1]}
    for name, matchers in selectors:
        labels = set(re.findall(r"(\w+)\s*[=!]", matchers)) | grouped
        assert full_scrape.has(f"lapidary:{name}", labels - TARGET_LABELS), (name, labels)
    rest = SELECTOR.sub("", expression)
    assert "lapidary" not in rest, "the prefix is a variable"


def test_the_dashboard_shows_what_matters():
    names = {name for _, expression, _ in expressions() for name, _ in SELECTOR.findall(expression)}
    assert names >= {
        "time_to_first_token_seconds_bucket", "inter_token_latency_seconds_bucket", "request_queue_time_seconds_bucket",
        "request_prefill_time_seconds_bucket", "request_decode_time_seconds_bucket", "generation_tokens_total",
        "prompt_tokens_total", "kv_cache_usage_perc", "kv_cache_group_usage_perc", "prefix_cache_hits_total",
        "prefix_cache_group_usage_perc",
        "num_preemptions_total", "num_requests_running", "num_requests_waiting", "expert_tokens_total"}
    variables = {variable["name"]: variable for variable in dashboard()["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    assert variables["prefix"]["query"] == "lapidary"
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(dashboard()["panels"])))
    assert used <= set(variables) | {"__rate_interval"}


def test_every_histogram_is_fed(scrape):
    histograms = [name for name, kind in scrape.types.items() if kind == "histogram"]
    assert len(histograms) >= 10
    for name in histograms:
        assert scrape.values[name + "_count"] > 0, name
    assert scrape.values["lapidary:prefix_cache_hits_total"] > 0


def test_every_token_counts_for_its_experts_in_every_layer(expert_server, expert_checkpoint):
    config = json.loads((expert_checkpoint / "config.json").read_text())
    layers = [str(layer) for layer in range(config["num_hidden_layers"])]

    def tokens():
        return [expert_server.metric("expert_tokens_total", layer=layer) for layer in layers]

    before = tokens()
    usage = expert_server.post("/v1/completions", json={"prompt": "x y z", "max_tokens": 4, "ignore_eos": True}).json()["usage"]
    expert_server.wait_until_idle()
    rows = usage["prompt_tokens"] + usage["completion_tokens"] - 1  # The last token is never a step's input.
    counted = [after - start for after, start in zip(tokens(), before)]
    assert counted[0] == rows * config["top_k_experts"]
    # What nobody needs of the last layers is not computed, of an answer everything is.
    assert all(usage["completion_tokens"] * config["top_k_experts"] <= count <= counted[0] for count in counted)
    assert expert_server.metric("expert_tokens_total", layer="0", expert=config["num_experts"] - 1) is not None
    assert expert_server.metric("expert_tokens_total", expert=config["num_experts"]) is None


def test_expert_counts_need_experts(request, checkpoint):
    run = subprocess.run([request.config.getoption("--lapidary"), "serve", str(checkpoint), "--expert-counts", "--port", "0"],
                         capture_output=True, text=True, timeout=60)
    assert run.returncode == 1
    assert "--expert-counts" in run.stderr and "no experts" in run.stderr


# As in vLLM's own list; its client library adds _total to the names of counters.
VLLM = {
    "gauge": ["num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "cache_config_info"],
    "counter": ["num_preemptions_total", "prefix_cache_queries_total", "prefix_cache_hits_total",
                "prompt_tokens_total", "generation_tokens_total", "request_success_total",
                "mm_cache_queries_total", "mm_cache_hits_total", "spec_decode_num_drafts_total", "spec_decode_num_draft_tokens_total",
                "spec_decode_num_accepted_tokens_total"],
    "histogram": ["time_to_first_token_seconds", "inter_token_latency_seconds", "e2e_request_latency_seconds",
                  "request_queue_time_seconds", "request_prefill_time_seconds", "request_decode_time_seconds",
                  "request_inference_time_seconds", "request_time_per_output_token_seconds",
                  "request_prompt_tokens", "request_generation_tokens"],
}


@pytest.fixture(scope="module")
def vllm_scrape(start):
    server = start("--metrics-prefix", "vllm", "--served-model-name", "gemma")
    ask_a_little(server)
    return Scrape(server)


@pytest.mark.parametrize("kind,name", [(kind, name) for kind, names in VLLM.items() for name in names])
def test_with_its_prefix_the_names_are_vllm_s(vllm_scrape, kind, name):
    assert vllm_scrape.types[f"vllm:{name}"] == kind
    sample = f"vllm:{name}" + ("_count" if kind == "histogram" else "")
    for labels in vllm_scrape.labels[sample]:
        assert labels["model_name"] == "gemma"
        assert labels["engine"] == "0"


def test_the_inference_gateway_finds_what_it_routes_by(vllm_scrape):
    """The model server protocol of gateway-api-inference-extension: the queue, what runs, a share of the KV cache;
    optionally the cache's shape in labels. Adapters (lora_requests_info) we do not serve."""
    for name in ("num_requests_waiting", "num_requests_running"):
        assert len(vllm_scrape.labels[f"vllm:{name}"]) == 1
        assert vllm_scrape.values[f"vllm:{name}"] == 0
    assert 0 <= vllm_scrape.values["vllm:kv_cache_usage_perc"] <= 1
    (info,) = vllm_scrape.labels["vllm:cache_config_info"]
    assert int(info["block_size"]) > 0 and int(info["num_gpu_blocks"]) > 0
    assert info["cache_dtype"] == "float32"


def test_the_cache_has_the_format_that_was_asked_for(start):
    (info,) = Scrape(start("--kv-cache-dtype", "int8")).labels["lapidary:cache_config_info"]
    assert info["cache_dtype"] == "int8"


def test_formats_of_the_weights_are_shown(start):
    scrape = Scrape(start("--quantization", "q8_0"))
    formats = {labels["tensors"]: labels["loaded"] for labels in scrape.labels["lapidary:weight_bytes"]}
    assert formats["MLP"] == "Q8_0"
    assert formats["attention"] == "Q8_0"


def test_reasons_are_there_before_they_happen(start):
    scrape = Scrape(start())
    reasons = {labels["finished_reason"] for labels in scrape.labels["lapidary:request_success_total"]}
    assert reasons == {"stop", "length", "tool_calls", "abort", "error"}


def test_pool_use_by_group_adds_up(start):
    server = start("--max-num-seqs", "4")
    body = {"prompt": "Hello " * 100, "n": 4, "max_tokens": 300, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", server.url + "/v1/completions", json=body, timeout=60) as response:
        lines = response.iter_lines()  # kept: without it the client would leave
        next(lines)
        deadline = time.monotonic() + 20  # The engine publishes its numbers once a step.
        while not (scrape := Scrape(server)).values["lapidary:kv_cache_usage_perc"]:
            assert time.monotonic() < deadline
        groups = {labels["group"] for labels in scrape.labels["lapidary:kv_cache_group_usage_perc"]}
        assert groups == {"sliding", "full"}
        total = scrape.values["lapidary:kv_cache_usage_perc"]
        assert scrape.values["lapidary:kv_cache_group_usage_perc"] == pytest.approx(total)
    server.wait_until_idle()
    assert Scrape(server).values["lapidary:kv_cache_group_usage_perc"] == 0

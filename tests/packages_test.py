"""./lapidary package: what it packs runs where nothing else is installed. Usage: packages_test.py SOURCE BUILD CUDA PYTHON

Packs the finished build, compiles nothing. Each package is unpacked in a root of its own, entered with chroot: the .deb
among the files of the packages it depends on (dpkg knows them), the tarball beside a shell, the wheel beside Python,
libstdc++ (which manylinux leaves to the system) and the wheels it depends on. Of the tarball a container image is made
(deploy/image), from a base of a shell alone, and started by buildah."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import httpx

from server_process import ServerProcess

SOURCE, BUILD, CUDA, PYTHON = sys.argv[1:5] if len(sys.argv) == 5 else [None] * 4
QUESTION = "What is 48 + 17?"
ANSWER = "48 + 17 = 65"


def installed_packages():
    """{name or virtual name: (name, what it depends on as [[alternatives]])} of what dpkg has installed."""
    form = "${Package}\t${db:Status-Status}\t${Provides}\t${Pre-Depends}, ${Depends}\n"
    packages = {}
    for line in subprocess.check_output(["dpkg-query", "-W", "-f", form], text=True).splitlines():
        name, status, provides, depends = line.split("\t")
        if status != "installed":
            continue
        entry = (name, dependencies(depends))
        packages[name] = entry
        for alternatives in dependencies(provides):
            packages.setdefault(alternatives[0], entry)
    return packages


def dependencies(field):
    """A field such as 'a (>= 1) | b, c:any' as [["a", "b"], ["c"]]."""
    groups = [[re.sub(r"[ (:].*", "", name.strip()) for name in group.split("|")] for group in field.split(",")]
    return [group for group in groups if group != [""]]


def closure(groups):
    """The installed packages that these dependencies and theirs name."""
    packages = installed_packages()
    found, waiting = set(), list(groups)
    while waiting:
        alternatives = waiting.pop()
        entry = next((packages[name] for name in alternatives if name in packages), None)
        assert entry, f"none of {alternatives} is installed here, though the program runs"
        if entry[0] not in found:
            found.add(entry[0])
            waiting += entry[1]
    return sorted(found)


def copy_into(root, files):
    for file in files:
        source = pathlib.Path(file)
        if not source.is_symlink() and not source.is_file():
            continue
        target = root / file.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists() and not target.is_symlink():
            shutil.copy2(source, target, follow_symlinks=False)


class Root:
    """A file tree that commands are run in as if it were the whole system."""

    def __init__(self, path):
        self.path = path
        for folder in ("proc", "dev", "tmp", "etc", "usr/bin", "usr/lib"):
            (path / folder).mkdir(parents=True, exist_ok=True)
        for link in ("bin", "lib", "lib64", "sbin"):
            if os.path.islink(f"/{link}"):  # merged into /usr, as everywhere since Debian 12
                (path / "usr" / link).mkdir(exist_ok=True)
                (path / link).symlink_to(f"usr/{link}")

    def add_packages(self, names):
        copied = ""
        for name in names:
            copied += subprocess.check_output(["dpkg-query", "-L", name], text=True)
        copy_into(self.path, copied.splitlines())
        # Where dpkg's scripts would have made links: libraries found by their names.
        subprocess.run(["ldconfig", "-r", self.path], check=True, stderr=subprocess.DEVNULL)

    def program(self, *command):
        """A script that runs the command in this root."""
        return program_in(self.path, self.path.parent / f"in-{self.path.name}", command)


def program_in(root, script, command, user="0:0"):
    namespace = "--mount" if os.geteuid() == 0 else "--mount --map-root-user"
    inside = " ".join(f"'{word}'" for word in command)
    script.write_text("#!/bin/sh\nset -e\n"
                      f"exec unshare {namespace} sh -c '\n"
                      f"mount --rbind /proc {root}/proc\nmount --rbind /dev {root}/dev\n"
                      "exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp "
                      f"chroot --userspec={user} {root} \"$@\"' sh {inside} \"$@\"\n")
    script.chmod(0o755)
    return script


class PackagesTest(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory(prefix="lapidary-packages-")
        self.addCleanup(scratch.cleanup)
        self.scratch = pathlib.Path(scratch.name)
        probe = Root(self.scratch / "probe").program("/nothing")
        result = subprocess.run([probe], capture_output=True, text=True)
        if "unshare" in result.stderr or "mount:" in result.stderr:
            self.skipTest(f"no mount namespaces here: {result.stderr.strip()}")
        self.assertIn("/nothing", result.stderr)

    def pack(self, kind):
        environment = {**os.environ, "LAPIDARY_BUILD_DIR": BUILD, "LAPIDARY_CUDA": CUDA, "LAPIDARY_INSTALL": "0"}
        result = subprocess.run([f"{SOURCE}/lapidary", "package", kind, "--output", self.scratch / "dist"],
                                env=environment, capture_output=True, text=True)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stderr, "", "packing a finished build is silent")
        package = pathlib.Path(result.stdout.rstrip("\n"))
        self.assertTrue(package.is_file(), result.stdout)
        return package

    def check_program(self, program):
        """It answers with the bundled model, says what is wrong, and serves. Returns what the server had mapped."""
        run = lambda *arguments: subprocess.run([program, *arguments], capture_output=True, text=True)
        version = run("--version")
        self.assertRegex(version.stdout, r"^lapidary \d", version.stderr)
        answer = run("generate", "--chat", QUESTION, "--temperature", "0")
        self.assertEqual(answer.stdout.strip(), ANSWER, answer.stderr)
        refused = run("generate", "/no/such/model", "--prompt", "x")
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn("/no/such/model", refused.stderr)
        return self.check_server(program)

    def check_server(self, program):
        server = ServerProcess(program, "pebble-e", "--device", "cpu")
        try:
            body = {"messages": [{"role": "user", "content": QUESTION}], "temperature": 0}
            reply = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60).json()
            self.assertEqual(reply["choices"][0]["message"]["content"], ANSWER)
            return pathlib.Path(f"/proc/{server.process.pid}/maps").read_text()
        finally:
            self.assertEqual(server.stop(), 0)

    def test_the_deb_runs_with_the_packages_it_depends_on(self):
        if not shutil.which("dpkg-shlibdeps"):
            self.skipTest("no dpkg here")
        deb = self.pack("deb")
        field = lambda name: subprocess.check_output(["dpkg-deb", "--field", deb, name], text=True).strip()
        self.assertEqual(field("Package"), "lapidary")
        root = Root(self.scratch / "deb")
        root.add_packages(closure(dependencies(field("Depends"))))
        subprocess.run(["dpkg-deb", "--extract", deb, root.path], check=True)
        self.check_program(root.program("/usr/bin/lapidary"))

    def root_with_a_shell(self, name):
        root = Root(self.scratch / name)
        if shutil.which("dpkg-query"):
            root.add_packages(closure([["dash"], ["coreutils"]]))
        else:
            self.skipTest("no dpkg here, which knows the files of a shell")
        if not (root.path / "usr/bin/sh").exists():
            (root.path / "usr/bin/sh").symlink_to("dash")
        return root

    def test_the_tarball_runs_beside_a_shell_with_its_own_libraries(self):
        tarball = self.pack("tarball")
        root = self.root_with_a_shell("tarball")
        (root.path / "opt").mkdir()
        subprocess.run(["tar", "-C", root.path / "opt", "-xf", tarball], check=True)
        [folder] = (root.path / "opt").iterdir()
        # Through a link, as in /usr/local/bin.
        (root.path / "usr/bin/lapidary").symlink_to(f"/opt/{folder.name}/bin/lapidary")
        mapped = self.check_program(root.program("/usr/bin/lapidary"))
        libraries = {line.split()[-1] for line in mapped.splitlines() if ".so" in line}
        self.assertTrue(any("/libc.so" in library for library in libraries), libraries)
        self.assertEqual([library for library in libraries if "/lib.private/" not in library], [])
        self.check_image(tarball)

    def check_image(self, tarball):
        """deploy/image/build makes an image of it, without a network; what it starts serves as nobody."""
        if not shutil.which("buildah"):
            print("the image is not built: no buildah here (apt install buildah)")
            return
        if os.geteuid() != 0:
            print("the image is not built: buildah's chroot isolation is tried as root only")
            return
        buildah = self.scratch / "buildah"
        buildah.write_text(f"#!/bin/sh\nexec buildah --root {self.scratch}/storage --runroot {self.scratch}/run "
                           '--storage-driver vfs "$@"\n')
        buildah.chmod(0o755)
        run = lambda *command: subprocess.check_output(list(map(str, command)), text=True, stderr=subprocess.PIPE).strip()
        base = run(buildah, "from", "scratch")
        run(buildah, "add", "--quiet", base, self.root_with_a_shell("base").path, "/")
        run(buildah, "commit", "--quiet", base, "localhost/base")
        environment = {**os.environ, "LAPIDARY_IMAGE_BUILDER": str(buildah)}
        built = subprocess.run([f"{SOURCE}/deploy/image/build", "--tarball", tarball, "--base", "localhost/base", "--",
                                "--isolation", "chroot", "--pull-never"], env=environment, capture_output=True, text=True)
        self.assertEqual(built.returncode, 0, built.stderr)
        image = built.stdout.strip()
        self.assertRegex(image, r"^localhost/lapidary:\d[\w.]*$")
        config = json.loads(run(buildah, "inspect", "--type", "image", image))["OCIv1"]["config"]
        self.assertEqual(config["Entrypoint"], ["lapidary"])
        self.assertEqual(config["User"], "65532:65532")
        container = run(buildah, "from", "--pull-never", image)
        # What it starts, as whom it starts it: buildah itself would not pass signals on.
        [path] = [value for value in config["Env"] if value.startswith("PATH=/opt/lapidary-")]
        self.check_server(program_in(run(buildah, "mount", container), self.scratch / "in-container",
                                     ["env", path, *config["Entrypoint"]], config["User"]))
        whose = run(buildah, "run", "--isolation", "chroot", container, "--", "sh", "-c",
                    "id -u; touch /opt/lapidary-*/bin/lapidary 2>/dev/null || echo refused")
        self.assertEqual(whose.split(), ["65532", "refused"])

    def test_the_wheel_runs_beside_python_and_libstdcxx(self):
        wheel = self.pack("wheel")
        self.assertIn("manylinux", wheel.name)
        python = f"python3.{sys.version_info.minor}"
        if not os.path.exists(f"/usr/bin/{python}"):
            self.skipTest(f"the wheel is for {python}, which this system's packages do not have")
        root = Root(self.scratch / "wheel")
        root.add_packages(closure([["python3"], ["libstdc++6"], ["coreutils"]]))
        site = root.path / "site"
        subprocess.run([PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps",
                        "--no-index", "--target", site, wheel], check=True)
        installed = pathlib.Path(next(path for path in sys.path if path.endswith("site-packages")))
        for package in ("numpy", "numpy.libs", "tqdm"):
            shutil.copytree(installed / package, site / package)
        extension = next((site / "lapidary").glob("_core*.so"))
        needed = subprocess.check_output(["readelf", "--dynamic", extension], text=True)
        self.assertNotRegex(needed, r"NEEDED.*libcu(da|blas)", "CUDA is loaded when a GPU is used")
        script = (site / "bin/lapidary").read_text().split("\n", 1)
        (site / "bin/lapidary").write_text(f"#!/usr/bin/{python}\n{script[1]}")
        self.check_program(root.program("/usr/bin/env", "PYTHONPATH=/site", "/site/bin/lapidary"))
        (root.path / "ask.py").write_text(f"""
import importlib.metadata
import lapidary
assert importlib.metadata.version("lapidary") == lapidary.__version__
[point] = importlib.metadata.distribution("lapidary").entry_points.select(group="lm_eval.models")
assert point.name == "lapidary"
params = lapidary.SamplingParams(temperature=0, max_tokens=None)
question = [{{"role": "user", "content": {QUESTION!r}}}]
print(lapidary.LLM(device="cpu", max_model_len=512).chat(question, params, use_tqdm=False)[0].outputs[0].text)
""")
        answer = subprocess.run([root.program("/usr/bin/env", "PYTHONPATH=/site", f"/usr/bin/{python}", "/ask.py")],
                                capture_output=True, text=True)
        self.assertEqual(answer.stdout.strip(), ANSWER, answer.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)

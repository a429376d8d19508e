"""A server on this machine that speaks the part of the Hugging Face Hub's API that clients of models use, with a second
one on another port that large files are redirected to, as the real Hub does it. Faults are arranged per path."""

import hashlib
import http.server
import json
import re
import ssl
import threading
import urllib.parse

LARGE = 100_000  # bytes from which a file is stored outside git


def git_sha1(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class Repo:
    def __init__(self, files, gated=False, private=False):
        self.gated = gated
        self.private = private
        self.commits = {}  # commit: {path: bytes}
        self.refs = {}
        self.extra_entries = []  # of the listing, as they are
        self.commit(files)

    def commit(self, files, revision="main"):
        listing = "".join(f"{path}:{git_sha1(data)}" for path, data in sorted(files.items()))
        name = hashlib.sha1(listing.encode()).hexdigest()
        self.commits[name] = dict(files)
        self.refs[revision] = name
        return name

    def find(self, revision):
        return self.refs.get(revision, revision if revision in self.commits else None)


class FakeHub:
    """Ready once it is made; `url` is HF_ENDPOINT."""

    def __init__(self, certificate=None):
        """With a file of a certificate and its key, the Hub speaks https; where large files are, plain http."""
        self.repos = {}
        self.token = "hf_right"
        self.page_size = 1000
        self.faults = {}  # path of a file: a function of (handler, data, begin, end) that may answer and return True
        self.api_status = []  # answers of the next API requests, before right ones
        self.requests = []  # (server, method, path, headers)
        self.lock = threading.Lock()
        self.storage = _start(_StorageHandler, self)
        self.hub = _start(_HubHandler, self, certificate)
        self.url = f"{'https' if certificate else 'http'}://127.0.0.1:{self.hub.server_port}"
        self.storage_url = f"http://localhost:{self.storage.server_port}"
        self.redirect_to = self.storage_url

    def add(self, name, files, **options):
        self.repos[name] = Repo(files, **options)
        return self.repos[name]

    def forget_requests(self):
        with self.lock:
            self.requests.clear()

    def paths(self, server="hub", method="GET"):
        with self.lock:
            return [path for where, how, path, _ in self.requests if where == server and how == method]

    def close(self):
        for server in (self.hub, self.storage):
            server.shutdown()
            server.server_close()


def _start(handler, fake, certificate=None):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    server.daemon_threads = True
    server.fake = fake
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    return server


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    where = ""

    def log_message(self, *_):
        pass

    def note(self):
        fake = self.server.fake
        with fake.lock:
            fake.requests.append((self.where, self.command, self.path, dict(self.headers)))
        return fake

    def answer(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def refuse(self, status, code, message=""):
        self.answer(status, json.dumps({"error": message}).encode(), X_Error_Code=code,
                    X_Error_Message=message)

    def send_file(self, path, data, **headers):
        """The file or the range asked for, unless a fault is arranged."""
        begin, end, status = 0, len(data), 200
        if match := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            begin, status = int(match[1]), 206
            end = min(int(match[2]) + 1, len(data)) if match[2] else len(data)
            if begin >= len(data):
                return self.answer(416, Content_Range=f"bytes */{len(data)}")
        fault = self.server.fake.faults.get(path)
        if fault and fault(self, data, begin, end):
            self.close_connection = True
            return None
        if status == 206:
            headers["Content_Range"] = f"bytes {begin}-{end - 1}/{len(data)}"
        return self.answer(status, data[begin:end], **headers)


class _HubHandler(_Handler):
    where = "hub"

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        fake = self.note()
        url = urllib.parse.urlsplit(self.path)
        path = urllib.parse.unquote(url.path)
        token = self.headers.get("Authorization", "")
        if token and token != "Bearer " + fake.token:
            return self.refuse(401, "", "Invalid credentials in Authorization header")
        if path.startswith("/api/") and fake.api_status:
            return self.refuse(fake.api_status.pop(0), "", "not now")
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/(revision|tree)/(.+)", path):
            return self.api(match[1], match[2], match[3], token, urllib.parse.parse_qs(url.query))
        if match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            return self.resolve(match[1], match[2], match[3], token)
        return self.refuse(404, "", "no such page")

    def repo(self, name, token):
        repo = self.server.fake.repos.get(name)
        if repo is None or (repo.private and not token):
            self.refuse(404 if token else 401, "RepoNotFound", "Repository not found")
            return None
        return repo

    def api(self, name, kind, revision, token, query):
        repo = self.repo(name, token)
        if repo is None:
            return None
        commit = repo.find(revision)
        if commit is None:
            return self.refuse(404, "RevisionNotFound", "Invalid rev id")
        if kind == "revision":
            body = {"id": name, "sha": commit, "gated": repo.gated, "private": repo.private, "tags": [],
                    "siblings": [{"rfilename": path} for path in repo.commits[commit]]}
            return self.answer(200, json.dumps(body).encode(), Content_Type="application/json")
        entries = []
        for path, data in sorted(repo.commits[commit].items()):
            entry = {"type": "file", "path": path, "size": len(data), "oid": git_sha1(data)}
            if len(data) >= LARGE:
                entry["oid"] = git_sha1(b"pointer of " + path.encode())
                entry["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 135}
            entries.append(entry)
        entries += repo.extra_entries
        size = self.server.fake.page_size
        begin = int(query.get("cursor", ["0"])[0])
        headers = {"Content_Type": "application/json"}
        if begin + size < len(entries):
            link = f"{self.server.fake.url}/api/models/{name}/tree/{revision}?recursive=true&cursor={begin + size}"
            headers["Link"] = f'<{link}>; rel="next"'
        return self.answer(200, json.dumps(entries[begin:begin + size]).encode(), **headers)

    def resolve(self, name, revision, path, token):
        repo = self.repo(name, token)
        if repo is None:
            return None
        if repo.gated and (not token or repo.gated == "refused"):
            return self.refuse(403 if token else 401, "GatedRepo", f"Access to model {name} is restricted")
        commit = repo.find(revision)
        data = repo.commits[commit].get(path) if commit else None
        if data is None:
            return self.refuse(404, "EntryNotFound", "Entry not found")
        headers = {"X_Repo_Commit": commit, "ETag": f'"{git_sha1(data)}"'}
        if len(data) < LARGE:
            return self.send_file(path, data, **headers)
        fake = self.server.fake
        headers |= {"X_Linked_Etag": f'"{hashlib.sha256(data).hexdigest()}"', "X_Linked_Size": str(len(data)),
                    "Location": f"{fake.redirect_to}/{name}/{commit}/{urllib.parse.quote(path)}?signature=1"}
        return self.answer(302, **headers)


class _StorageHandler(_Handler):
    where = "storage"

    def do_GET(self):
        fake = self.note()
        path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
        owner, name, commit, file = path.lstrip("/").split("/", 3)
        return self.send_file(file, fake.repos[f"{owner}/{name}"].commits[commit][file])

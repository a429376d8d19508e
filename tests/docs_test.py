"""The pages of README.md and docs/ against the tree. Usage: docs_test.py

Each check takes the tree's root and a page and returns its problems as sentences, so that the checks
themselves are tested on pages that are wrong."""

import functools
import pathlib
import re
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Most lines of a page, the first pattern that matches it.
LIMITS = (("README.md", 200), ("docs/architecture.md", 149), ("docs/design/*.md", 80))
# Pages for users, where the private words of the glossary do not belong.
FOR_USERS = ("README.md", "docs/commands.md")
# Dated logs say what was true on their day.
LOGS = "docs/lab/"

PATH_BASES = ("", "src", "src/ops/cuda")
TOP_FOLDERS = ("apps", "cmake", "deploy", "docs", "examples", "fuzz", "include", "models", "python",
               "resources", "scripts", "src", "tests", "tools")
SOURCE_SUFFIX = re.compile(r"\.(h|cc|cu|cuh|inc|py|pyi|sh|md|json|ya?ml|png|svg)$")

# Options of programs that are not ours: cmake, ctest, pip, lm-evaluation-harness, helm, routers.
FOREIGN_FLAGS = {"--build", "--component", "--install", "--model_args", "--output-on-failure", "--prefix",
                 "--tasks", "--test-dir", "--values",
                 "--health-check-endpoint", "--health-check-interval-secs", "--health-failure-threshold", "--policy",
                 "--retry-max-retries", "--worker-urls"}
# Where options of our programs are spelled out.
FLAG_SOURCES = ("lapidary", "apps/**/*.cc", "apps/**/*.h", "python/lapidary/**/*.py", "src/load/load_fields.cc",
                "src/bench_kernels/*_main.cc", "tools/**/*.py", "scripts/*", "tests/**/conftest.py", ".ci/*")
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9]*(?:[-_][a-z0-9]+)*")


def pages(root):
    return [root / "README.md", root / "CONTRIBUTING.md", *sorted((root / "docs").rglob("*.md"))]


def name_of(root, page):
    return page.relative_to(root).as_posix()


def without_code(text):
    """Fenced blocks are empty lines, so that lines keep their numbers."""
    return re.sub(r"^```.*?^```", lambda block: "\n" * block[0].count("\n"), text,
                  flags=re.MULTILINE | re.DOTALL)


def anchors(page):
    """The anchors of a page's headings as GitHub makes them."""
    found = set()
    for heading in re.findall(r"^#+ +(.*)$", without_code(page.read_text()), re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
        slug = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        number = 1
        anchor = slug
        while anchor in found:
            anchor = f"{slug}-{number}"
            number += 1
        found.add(anchor)
    return found


def broken_links(root, page):
    text = without_code(page.read_text())
    text = re.sub(r"`[^`\n]*`", "", text)
    targets = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r"^\[[^\]]+\]:\s+(\S+)", text, re.MULTILINE)
    problems = []
    for target in targets:
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists():
            problems.append(f"links to {target}, which is not there")
        elif anchor and anchor not in anchors(file):
            problems.append(f"links to {target}: the page has no such heading")
    return problems


def missing_paths(root, page):
    problems = []
    for code in re.findall(r"`([^`\n]+)`", without_code(page.read_text())):
        path = code.split("#")[0].rstrip("/")
        if not re.fullmatch(r"[\w.*-]+(/[\w.*-]+)+", path):
            continue
        is_ours = path.split("/")[0] in TOP_FOLDERS or SOURCE_SUFFIX.search(path)
        if not is_ours or re.search(r"[A-Z]{3,}", path.removeprefix("README.md")) and "CMake" not in path:
            continue
        bases = [root / base for base in PATH_BASES] + [page.parent]
        if not any(list(base.glob(path)) for base in bases):
            problems.append(f"names `{code}`, which is not there")
    return problems


@functools.cache
def known_flags(root):
    known = set(FOREIGN_FLAGS)
    for pattern in FLAG_SOURCES:
        for file in root.glob(pattern):
            # Options of other programs, with what to use here instead.
            if not file.is_file() or file.name == "foreign_flags.cc":
                continue
            text = file.read_text(errors="replace")
            if file.suffix in (".cc", ".h", ".py"):
                text = "\n".join(re.findall(r"\"[^\"\n]*\"|'[^'\n]*'", text))
            known.update(FLAG.findall(text))
    return known


def unknown_flags(root, page, known):
    named = set(FLAG.findall(re.sub(r"\]\([^)]*\)", "]", page.read_text())))
    return [f"names the option {flag}, which no program has" for flag in sorted(named - known)]


def too_long(root, page):
    num_lines = len(page.read_text().splitlines())
    for pattern, limit in LIMITS:
        if pathlib.PurePosixPath(name_of(root, page)).match(pattern):
            return [f"has {num_lines} lines, at most {limit}"] if num_lines > limit else []
    return []


def private_words(root):
    text = (root / "docs/glossary.md").read_text()
    section = text.split("## Private words", 1)[1].split("\n## ", 1)[0]
    return re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)


def private_words_of(root, page, words):
    if name_of(root, page) not in FOR_USERS:
        return []
    text = re.sub(r"`[^`\n]*`|\]\([^)]*\)", "", without_code(page.read_text()))
    return [f"says '{word}', which is private" for word in words
            if re.search(rf"\b{re.escape(word)}\b", text, re.IGNORECASE)]


def unmapped_folders(root, page):
    if name_of(root, page) != "docs/architecture.md":
        return []
    text = page.read_text()
    folders = sorted(folder.relative_to(root).as_posix() for folder in (root / "src").iterdir() if folder.is_dir())
    return [f"leaves {folder} out of its map" for folder in folders
            if not re.search(rf"^\| `{re.escape(folder)}(/\w+)?` \|", text, re.MULTILINE)]


def problems_of(root, page):
    found = broken_links(root, page) + too_long(root, page) + unmapped_folders(root, page)
    found += private_words_of(root, page, private_words(root))
    if not name_of(root, page).startswith(LOGS):
        found += missing_paths(root, page) + unknown_flags(root, page, known_flags(root))
    return [f"{name_of(root, page)} {problem}" for problem in found]


class Pages(unittest.TestCase):
    def test_every_page_is_true_of_the_tree(self):
        problems = [problem for page in pages(ROOT) for problem in problems_of(ROOT, page)]
        self.assertEqual(problems, [], "\n" + "\n".join(problems))

    def test_the_glossary_has_private_words(self):
        self.assertGreater(len(private_words(ROOT)), 3)

    def test_each_design_page_has_a_figure(self):
        for page in sorted((ROOT / "docs/design").glob("*.md")):
            text = page.read_text()
            self.assertTrue("```mermaid" in text or ".svg)" in text, page.name)


class Checks(unittest.TestCase):
    """The checks find what is wrong in a small tree, and nothing in a right one."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name).resolve()
        self.write("docs/glossary.md", "# Words\n\n## Private words\n\n| private | say |\n|---|---|\n| `waist` | - |\n")
        self.write("apps/x_command.cc", 'add("--threads", threads, "See --numa");\n// --dropped\n')
        self.write("src/kv/page.h", "")

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def problems(self, text, name="README.md"):
        return problems_of(self.root, self.write(name, text))

    def assert_found(self, text, part, name="README.md"):
        found = self.problems(text, name)
        self.assertTrue(len(found) == 1 and part in found[0], found)

    def test_a_right_page_has_no_problems(self):
        self.assertEqual(self.problems("# A *b*, `c`\n\nSee [a](#a-b-c), [words](docs/glossary.md#private-words), "
                                       "`src/kv/page.h`, `kv/page.h`, `src/*/page.h`, `--threads`.\n"), [])

    def test_broken_links_are_found(self):
        self.assert_found("[a](docs/none.md)", "docs/none.md, which is not there")
        self.assert_found("[a](docs/glossary.md#none)", "no such heading")
        self.assert_found("[a][b]\n\n[b]: none.md\n", "none.md, which is not there")

    def test_missing_sources_are_found(self):
        self.assert_found("See `src/kv/none.h`.", "`src/kv/none.h`")
        self.assert_found("See `kv/none.h`.", "`kv/none.h`")

    def test_unknown_options_are_found(self):
        self.assert_found("`--no-such-thing`", "--no-such-thing")
        self.assert_found("`--dropped`", "--dropped")
        self.assert_found("```\nx --thread 1\n```\n", "--thread,")

    def test_long_pages_are_found(self):
        self.assert_found("a\n" * 201, "has 201 lines")
        self.assert_found("| `src/kv` |\n" + "a\n" * 149, "has 150 lines", "docs/architecture.md")
        self.assert_found("a\n" * 81, "has 81 lines", "docs/design/a.md")

    def test_folders_without_a_place_in_the_map_are_found(self):
        self.assert_found("| `apps` | no row of `src/kv` |\n", "leaves src/kv out", "docs/architecture.md")
        self.assertEqual(self.problems("| `src/kv` | pages |\n", "docs/architecture.md"), [])

    def test_private_words_are_found(self):
        self.assert_found("The waist.", "'waist'")
        self.assertEqual(self.problems("The waist.", "docs/design/a.md"), [])

    def test_logs_may_name_what_is_gone(self):
        self.assertEqual(self.problems("`src/none.h` `--none`", "docs/lab/2026-01-a.md"), [])
        self.assert_found("[a](none.md)", "none.md", "docs/lab/2026-01-a.md")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + ["-v"] if "-v" in sys.argv else sys.argv[:1])

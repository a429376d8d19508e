"""What axe-core finds wrong on the page of a visitor."""

from axe_playwright_python.sync_playwright import Axe

OPTIONS = {"resultTypes": ["violations"], "rules": {"target-size": {"enabled": True}}}  # rules of good practice are on


def violations(visitor, state):
    visitor.page.mouse.move(1, 1)
    found = Axe().run(visitor.page, options=OPTIONS)
    return [f"{state}: {rule['id']}: {node['html'][:150]} ({node['failureSummary']})"
            for rule in found.response["violations"] for node in rule["nodes"]]

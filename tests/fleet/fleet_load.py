"""Clients that ask a fleet the same questions again and again, whole and streamed, greedy and sampled, and compare every
answer with that of a server left in peace."""

import asyncio
import collections
import json
import random
import time

import httpx

NUM_TOKENS = 120
BODIES = [{"model": "pebble-e",
           "messages": [{"role": "user", "content": f"Tell me a story about number {number}, a river and a star"}],
           "max_tokens": NUM_TOKENS, "temperature": number % 2, "seed": number, "ignore_eos": True}
          for number in range(8)]
CHAT = "/v1/chat/completions"


async def whole(client, url, body):
    """(text, problem)"""
    reply = await client.post(url + CHAT, json=body)
    if reply.status_code != 200:
        return None, f"HTTP {reply.status_code}: {reply.text[:200]}"
    return reply.json()["choices"][0]["message"]["content"], None


async def streamed(client, url, body):
    """(text, problem)"""
    text, ids, is_done = "", set(), False
    async with client.stream("POST", url + CHAT, json={**body, "stream": True}) as reply:
        if reply.status_code != 200:
            return None, f"HTTP {reply.status_code}: {(await reply.aread())[:200]}"
        async for line in reply.aiter_lines():
            if line == "data: [DONE]":
                is_done = True
            elif line.startswith("data: "):
                chunk = json.loads(line[6:])
                if "error" in chunk or "choices" not in chunk:
                    return None, f"an error after {len(text)} characters: {line[:200]}"
                ids.add(chunk["id"])
                text += "".join(choice["delta"].get("content") or "" for choice in chunk["choices"])
    if not is_done:
        return None, f"cut after {len(text)} characters"
    return (text, None) if len(ids) == 1 else (None, f"one answer with the ids {ids}")


def answers_of(url):
    """The right ones."""
    async def ask():
        async with httpx.AsyncClient(timeout=120) as client:
            return await asyncio.gather(*(whole(client, url, body) for body in BODIES))
    answers = asyncio.run(ask())
    assert all(problem is None for _, problem in answers), answers
    return [text for text, _ in answers]


def run(url, right, num_clients, seconds, disturb, share_streamed=0.6):
    """Asks until the seconds are over and `disturb(number)`, called between, has returned None. What it counts:
    whole, streamed, lost_whole, lost_streamed, different; and what went wrong."""
    counts, problems = collections.Counter(), []

    async def worker(client, number, is_over):
        choose = random.Random(number)
        while not is_over():
            index, kind = choose.randrange(len(BODIES)), "streamed" if choose.random() < share_streamed else "whole"
            try:
                text, problem = await (streamed if kind == "streamed" else whole)(client, url, BODIES[index])
            except httpx.HTTPError as error:
                text, problem = None, repr(error)
            counts[kind] += 1
            if problem is not None:
                counts[f"lost_{kind}"] += 1
                problems.append((kind, problem))
            elif text != right[index]:
                counts["different"] += 1
                problems.append((kind, index, text))

    async def main():
        began = time.monotonic()
        is_disturbed = True

        async def disturber():
            nonlocal is_disturbed
            number = 0
            while (pause := disturb(number)) is not None:
                await asyncio.sleep(pause)
                number += 1
            is_disturbed = False

        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        async with httpx.AsyncClient(timeout=120, limits=limits) as client:
            is_over = lambda: not is_disturbed and time.monotonic() - began >= seconds
            await asyncio.gather(disturber(), *(worker(client, number, is_over) for number in range(num_clients)))
        return time.monotonic() - began

    elapsed = asyncio.run(main())
    counts["tokens_per_s"] = round(NUM_TOKENS * (counts["whole"] + counts["streamed"]) / elapsed)
    return counts, problems

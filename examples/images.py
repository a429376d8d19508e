#!/usr/bin/env python3
"""A question about images: files are sent inside the request, streamed text comes back.

    ./lapidary serve                                                 # in another terminal
    examples/images.py "How many stars are there?" docs/stars.png    # needs: pip install openai"""

import argparse
import base64
import mimetypes

import openai


def part(path):
    with open(path, "rb") as file:
        data = base64.b64encode(file.read()).decode()
    kind = mimetypes.guess_type(path)[0] or "image/png"
    return {"type": "image_url", "image_url": {"url": f"data:{kind};base64,{data}"}}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("question")
    parser.add_argument("image", nargs="+", help="PNG, JPEG or WebP files")
    parser.add_argument("--base-url", default="http://127.0.0.1:8000/v1")
    arguments = parser.parse_args()

    client = openai.OpenAI(base_url=arguments.base_url, api_key="none")
    content = [*map(part, arguments.image), {"type": "text", "text": arguments.question}]
    stream = client.chat.completions.create(model=client.models.list().data[0].id, temperature=0, stream=True,
                                            messages=[{"role": "user", "content": content}])
    for chunk in stream:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
    print()


if __name__ == "__main__":
    main()

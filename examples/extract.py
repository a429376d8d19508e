#!/usr/bin/env python3
"""Structured extraction: text in, an object of a given class out. The answer cannot leave the schema.

    ./lapidary serve                                        # in another terminal
    examples/extract.py "name: Otto, age: 25, village: Oakton"    # needs: pip install openai (brings pydantic)"""

import argparse

import openai
import pydantic


class Person(pydantic.BaseModel):
    name: str
    age: int
    village: str


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("text", help="something that says a person's name, age and village")
    parser.add_argument("--base-url", default="http://127.0.0.1:8000/v1")
    arguments = parser.parse_args()

    client = openai.OpenAI(base_url=arguments.base_url, api_key="none")
    answer = client.chat.completions.parse(
        model=client.models.list().data[0].id, temperature=0, response_format=Person,
        messages=[{"role": "user", "content": f"Turn this into a JSON object:\n{arguments.text}"}])
    person = answer.choices[0].message.parsed
    print(f"{person.name} is {person.age} and lives in {person.village}.")


if __name__ == "__main__":
    main()

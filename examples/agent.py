#!/usr/bin/env python3
"""An agent with a tool, through OpenAI's Agents SDK: the model calls a Python function and answers with its result.

    ./lapidary serve                                        # in another terminal
    examples/agent.py "What is the weather in Lima?"        # needs: pip install openai-agents"""

import argparse

import agents
import openai

SKIES = {"Lima": {"sky": "sunny", "degrees": 14}, "Fernhill": {"sky": "foggy", "degrees": 27}}


@agents.function_tool
def get_weather(city: str) -> dict:
    """Current weather.

    Args:
        city: The city
    """
    return SKIES.get(city, {"error": f"no weather is known of {city}"})


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("question")
    parser.add_argument("--base-url", default="http://127.0.0.1:8000/v1")
    arguments = parser.parse_args()

    agents.set_tracing_disabled(True)  # or it reports to OpenAI
    client = openai.AsyncOpenAI(base_url=arguments.base_url, api_key="none")
    model = openai.OpenAI(base_url=arguments.base_url, api_key="none").models.list().data[0].id
    agent = agents.Agent(name="Weather", tools=[get_weather],
                         model=agents.OpenAIChatCompletionsModel(model=model, openai_client=client),
                         model_settings=agents.ModelSettings(temperature=0))
    result = agents.Runner.run_sync(agent, arguments.question, max_turns=6)
    for item in result.new_items:
        if isinstance(item, agents.ToolCallItem):
            print(f"called {item.raw_item.name}({item.raw_item.arguments})")
    print(result.final_output)


if __name__ == "__main__":
    main()
